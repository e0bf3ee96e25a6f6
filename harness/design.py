"""How an experiment deals modes to resets."""

from __future__ import annotations

from enum import StrEnum


class Design(StrEnum):
    """What is varied, within a run or between runs."""

    CROSSOVER = "crossover"
    """Each reset of a run draws its mode; as many mirrored runs as modes."""
    ARMS = "arms"
    """One mode a run, and a control without resets."""
    AT_IDLE = "at_idle"
    """A default arm, a keep arm replayed at the instants at which default cleared, a control."""
    CAPACITY = "capacity"
    """Arms at rising rates: the control with a warm cache, the others wiped all the time."""
