"""Contrasts and prices where every run has one mode, beside a control with the same plan.

The unit is a run, so at least ``stats.MIN_UNITS`` runs of the two modes together are needed before
anything is claimed; with fewer the estimates stand without intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from harness.analysis.experiment import contrast, crossover, stats
from harness.analysis.experiment.contrast import Contrast, Price, Recovery
from harness.analysis.experiment.crossover import Figure
from harness.analysis.experiment.pairs import Pair, Run
from harness.analysis.experiment.stats import Comparison
from harness.analysis.in_flight import Floats
from harness.records import ResetMode


def pairs(runs: Sequence[Run], mode: ResetMode) -> list[Pair]:
    """Each run of ``mode`` beside its control at the same instants; all its resets are first."""
    controls = {run.block: run for run in runs if run.mode() is ResetMode.NONE}
    found = []
    for run in runs:
        control = controls.get(run.block)
        if control is not None and run.mode() is mode and len(run.resets):
            ids = run.resets.index.to_numpy(np.int64)
            beside = replace(control, resets=run.resets)
            found.append(Pair(run, beside, ids, np.ones(len(ids), bool)))
    return found


def compare(runs: Sequence[Run], first: ResetMode, second: ResetMode, spacing: float) -> Contrast:
    """Two modes against each other, each less its control, with runs as units.

    ``spacing`` is that of the resets, in seconds.
    """
    failed = (
        contrast.failed_share(runs, first, spacing),
        contrast.failed_share(runs, second, spacing),
    )
    return Contrast(
        first,
        second,
        victims=told(runs, first, second, crossover.victims),
        short=told(runs, first, second, crossover.integral(contrast.SHORT_HORIZON)),
        failed=failed,
        void=contrast.void(first, second, failed),
    )


def price(runs: Sequence[Run], mode: ResetMode, horizon: float, relaxation: float | None) -> Price:
    """What ``mode`` costs against the control runs, and whether it came back.

    Args:
        runs: all runs of one rate.
        mode: whose price.
        horizon: H, the spacing of the resets, seconds.
        relaxation: mean latency/(1 − ρ) of the undisturbed queue, seconds; None if unknown.
    """
    none = ResetMode.NONE
    third = horizon / 3
    total = told(runs, mode, none, crossover.integral(horizon))
    late = told(runs, mode, none, mean_between(2 * third, horizon))
    rise = told(runs, mode, none, _rise(third))
    strata = pairs(runs, mode)
    grid = np.linspace(0.0, horizon, contrast.GRID + 1)
    curves = [crossover.accrued(grid)(pair).mean(axis=0) for pair in strata]
    pooled = np.mean(curves, axis=0) if curves else np.zeros(len(grid))
    level = _control_level(strata, horizon)
    judged = relaxation is not None and horizon >= (contrast.HORIZON_OVER_RELAXATION * relaxation)
    return Price(
        mode,
        none,
        horizon,
        total=total,
        victims=told(runs, mode, none, crossover.own_victims(horizon)),
        later=told(runs, mode, none, crossover.later(horizon)),
        half_life=stats.half_life(grid, pooled, total),
        late=late,
        rise=rise,
        control_level=level,
        recovery=contrast.judge(late, rise, contrast.STILL_ABOVE * level)
        if judged
        else Recovery.CANNOT_TELL,
    )


def mean_between(start: float, end: float) -> Figure:
    """Figure: mean N from ``start`` to ``end`` seconds after the reset."""

    def of(run: Run, at: Floats) -> Floats:
        return run.count.integral(at + start, at + end) / (end - start)

    return lambda pair: pair.difference(of)


def _rise(third: float) -> Figure:
    late, middle = mean_between(2 * third, 3 * third), mean_between(third, 2 * third)
    return lambda pair: np.asarray(late(pair) - middle(pair))


def told(runs: Sequence[Run], first: ResetMode, second: ResetMode, figure: Figure) -> Comparison:
    """Two modes by one figure, with runs as units; blocks without a reset in common are left out.

    ``second`` may be NONE, the control itself.
    """
    trials = crossover.arms(runs, first, second, figure)
    whole = ~np.isnan(trials.outcome)
    if not whole.all():  # a block whose runs have no reset in common
        lost = np.isin(trials.stratum, trials.stratum[~whole])
        trials = replace(
            trials,
            outcome=trials.outcome[~lost],
            first=trials.first[~lost],
            stratum=trials.stratum[~lost],
        )
    return stats.compare(trials)


def _control_level(strata: Sequence[Pair], horizon: float) -> float:
    """The controls' mean N over the last third of the horizon; 0 without any."""
    start = 2 * horizon / 3
    means = [
        pair.right.count.integral(at + start, at + horizon) / (horizon - start)
        for pair in strata
        if pair.right is not None
        for at in [pair.right.resets.loc[pair.ids, "instant"].to_numpy(np.float64)]
    ]
    return float(np.concatenate(means).mean()) if means else 0.0
