"""How many requests are in flight, as an exact step function of time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class InFlight:
    """The number in flight N(t): right-continuous, 0 before the first event.

    ``level[k]`` holds from ``times[k]`` up to ``times[k + 1]``; ``area[k]`` is the integral of N
    up to ``times[k]``, in request-seconds. Entry 0 stands for the time before the first event: its
    instant, level 0 and area 0; each later entry is one event.
    """

    times: Floats
    level: NDArray[np.int64]
    area: Floats

    @classmethod
    def from_stamps(cls, sent: ArrayLike, finished: ArrayLike) -> InFlight:
        """N(t) of requests with the given stamps (seconds; same length; NaN in either: left out).

        Cost is that of one sort. At one instant starts count before ends: no level is negative.

        Raises:
            ValueError: a request finishes before it was sent.
        """
        starts = np.asarray(sent, np.float64)
        ends = np.asarray(finished, np.float64)
        known = ~(np.isnan(starts) | np.isnan(ends))
        starts, ends = starts[known], ends[known]
        if np.any(ends < starts):
            raise ValueError(f"{int(np.sum(ends < starts))} requests finish before they are sent")
        times = np.concatenate([starts, ends])
        steps = np.repeat(np.array([1, -1]), [len(starts), len(ends)])
        order = np.argsort(times, kind="stable")
        first = times[order[:1]] if len(times) else np.zeros(1)
        times = np.concatenate([first, times[order]])
        level = np.concatenate([np.zeros(1, np.int64), np.cumsum(steps[order])])
        area = np.concatenate([np.zeros(1), np.cumsum(level[:-1] * np.diff(times))])
        return cls(times, level, area)

    def at(self, t: ArrayLike) -> NDArray[np.int64]:
        """N at the instants ``t``, whatever their shape."""
        return np.asarray(self.level[self._row(t)])

    def integral(self, start: ArrayLike, end: ArrayLike) -> Floats:
        """Integral of N from ``start`` to ``end`` (broadcast), in request-seconds."""
        return np.asarray(self._area(end) - self._area(start))

    def mean(self, start: float, end: float) -> float:
        """Time average of N over a window."""
        return float(self.integral(start, end)) / (end - start)

    def segments(self, start: float, end: float) -> tuple[NDArray[np.int64], Floats]:
        """Levels and how long each was held, in order, inside one window."""
        first, last = np.searchsorted(self.times, [start, end], side="right")
        edges = np.concatenate([[start], self.times[first:last], [end]])
        levels = np.concatenate([self.at([start]), self.level[first:last]])
        return levels, np.diff(edges)

    def _row(self, t: ArrayLike) -> NDArray[np.int64]:
        rows = np.searchsorted(self.times, np.asarray(t, np.float64), side="right") - 1
        return np.asarray(np.maximum(rows, 0))

    def _area(self, t: ArrayLike) -> Floats:
        row = self._row(t)
        return np.asarray(self.area[row] + self.level[row] * (np.asarray(t) - self.times[row]))
