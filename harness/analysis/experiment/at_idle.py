"""The price of a default reset, beside a keep reset at the very instants at which it cleared.

Default clears only while nothing is in flight, so its price is that of the easiest moments and is
set against no other mode's. A keep run replayed at exactly those instants wipes the same cache of
the same idle replica, so the two prices must agree: an A/A check of the whole measurement.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from harness.analysis.experiment import crossover, stats
from harness.analysis.experiment.pairs import Run
from harness.analysis.experiment.stats import Comparison
from harness.analysis.in_flight import Floats
from harness.records import ResetMode


class AtIdle(msgspec.Struct, frozen=True):
    """Both prices at default's instants, against the control runs of the same plans."""

    wipes: int
    """How often default cleared, over all runs."""
    horizon: float
    """Seconds over which the excess is counted."""
    default: float | None
    """Mean excess of a default reset, request-seconds; None without a whole block."""
    keep: float | None
    """Mean excess of a keep reset at the same instants."""
    default_in_flight: float | None
    """Mean number in flight that default's wipes met: 0 if it cleared at idle instants."""
    keep_in_flight: float | None
    """The same of the replayed keep wipes; noise moves it off 0."""
    difference: Comparison
    """Default − keep, request-seconds, with runs as the units."""

    @property
    def agree(self) -> bool | None:
        """Whether the interval of the difference holds zero; None without an interval."""
        return None if self.difference.low is None else not self.difference.excludes_zero


def at_idle(runs: Sequence[Run], horizon: float, seed: int = 0) -> AtIdle:
    """Compare default with keep replayed at its instants.

    Args:
        runs: blocks of one default run, the keep run that replays its instants under the same
            reset ids, and a control.
        horizon: seconds over which the excess is counted; windows must be at least that long.
        seed: for the draws of the test.

    Raises:
        ValueError: a run mixes modes.
    """
    trials = crossover.arms(runs, ResetMode.DEFAULT, ResetMode.KEEP, crossover.integral(horizon))
    default, keep = (trials.outcome[trials.first == first] for first in (True, False))
    met = {mode: _met(runs, mode) for mode in (ResetMode.DEFAULT, ResetMode.KEEP)}
    return AtIdle(
        wipes=len(met[ResetMode.DEFAULT]),
        horizon=horizon,
        default=_mean(default),
        keep=_mean(keep),
        default_in_flight=_mean(met[ResetMode.DEFAULT]),
        keep_in_flight=_mean(met[ResetMode.KEEP]),
        difference=stats.compare(trials, seed=seed),
    )


def _met(runs: Sequence[Run], mode: ResetMode) -> Floats:
    """The number in flight that each wipe of a mode met."""
    levels = [run.count.at(run.resets["instant"]) for run in runs if run.mode() is mode]
    return np.concatenate([np.zeros(0), *levels])


def _mean(values: Floats) -> float | None:
    return float(values.mean()) if len(values) else None
