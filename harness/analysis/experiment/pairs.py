"""Runs as contrasts see them, and which of their resets are set against each other.

In a crossover, runs of one block replay the same arrivals and each planned reset gets each mode in
exactly one of them. So a reset is paired with the same planned instant in the run that gave it the
other mode.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from harness.analysis.cohorts import windows
from harness.analysis.experiment.excess import Ints, Stays
from harness.analysis.in_flight import Floats, InFlight
from harness.analysis.period import measured
from harness.analysis.resets import SettledReset
from harness.journals import Journals
from harness.records import AttemptOutcome, ResetMode

SLACK = 1.0
"""Seconds by which a wipe may take effect late and its window still count as whole."""


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

    @classmethod
    def of(
        cls,
        journals: Journals,
        resets: tuple[SettledReset, ...],
        name: str,
        spacing: float,
        horizon: float | None = None,
        block: str | None = None,
    ) -> Run:
        """A run read back, with the resets that cleared something (or marked it).

        Args:
            journals: the run.
            resets: its resets, from ``resets.settle``.
            name: what messages call it.
            spacing: of the resets, seconds: the cap of a request's stay.
            horizon: leave out a reset which the next one, or the end, follows sooner by more than
                ``SLACK``; the spacing by default.
            block: the digest of its plan by default.
        """
        period = measured(journals)
        least = (spacing if horizon is None else horizon) - SLACK
        done = {AttemptOutcome.CLEARED, AttemptOutcome.MARKED}
        found = [
            (resets[window.index].record.id, window.mode, window.at)
            for window in windows(resets, period)
            if resets[window.index].record.outcome in done and window.end - window.at >= least
        ]
        table = pd.DataFrame(found, columns=["id", "mode", "instant"]).set_index("id")
        stays = Stays.of(journals.requests.frame, spacing)
        plan = journals.manifest.plan
        return cls(name, block or plan.digest, stays, table, period.start, period.end)

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
    """The strata of a contrast in a crossover, in order, that hold either mode in either place.

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
    return [pair for pair in found if 0 < pair.first.sum() < len(pair.ids)]


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
