"""Contrasts between modes: what is compared at each reset, and how it becomes trials.

The outcome of a paired reset is the first run's figure minus the second's, and carries +effect or
−effect as the draw of modes fell (``stats``). What an instant has in common cancels in the pair;
what a run adds to all of its windows cancels by balance; what earlier wipes left behind is as
likely on either side. The price of a mode is its contrast with ``sham``.

With one mode a run and control runs beside them (arms), the unit is a run: the mean over its resets
of its figure minus the control's at the same instants of the same plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from harness.analysis.experiment.pairs import Pair, Run
from harness.analysis.experiment.stats import Trials
from harness.analysis.in_flight import Floats
from harness.records import ResetMode

Figure = Callable[[Pair], Floats]
"""Left minus right at each reset of a pair; one row a reset."""


def in_flight(pair: Pair) -> Floats:
    """Figure: the number in flight at the reset."""
    return pair.difference(lambda run, at: run.count.at(at).astype(np.float64))


def integral(horizon: float) -> Figure:
    """Figure: ∫ N dt over ``horizon`` seconds from the reset, request-seconds."""

    def of(run: Run, at: Floats) -> Floats:
        return run.count.integral(at, at + horizon)

    return partial(Pair.difference, of=of)


def own_victims(horizon: float) -> Figure:
    """Figure: what each run's own victims add to the integral over ``horizon`` seconds."""
    return partial(Pair.difference, of=lambda run, at: run.stays.left_over(at, horizon))


def later(horizon: float) -> Figure:
    """Figure: what requests sent after the reset add to the integral over ``horizon`` seconds."""

    def of(run: Run, at: Floats) -> Floats:
        return run.count.integral(at, at + horizon) - run.stays.left_over(at, horizon)

    return partial(Pair.difference, of=of)


def accrued(grid: Floats) -> Figure:
    """Figure with one column a grid point: ∫ N dt from the reset to so many seconds after it."""

    def of(run: Run, at: Floats) -> Floats:
        return run.count.integral(at[:, None], at[:, None] + grid)

    return partial(Pair.difference, of=of)


def victims(pair: Pair) -> Floats:
    """Figure: Σ (latency left − latency right) over the arrivals in flight at the reset in both.

    A request in flight in only one of the runs has no counterpart that a mode could have hit.
    Without a right run: what the victims still had to wait, B(reset).
    """
    if pair.right is None:
        return pair.difference(lambda run, at: run.stays.left_over(at))
    (mine, here, ours), (other, there, theirs) = (
        (run.stays.id[rows], at, (run.stays.end - run.stays.start)[rows])
        for run in (pair.left, pair.right)
        for rows, at in [pair.present(run)]
    )
    size = 1 + max(mine.max(initial=0), other.max(initial=0))
    _, a, b = np.intersect1d(here * size + mine, there * size + other, return_indices=True)
    sums = np.bincount(here[a], ours[a] - theirs[b], minlength=len(pair.ids))
    return sums.astype(np.float64)


def trials(strata: Sequence[Pair], figure: Figure) -> Trials:
    """Outcomes of a crossover's contrast as ``stats`` takes them; strata from ``pairs``."""
    outcome = [figure(pair) for pair in strata]
    return Trials(
        outcome=np.concatenate(outcome) if strata else np.zeros(0),
        first=np.concatenate([np.zeros(0, bool), *(pair.first for pair in strata)]),
        stratum=np.repeat(np.arange(len(strata)), [len(pair.ids) for pair in strata]),
        paired=all(pair.right is not None for pair in strata),
        unit="resets",
    )


def arms(runs: Sequence[Run], first: ResetMode, second: ResetMode, figure: Figure) -> Trials:
    """Outcomes of a contrast between whole runs, one mode each; blocks are the strata.

    A block counts with a run of either mode and a control (a run without resets). Only resets that
    took effect in both runs are used. ``second`` may be NONE, whose outcome is 0.

    Raises:
        ValueError: a run mixes modes.
    """
    blocks: dict[str, dict[ResetMode, Run]] = {}
    for run in runs:
        blocks.setdefault(run.block, {})[run.mode()] = run
    wanted = {first, second, ResetMode.NONE}
    whole = [arm for arm in blocks.values() if wanted <= arm.keys()]
    outcome = [
        _mean(arm, mode, (first, second), figure) for arm in whole for mode in (first, second)
    ]
    return Trials(
        outcome=np.array(outcome, np.float64),
        first=np.tile([True, False], len(whole)),
        stratum=np.repeat(np.arange(len(whole)), 2),
        paired=False,
        unit="runs",
    )


def _mean(
    arm: dict[ResetMode, Run], mode: ResetMode, modes: tuple[ResetMode, ResetMode], figure: Figure
) -> float:
    """Mean over the resets both modes have of the figure against the control at those instants."""
    if mode is ResetMode.NONE:
        return 0.0
    run, control = arm[mode], arm[ResetMode.NONE]
    ids = run.resets.index
    for other in modes:
        if other is not ResetMode.NONE:
            ids = ids.intersection(arm[other].resets.index)
    beside = replace(control, resets=run.resets)
    pair = Pair(run, beside, ids.to_numpy(np.int64), np.ones(len(ids), bool))
    return float(figure(pair).mean()) if len(ids) else math.nan
