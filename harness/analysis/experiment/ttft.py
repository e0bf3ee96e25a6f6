"""TTFT excess of a wipe: reported beside its price, and never ranks modes alone.

A preempting reset can lower it while its victims pay in stalls: they have their first token
already, and what they prefill again is cached for those who come later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import msgspec
import numpy as np

from harness.analysis.cohorts import Cohorts
from harness.analysis.experiment.crossover import Figure
from harness.analysis.experiment.pairs import Pair, Run
from harness.analysis.experiment.recorded import Recorded
from harness.analysis.experiment.stats import Comparison
from harness.analysis.in_flight import Floats
from harness.records import ResetMode


class TtftExcess(msgspec.Struct, frozen=True):
    """What a mode's wipe adds to the TTFT of the requests planned after it, summed over them."""

    mode: ResetMode
    control: ResetMode
    horizon: float
    """Seconds after the wipe in which they were planned."""
    total: Comparison
    """Seconds a reset."""


def figure(recorded: Sequence[Recorded], horizon: float) -> Figure:
    """Figure: Σ TTFT of the requests planned within ``horizon`` seconds after the reset.

    One without a first token counts as ``horizon``, as does one that waited longer.
    """
    sums = {run.name: _running_sum(run, horizon) for run in recorded}
    return partial(Pair.difference, of=partial(_total, sums, horizon))


def _running_sum(run: Recorded, horizon: float) -> tuple[Floats, Floats]:
    """Planned instants in order, and the sum of TTFT before each of them and at the end."""
    cohorts = Cohorts(run.journals.requests)
    ttft = np.minimum(np.nan_to_num(cohorts.ttft, nan=horizon), horizon)
    return cohorts.scheduled, np.concatenate([[0.0], np.cumsum(ttft)])


def _total(
    sums: Mapping[str, tuple[Floats, Floats]], horizon: float, run: Run, at: Floats
) -> Floats:
    scheduled, before = sums[run.name]
    first, last = np.searchsorted(scheduled, [at, at + horizon], side="left")
    return np.asarray(before[last] - before[first])
