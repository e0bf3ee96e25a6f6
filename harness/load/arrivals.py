"""Seeded streams, and choices drawn from them; pure functions."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class Stream(IntEnum):
    """Independent random streams of one seed: changing one draw leaves the others as they are.

    The numbers are spawn keys of ``numpy.random.SeedSequence``; they are part of what a seed
    means, so a number is never reused.
    """

    GAPS = 0
    PREFIXES = 1
    LENGTHS = 2
    PREFIX_TOKENS = 3
    UNIQUE_TOKENS = 4
    PRIMING_TOKENS = 5
    ASSIGNMENT = 6
    TREE_TOKENS = 7
    BLOCK_TOKENS = 8
    THINKING = 9


def stream(seed: int, which: Stream, *path: int) -> np.random.Generator:
    """Generator of one stream, or of one numbered child of it."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(which, *path)))


def zipf_choice(
    kinds: int, exponent: float, count: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """``count`` draws from 0 .. ``kinds`` − 1, kind k with weight (k + 1)**−``exponent``."""
    weights = np.arange(1, kinds + 1, dtype=np.float64) ** -exponent
    return rng.choice(kinds, size=count, p=weights / weights.sum())
