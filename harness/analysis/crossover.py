"""Contrasts between modes: which resets are set against which, and by what figure.

In a crossover, runs of one block replay the same arrivals and each planned reset gets each mode in
exactly one of them. So a reset is paired with the same planned instant in the run that gave it the
other mode: the outcome is the first run's figure minus the second's, and carries +effect or −effect
as the draw fell (``stats``). What an instant has in common cancels in the pair; what a run adds to
all of its windows cancels by balance; what earlier wipes left behind is as likely on either side.
The price of a mode is its contrast with ``sham``.

With one mode a run and control runs beside them (arms), the unit is a run: the mean over its resets
of its figure minus the control's at the same instants of the same plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import combinations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from harness.analysis.excess import Ints, Stays
from harness.analysis.in_flight import Floats, InFlight
from harness.analysis.stats import Trials
from harness.records import ResetMode


@dataclass(frozen=True)
class Run:
    """One run as far as contrasts are concerned."""

    name: str
    block: str
    """Runs of one block replay the same arrivals; no two give one reset the same mode."""
    stays: Stays
    resets: pd.DataFrame
    """Resets that took effect, indexed by id: ``mode`` and ``instant`` (seconds)."""
    start: float
    """Where the measured part begins and where it ends, seconds."""
    end: float

    @cached_property
    def count(self) -> InFlight:
        """The number in flight, N(t)."""
        return InFlight.from_stamps(self.stays.start, self.stays.end)

    @cached_property
    def level(self) -> float:
        """Mean of N over the measured part."""
        return self.count.mean(self.start, self.end)

    def mode(self) -> ResetMode:
        """The one mode of a run in an arms design; NONE for a control.

        Raises:
            ValueError: the run mixes modes.
        """
        modes = {ResetMode(mode) for mode in self.resets["mode"]} or {ResetMode.NONE}
        if len(modes) > 1:
            raise ValueError(f"run {self.name} mixes {sorted(modes)}; an arm has one mode")
        return modes.pop()


@dataclass(frozen=True)
class Pair:
    """Planned resets that got the two modes of a contrast in the same two runs: one stratum."""

    left: Run
    right: Run | None
    """None without a mirrored run: then the resets of one run are set against each other."""
    ids: Ints
    first: NDArray[np.bool_]
    """Whether the left run gave the reset the first of the two modes."""
    scale: float = 1.0
    """Left figures are multiplied by it and right ones divided."""

    def difference(self, of: Callable[[Run, Floats], Floats]) -> Floats:
        """Left minus right (left alone without a right) of a function of instants."""
        mine = of(self.left, self._instants(self.left))
        if self.right is None:
            return mine
        theirs = of(self.right, self._instants(self.right))
        return np.asarray(mine * self.scale - theirs / self.scale)

    def present(self, run: Run) -> tuple[Ints, Ints]:
        """Rows of the requests in flight at the resets, and which of the resets."""
        return run.stays.present(self._instants(run))

    def second_windows(self) -> Iterator[tuple[Run, Floats]]:
        """Each run with the instants at which it got the second of the two modes."""
        yield self.left, self._instants(self.left)[~self.first]
        if self.right is not None:
            yield self.right, self._instants(self.right)[self.first]

    def _instants(self, run: Run) -> Floats:
        return run.resets.loc[self.ids, "instant"].to_numpy(np.float64)


def pairs(runs: Sequence[Run], first: ResetMode, second: ResetMode) -> list[Pair]:
    """The strata of a contrast in a crossover, in order; empty where no reset got both modes.

    A run that is a tenth slower than its partner has all its windows multiplied, which does not
    cancel in a difference. So figures are taken in units of each run's mean N, times the geometric
    mean of both: the runs of a block hold all modes equally often, and under no effect the draw
    cannot change their means.
    """
    blocks: dict[str, list[Run]] = {}
    for run in runs:
        blocks.setdefault(run.block, []).append(run)
    found = []
    for members in blocks.values():
        if len(members) == 1:
            found.append(_alone(members[0], first, second))
        else:
            found += [_mirrored(*two, first, second) for two in combinations(members, 2)]
    return [pair for pair in found if len(pair.ids)]


def _mirrored(left: Run, right: Run, first: ResetMode, second: ResetMode) -> Pair:
    both = left.resets.index.intersection(right.resets.index)
    here, there = (run.resets.loc[both, "mode"] for run in (left, right))
    firsts = (here == first) & (there == second)
    either = firsts | ((here == second) & (there == first))
    ids = both[either].to_numpy(np.int64)
    levels = left.level, right.level
    scale = math.sqrt(levels[1] / levels[0]) if min(levels) > 0 else 1.0
    return Pair(left, right, ids, firsts[either].to_numpy(bool), scale)


def _alone(run: Run, first: ResetMode, second: ResetMode) -> Pair:
    modes = run.resets["mode"]
    either = modes.isin([first, second])
    ids = modes.index[either].to_numpy(np.int64)
    return Pair(run, None, ids, (modes[either] == first).to_numpy(bool))


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
