"""Arrival processes besides the homogeneous Poisson process; pure functions of a seeded stream.

Instants are seconds since the run's zero, ascending, in [0, ``end``). ``rate`` is the mean number
of arrivals a second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def poisson(rate: float, end: float, rng: np.random.Generator) -> Floats:
    """Instants of a Poisson process: exponential gaps, left as drawn.

    The number of arrivals is random, as it should be.
    """
    return _renewal(lambda count: rng.exponential(1 / rate, size=count), rate, end)


def gamma(rate: float, burstiness: float, end: float, rng: np.random.Generator) -> Floats:
    """Instants with gamma gaps of shape ``burstiness`` and mean 1/``rate``.

    ``burstiness`` is what ``vllm bench serve --burstiness`` calls so: the squared coefficient of
    variation of a gap is 1/``burstiness``, so 1 is Poisson, less is burstier, more is more even.
    """
    scale = 1 / (rate * burstiness)
    return _renewal(lambda count: rng.gamma(burstiness, scale, size=count), rate, end)


def constant(rate: float, end: float, rng: np.random.Generator) -> Floats:
    """Instants exactly 1/``rate`` apart; the first is drawn uniformly from [0, 1/``rate``)."""
    count = int(np.ceil(rate * end)) + 1
    instants: Floats = (rng.random() + np.arange(count, dtype=np.float64)) / rate
    return instants[instants < end]


def replay(recorded: Sequence[float], span: float, rate: float, end: float) -> Floats:
    """``recorded`` instants of a stretch of ``span`` seconds, stretched evenly to mean ``rate``."""
    instants = np.asarray(recorded, np.float64) * (len(recorded) / span / rate)
    return instants[instants < end]


def _renewal(draw: Callable[[int], Floats], rate: float, end: float) -> Floats:
    """Sums of gaps that ``draw(count)`` draws; the first gap begins at 0."""
    instants: list[Floats] = []
    last = 0.0
    chunk = max(16, int(rate * end * 1.1))
    while last < end:
        drawn = last + np.cumsum(draw(chunk))
        instants.append(drawn)
        last = float(drawn[-1])
    whole = np.concatenate(instants)
    return whole[whole < end]


class Stretch(NamedTuple):
    """A stretch of time in which the rate is linear."""

    seconds: float
    first: float
    """Arrivals a second at its begin."""
    last: float
    """Arrivals a second at its end."""


def ramp(rate: float, levels: Sequence[float], warmup: float, duration: float) -> list[Stretch]:
    """A rate through ``levels``, evenly spaced over ``duration`` after ``warmup`` at the first.

    Levels are relative: they are scaled so that the mean over ``duration`` is ``rate``.
    """
    pairs = list(pairwise(levels))
    scale = rate * len(pairs) / sum((first + last) / 2 for first, last in pairs)
    seconds = duration / len(pairs)
    return [
        Stretch(warmup, scale * levels[0], scale * levels[0]),
        *(Stretch(seconds, scale * first, scale * last) for first, last in pairs),
    ]


def steps(rate: float, levels: Sequence[float], warmup: float, duration: float) -> list[Stretch]:
    """A rate that holds each of ``levels`` equally long, otherwise as ``ramp``."""
    scale = rate * len(levels) / sum(levels)
    seconds = duration / len(levels)
    held = [Stretch(seconds, scale * level, scale * level) for level in levels]
    return [held[0]._replace(seconds=warmup), *held]


def on_off(rate: float, on: float, off: float, end: float) -> list[Stretch]:
    """``on`` seconds of load and ``off`` seconds of none in turn, from 0 on; mean ``rate``."""
    busy = rate * (on + off) / on
    cycles = int(np.ceil(end / (on + off)))
    return [Stretch(on, busy, busy), Stretch(off, 0.0, 0.0)] * cycles


def varying(profile: Sequence[Stretch], end: float, rng: np.random.Generator) -> Floats:
    """Instants of the Poisson process whose rate is ``profile``, up to its end or ``end``.

    Exact, by change of time: with Λ(t) = ∫ rate, arrivals of a Poisson process of rate 1 at
    s₁, s₂, … are arrivals of this one at Λ⁻¹(s₁), Λ⁻¹(s₂), … (Çinlar 1975). In a stretch of d
    seconds that begins at rate r and changes by a = (last − r)/d a second, y = r·x + a·x²/2 gives
    x = 2y/(r + √(r² + 2ay)), which loses no digits however small a is.
    """
    seconds, first, last = (np.asarray(column, np.float64) for column in zip(*profile, strict=True))
    mass = seconds * (first + last) / 2
    reached = np.concatenate([[0.0], np.cumsum(mass)])
    begins = np.concatenate([[0.0], np.cumsum(seconds)])
    drawn = poisson(1.0, float(reached[-1]), rng)
    # To the right, since a stretch without load ends at the same Λ at which it began.
    where = np.minimum(np.searchsorted(reached, drawn, side="right") - 1, len(mass) - 1)
    rest, rate = drawn - reached[where], first[where]
    slope = np.divide(last - first, seconds, out=np.zeros_like(mass), where=seconds > 0)[where]
    root = np.sqrt(np.maximum(rate**2 + 2 * slope * rest, 0.0))
    instants: Floats = begins[where] + 2 * rest / (rate + root)
    return instants[instants < end]
