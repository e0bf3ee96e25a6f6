"""Which stretch of a run is measured, and which arrivals of its plan left no record."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from harness.journals import Journals


class Period(msgspec.Struct, frozen=True):
    """The half-open stretch [start, end) that is measured, in seconds since the run's zero."""

    start: float
    end: float

    @property
    def length(self) -> float:
        """Seconds measured; 0 for a run that ended in its warm-up."""
        return self.end - self.start

    def holds(self, instants: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Which instants lie inside; never one that is NaN."""
        inside: NDArray[np.bool_] = (instants >= self.start) & (instants < self.end)
        return inside


def unrecorded(journals: Journals) -> NDArray[np.float64]:
    """Planned instants of the arrivals without a record, in order: not sent, or lost in a kill.

    Later turns of sessions are not among them: when they were to come nobody knows.
    """
    arrivals = journals.manifest.plan.arrivals
    closed_loop = int(journals.requests.frame["closed_loop"].sum())
    if len(journals.requests) - closed_loop == len(arrivals):
        return np.zeros(0)
    ids = np.fromiter((arrival.id for arrival in arrivals), np.int64, len(arrivals))
    missing = ~np.isin(ids, journals.requests.frame["id"].to_numpy(np.int64))
    return np.sort([arrivals[row].scheduled for row in np.flatnonzero(missing)])


def measured(journals: Journals) -> Period:
    """From the end of the warm-up to the end of the load, or to where the journal has a gap.

    From the first arrival without a record on, the number in flight is unknown: a killed run
    cannot tell an idle replica from one whose requests had not ended yet.
    """
    plan = journals.manifest.plan
    start, end = plan.scenario.load.warmup, plan.end
    lost = unrecorded(journals)
    if len(lost):
        end = min(end, float(lost[0]))
    return Period(start, max(start, end))
