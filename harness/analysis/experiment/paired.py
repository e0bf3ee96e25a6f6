"""Two runs of one plan, arrival by arrival: how far they differ, and how far they drift apart.

Both sent the same requests at the same instants, so what is left of a difference between two runs
without resets is the machine's noise: an A/A check. It describes these two runs; the unit of a
claim is a run, and two of them carry none.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np
import pandas as pd

from harness.analysis.experiment.checks import control_drift
from harness.analysis.experiment.contrast import SHORT_HORIZON
from harness.analysis.experiment.pairs import Run
from harness.analysis.experiment.recorded import Recorded
from harness.analysis.experiment.stats import trend
from harness.records import Outcome, ResetMode


class Paired(msgspec.Struct, frozen=True):
    """Second run minus first, over the arrivals that ended well in both."""

    first: str
    second: str
    modes: tuple[tuple[ResetMode, ...], tuple[ResetMode, ...]]
    requests: int
    latency: float | None
    """Mean difference, seconds, and below it as a share of the first run's mean."""
    latency_share: float | None
    correlation: float | None
    """Of the latencies of the same arrivals."""
    window_sd: float | None
    """Standard deviation of the difference of ∫N over windows of 20 s, request-seconds."""
    drift: float | None
    """Change of that difference from the first window to the last, by a line."""


def measure(recorded: Sequence[Recorded]) -> tuple[Paired, ...]:
    """Each run against the one before it that has the same plan."""
    plans: dict[str, list[Recorded]] = {}
    for run in recorded:
        plans.setdefault(run.summary.plan_digest, []).append(run)
    return tuple(_pair(*two) for runs in plans.values() for two in pairwise(runs))


def control_noise(runs: Sequence[Run]) -> float | None:
    """The largest drift, either way, between two controls of one plan; None without two."""
    blocks: dict[str, list[Run]] = {}
    for run in runs:
        if run.mode() is ResetMode.NONE:
            blocks.setdefault(run.block.partition("#")[0], []).append(run)
    drifts = [
        abs(control_drift(one, other, SHORT_HORIZON))
        for controls in blocks.values()
        for one, other in pairwise(controls)
    ]
    return max(drifts, default=None)


def _pair(first: Recorded, second: Recorded) -> Paired:
    latencies = pd.concat([_latency(first), _latency(second)], axis=1, join="inner")
    left, right = (latencies.iloc[:, place].to_numpy(np.float64) for place in (0, 1))
    periods = first.summary.period, second.summary.period
    start = max(period.start for period in periods)
    end = min(period.end for period in periods)
    starts = np.arange(start, end - SHORT_HORIZON, SHORT_HORIZON)
    areas = [run.in_flight.integral(starts, starts + SHORT_HORIZON) for run in (first, second)]
    differences = areas[1] - areas[0]
    known = len(left) > 0
    varied = len(left) > 2 and left.std() > 0 and right.std() > 0
    shift = float((right - left).mean()) if known else None
    return Paired(
        first=first.name,
        second=second.name,
        modes=(_modes(first), _modes(second)),
        requests=len(left),
        latency=shift,
        latency_share=shift / float(left.mean()) if shift is not None else None,
        correlation=float(np.corrcoef(left, right)[0, 1]) if varied else None,
        window_sd=float(differences.std(ddof=1)) if len(starts) > 1 else None,
        drift=trend(differences) if len(starts) > 1 else None,
    )


def _latency(run: Recorded) -> pd.Series[float]:
    """Latency of the requests of the measured period that ended well, by id."""
    frame = run.journals.requests.frame
    period = run.summary.period
    inside = period.holds(frame["scheduled"].to_numpy(np.float64))
    ended = frame[inside & (frame["outcome"] == Outcome.OK).to_numpy(np.bool_)].set_index("id")
    return (ended["finished"] - ended["scheduled"]).astype("float64")


def _modes(run: Recorded) -> tuple[ResetMode, ...]:
    return tuple(mode for mode in ResetMode if mode in run.planned_modes)
