"""Cohorts: requests by the instant at which they were scheduled, and the window of each wipe.

A request that waited through a wipe belongs to the moment it was meant to start, however long it
took. So the last requests before a reset are that reset's victims, and a window is read only up to
the first request that the next reset may have touched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.analysis.period import Period
from harness.analysis.resets import SettledReset
from harness.journals import RequestTable
from harness.records import AttemptOutcome, Outcome, ResetMode

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Window:
    """The stretch of a run that one wipe (or sham) has to itself; seconds since the run's zero."""

    index: int
    """Place of the reset in the journal."""
    mode: ResetMode
    called: float
    """When the call that did it was made."""
    at: float
    """When it took effect."""
    previous: float
    """When the reset before it took effect, or the run's zero."""
    end: float
    """When the reset after it took effect, or what was measured ended."""
    followed: bool
    """Whether it was a reset that ended it."""


def effect(reset: SettledReset) -> float | None:
    """When a reset (or a sham's mark) began to change anything; None if every call was refused."""
    record = reset.record
    if record.cleared_at is not None:
        return record.cleared_at
    calls = (a.called for a in record.attempts if a.outcome is not AttemptOutcome.REFUSED)
    return next(calls, None)


def windows(resets: tuple[SettledReset, ...], period: Period) -> Iterator[Window]:
    """The window of every reset that cleared something (or marked it), in order."""
    effects = [effect(reset) for reset in resets]
    instants = [0.0, *(at for at in effects if at is not None), period.end]
    place = 0
    for index, (reset, at) in enumerate(zip(resets, effects, strict=True)):
        if at is None:
            continue
        place += 1
        if reset.record.cleared_at is None:
            continue
        attempts = reset.record.attempts
        yield Window(
            index,
            reset.record.mode,
            called=attempts[-1].called if attempts else at,
            at=at,
            previous=instants[place - 1],
            end=max(at, instants[place + 1]),
            followed=place + 2 < len(instants),
        )


class Cohorts:
    """Columns of a run's requests, in the order in which they were scheduled; NaN for unknown."""

    def __init__(self, requests: RequestTable) -> None:
        frame = requests.frame.sort_values("scheduled", kind="stable")
        self.scheduled, self.first_token, self.finished, self._prompt, self._cached = (
            frame[name].to_numpy(np.float64)
            for name in ("scheduled", "first_token", "finished", "prompt_tokens", "cached_tokens")
        )
        self.ok = (frame["outcome"] == Outcome.OK).to_numpy(np.bool_)
        self.ttft = self.first_token - self.scheduled
        self.latency = np.where(self.ok, self.finished - self.scheduled, np.nan)
        self._longest = float(np.max(self.finished - self.scheduled, initial=0.0))

    def rows(self, start: float, end: float) -> slice:
        """Requests scheduled in [start, end)."""
        first, last = np.searchsorted(self.scheduled, [start, end], side="left")
        return slice(int(first), int(last))

    def untouched(self, window: Window, start: float, events: Floats) -> slice:
        """Those scheduled from ``start`` on, up to the first whose event came after the next reset.

        Leaving out only the touched ones would keep the fast of the last requests and drop the
        slow.
        """
        rows = self.rows(start, window.end)
        late = np.flatnonzero(events[rows] >= window.end)
        if window.followed and len(late):
            return slice(rows.start, rows.start + int(late[0]))
        return rows

    def during(self, start: float, end: float, events: Floats) -> NDArray[np.int64]:
        """Rows whose event happened in [start, end), whenever they were scheduled."""
        rows = self.rows(start - self._longest, end)
        happened = (events[rows] >= start) & (events[rows] < end)
        return np.asarray(np.flatnonzero(happened) + rows.start)

    def cached_share(self, rows: slice | NDArray[np.int64]) -> float | None:
        """Prompt tokens from the cache over all prompt tokens, where the server tells both."""
        cached, prompt = self._cached[rows], self._prompt[rows]
        known = ~np.isnan(cached) & ~np.isnan(prompt)
        total = float(prompt[known].sum())
        return float(cached[known].sum()) / total if total else None
