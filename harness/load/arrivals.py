"""Arrival instants and choices, drawn from seeded streams; pure functions."""

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


def stream(seed: int, which: Stream, *path: int) -> np.random.Generator:
    """Generator of one stream, or of one numbered child of it."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(which, *path)))


def poisson(rate: float, end: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Instants of a Poisson process of ``rate`` per second on [0, ``end``) seconds.

    Gaps are exponential and left as drawn: the number of arrivals is random, as it should be.
    """
    instants: list[NDArray[np.float64]] = []
    last = 0.0
    chunk = max(16, int(rate * end * 1.1))
    while last < end:
        drawn = last + np.cumsum(rng.exponential(1 / rate, size=chunk))
        instants.append(drawn)
        last = float(drawn[-1])
    whole = np.concatenate(instants)
    return whole[whole < end]


def zipf_choice(
    kinds: int, exponent: float, count: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """``count`` draws from 0 .. ``kinds`` − 1, kind k with weight (k + 1)**−``exponent``."""
    weights = np.arange(1, kinds + 1, dtype=np.float64) ** -exponent
    return rng.choice(kinds, size=count, p=weights / weights.sum())
