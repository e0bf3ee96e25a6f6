"""What a crossover says: two modes against each other, and the price and recovery of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum

import msgspec
import numpy as np

from harness.analysis.experiment import crossover, stats
from harness.analysis.experiment.excess import windows
from harness.analysis.experiment.pairs import Pair, Run, pairs
from harness.analysis.experiment.stats import Comparison
from harness.analysis.in_flight import Floats
from harness.records import ResetMode

SHORT_HORIZON = 20.0
"""Seconds of the integral that is declared in advance for contrasts between modes."""
FAILED_SHARES_APART = 0.01
"""Failed shares further apart than this void a comparison."""
STILL_ABOVE = 0.2
"""A mode has not recovered while ΔN exceeds this share of the control's N."""
GRID = 300
"""Steps of the horizon in which the pooled excess is followed; a multiple of 3."""
HORIZON_OVER_RELAXATION = 10.0
"""Horizon, over mean latency/(1 − ρ), below which recovery cannot be judged."""


class Contrast(msgspec.Struct, frozen=True):
    """Two modes against each other by the two figures declared in advance; request-seconds."""

    first: ResetMode
    second: ResetMode
    victims: Comparison
    """Σ latency of the arrivals in flight at the reset, first − second."""
    short: Comparison
    """∫ ΔN over ``SHORT_HORIZON``, first − second."""
    failed: tuple[float, float]
    """Failed share of the requests sent in windows of each mode."""
    void: str | None
    """Why the two cannot be compared at all, or None."""


class Recovery(StrEnum):
    """Whether the number in flight came back within the horizon. "Never" is not claimed."""

    RECOVERED = "recovered"
    NOT_RECOVERED = "not recovered within H"
    DIVERGING = "diverging"
    CANNOT_TELL = "cannot tell"


class Price(msgspec.Struct, frozen=True):
    """What a whole wipe costs against its control, over a horizon of one reset spacing."""

    mode: ResetMode
    control: ResetMode
    horizon: float
    """Seconds."""
    total: Comparison
    """∫ ΔN, request-seconds, and below it its two parts."""
    victims: Comparison
    """By the requests in flight at the reset, each run's own."""
    later: Comparison
    """By the requests sent after it."""
    half_life: float | None
    """Seconds until half of the pooled total had accrued; None unless the total excludes 0."""
    late: Comparison
    """Mean ΔN over the last third of the horizon, requests."""
    rise: Comparison
    """Mean ΔN over the last third minus that over the middle third, requests."""
    control_level: float
    """The control's mean N over the last third."""
    recovery: Recovery


def contrast(
    runs: Sequence[Run], first: ResetMode, second: ResetMode, spacing: float, seed: int = 0
) -> Contrast:
    """Compare two modes of a crossover; ``spacing`` is that of the resets, in seconds."""
    strata = pairs(runs, first, second)
    failed = failed_share(runs, first, spacing), failed_share(runs, second, spacing)
    return Contrast(
        first,
        second,
        victims=stats.compare(crossover.trials(strata, crossover.victims), seed=seed),
        short=stats.compare(crossover.trials(strata, crossover.integral(SHORT_HORIZON)), seed=seed),
        failed=failed,
        void=void(first, second, failed),
    )


def void(first: ResetMode, second: ResetMode, failed: tuple[float, float]) -> str | None:
    """Why failed shares void the comparison of two modes, or None."""
    if abs(failed[0] - failed[1]) <= FAILED_SHARES_APART:
        return None
    return (
        f"{failed[0]:.1%} of the requests after {first} and {failed[1]:.1%} after {second} failed; "
        "find out why before comparing the two"
    )


def failed_share(runs: Sequence[Run], mode: ResetMode, spacing: float) -> float:
    """Share of the requests sent within ``spacing`` of a mode's resets that failed; 0 without."""
    failed = arrivals = 0.0
    for run in runs:
        at = run.resets.loc[run.resets["mode"] == mode, "instant"]
        table = windows(run.stays, at, spacing)
        failed += float(table["failed"].sum())
        arrivals += float(table["arrivals"].sum())
    return failed / arrivals if arrivals else 0.0


def price(
    runs: Sequence[Run],
    mode: ResetMode,
    horizon: float,
    relaxation: float | None,
    control: ResetMode = ResetMode.SHAM,
    seed: int = 0,
) -> Price:
    """What ``mode`` costs in a crossover, and whether it came back.

    Args:
        runs: all runs of the crossover.
        mode: whose price.
        horizon: H, the spacing of the resets, seconds.
        relaxation: mean latency/(1 − ρ) of the undisturbed queue, seconds; None if unknown.
        control: what it is compared with.
        seed: for the draws of the tests.
    """
    strata = pairs(runs, mode, control)
    grid = np.linspace(0.0, horizon, GRID + 1)
    accrued = crossover.trials(strata, crossover.accrued(grid))
    curves = accrued.outcome.reshape(-1, GRID + 1)
    thirds = np.diff(curves[:, :: GRID // 3], axis=1) / (horizon / 3)

    def compare(outcome: Floats) -> Comparison:
        return stats.compare(replace(accrued, outcome=outcome), seed=seed)

    total, late, rise = (
        compare(each) for each in (curves[:, -1], thirds[:, 2], thirds[:, 2] - thirds[:, 1])
    )
    weights = stats.effect_weights(accrued)
    pooled = np.zeros(GRID + 1) if weights is None else weights @ curves
    level = _control_level(strata, horizon)
    judged = relaxation is not None and horizon >= HORIZON_OVER_RELAXATION * relaxation
    return Price(
        mode,
        control,
        horizon,
        total=total,
        victims=stats.compare(crossover.trials(strata, crossover.own_victims(horizon)), seed=seed),
        later=stats.compare(crossover.trials(strata, crossover.later(horizon)), seed=seed),
        half_life=stats.half_life(grid, pooled, total),
        late=late,
        rise=rise,
        control_level=level,
        recovery=judge(late, rise, STILL_ABOVE * level) if judged else Recovery.CANNOT_TELL,
    )


def judge(late: Comparison, rise: Comparison, threshold: float) -> Recovery:
    """Which side of the threshold the whole interval of the late ΔN lies on, if on one."""
    if late.low is None or late.high is None or late.low <= threshold < late.high:
        return Recovery.CANNOT_TELL
    if late.high <= threshold:
        return Recovery.RECOVERED
    rising = rise.low is not None and rise.low > 0
    return Recovery.DIVERGING if rising else Recovery.NOT_RECOVERED


def _control_level(strata: Sequence[Pair], horizon: float) -> float:
    """Mean N over the last third of the horizon after the control's resets; 0 without any."""
    start, end = 2 * horizon / 3, horizon
    means = [
        run.count.integral(at + start, at + end) / (end - start)
        for pair in strata
        for run, at in pair.second_windows()
    ]
    return float(np.concatenate(means).mean()) if means else 0.0
