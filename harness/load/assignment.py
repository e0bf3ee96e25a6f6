"""Which mode each planned reset gets: a balanced draw, mirrored over the runs of a block.

A block has one run a mode, and all its runs replay one plan. At every planned reset each mode is
used in exactly one of them: two modes make mirrored runs, three a Latin square. The draw is what
``analysis.experiment.stats`` re-randomises, so nothing else may decide a mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import numpy as np

from harness.records import ResetMode


def assign(
    modes: Sequence[ResetMode], resets: int, rng: np.random.Generator
) -> tuple[tuple[ResetMode, ...], ...]:
    """Modes of every run of a block: ``assign(...)[run][reset]``.

    Each reset draws an order of the modes over the runs. All orders are used equally often as far
    as ``resets`` allows; the rest is filled with whole sets of rotations, which give every run
    every mode once, and what then remains with part of such a set. So within a run no mode is used
    more than once more often than another.

    Raises:
        ValueError: fewer than two modes, one given twice, or no reset.
    """
    count = len(modes)
    if count < 2 or len(set(modes)) < count:
        raise ValueError(f"a crossover needs two or more different modes, not {list(modes)}")
    if resets < 1:
        raise ValueError("a crossover needs at least one reset")
    starts = [(0, *rest) for rest in permutations(range(1, count))]
    orders: list[tuple[int, ...]] = []
    while len(orders) < resets:
        for row in rng.permutation(len(starts)):
            first = starts[int(row)]
            turned = [first[turn:] + first[:turn] for turn in rng.permutation(count)]
            orders += turned
    columns = [orders[int(row)] for row in rng.permutation(np.arange(resets))]
    return tuple(tuple(modes[column[run]] for column in columns) for run in range(count))
