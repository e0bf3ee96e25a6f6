"""Victims: the requests in flight at a reset, and what each of them did next."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from harness.analysis.timings import first_chunk
from harness.journals import RequestTable

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]


class Roll:
    """Requests in the order in which they were sent, to look up who was in flight when.

    A look-up costs what was sent within the longest residence before it, not the whole run.
    """

    def __init__(self, requests: RequestTable) -> None:
        sent = requests.frame["sent"].to_numpy(np.float64)
        order = np.argsort(sent, kind="stable")  # NaN, never sent, comes last
        self._rows: Rows = order[: int(np.sum(~np.isnan(sent)))]
        self._sent: Floats = sent[self._rows]
        self._finished: Floats = requests.frame["finished"].to_numpy(np.float64)[self._rows]
        self._longest = float(np.max(self._finished - self._sent, initial=0.0))

    def sent_between(self, start: float, end: float) -> Rows:
        """Rows of the requests sent in [start, end), in that order."""
        first, last = np.searchsorted(self._sent, [start, end], side="left")
        return self._rows[first:last]

    def in_flight(self, start: float, end: float) -> Rows:
        """Rows of the requests in flight at some instant of [start, end]."""
        first = np.searchsorted(self._sent, start - self._longest, side="left")
        last = np.searchsorted(self._sent, end, side="right")
        return self._rows[first:last][self._finished[first:last] > start]


def next_chunk(requests: RequestTable, rows: Rows, t: float) -> Floats:
    """When each of ``rows`` received its first chunk after ``t``; NaN for one that did not."""
    place = first_chunk(requests, rows, np.nextafter(t, np.inf))
    found = np.full(len(rows), np.nan)
    there = place < requests.token_offsets[rows + 1]
    found[there] = requests.token_times[place[there]]
    return found
