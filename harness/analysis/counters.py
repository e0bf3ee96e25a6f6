"""Prometheus counters and gauges of the server samples, kept per engine and summed explicitly."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from harness.records import ServerSample

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Series:
    """One engine's readings of one metric: instants (ascending, seconds) and values."""

    times: Floats
    values: Floats

    def at(self, t: ArrayLike, before: float) -> Floats:
        """Last reading at or before each ``t``; ``before`` where there is none yet."""
        rows = np.searchsorted(self.times, np.asarray(t, np.float64), side="right")
        return np.concatenate([[before], self.values])[rows]


def series(samples: Iterable[ServerSample], name: str) -> dict[str, Series]:
    """Readings of metric ``name`` by engine; counters are also found under ``name_total``."""
    readings: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for sample in samples:
        value = sample.metrics.get(f"{name}_total", sample.metrics.get(name))
        if value is not None:
            readings[sample.engine].append((sample.t, value))
    return {engine: _in_order(pairs) for engine, pairs in readings.items()}


def _in_order(pairs: list[tuple[float, float]]) -> Series:
    times, values = np.asarray(sorted(pairs), np.float64).T
    return Series(times, values)


@dataclass(frozen=True)
class Counter:
    """Growth of a counter over all engines since each engine's first reading.

    A reading below its predecessor means that the engine restarted; it counts from 0 again.
    """

    engines: tuple[Series, ...]

    @classmethod
    def read(cls, samples: Iterable[ServerSample], name: str) -> Counter | None:
        """The counter ``name``; None if no sample carries it."""
        found = series(samples, name)
        return cls(tuple(_growth(one) for one in found.values())) if found else None

    def growth(self, start: float, end: float) -> float:
        """Sum over engines of the growth between the last readings at ``start`` and at ``end``.

        An engine first read inside the interval counts from that reading: a lower bound.
        """
        grown = [one.at([start, end], before=0.0) for one in self.engines]
        return float(sum(late - early for early, late in grown))

    def read_after(self, t: float) -> float | None:
        """When every engine has been read at or after ``t``; None if one was not again."""
        latest = t
        for one in self.engines:
            row = int(np.searchsorted(one.times, t, side="left"))
            if row == len(one.times):
                return None
            latest = max(latest, float(one.times[row]))
        return latest

    def read_before(self, t: float) -> float:
        """The last instant up to ``t`` by which every engine had been read; −inf for never."""
        return min(float(Series(one.times, one.times).at(t, -np.inf)) for one in self.engines)


def _growth(readings: Series) -> Series:
    steps = np.diff(readings.values)
    steps = np.where(steps < 0, readings.values[1:], steps)
    return Series(readings.times, np.concatenate([[0.0], np.cumsum(steps)]))


def total(samples: Sequence[ServerSample], names: Sequence[str]) -> Series | None:
    """Sum of gauges ``names`` over all engines at each scrape; None if one is in no sample.

    Engines scraped at different instants hold their last reading; instants before every engine
    has been read once are left out.
    """
    by_name = [series(samples, name) for name in names]
    if not all(by_name):
        return None
    found = [one for engines in by_name for one in engines.values()]
    times = np.unique(np.concatenate([one.times for one in found]))
    values = np.sum([one.at(times, before=np.nan) for one in found], axis=0)
    known = ~np.isnan(values)
    return Series(times[known], values[known]) if known.any() else None
