"""Recovery: TTFT and latency against the time since a wipe took effect.

Requests are placed by the instant at which they were *scheduled*: a request that waited through a
wipe belongs to the moment it was meant to start, however long it took.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from harness.analysis.resets import SettledReset
from harness.journals import Journals
from harness.records import AttemptOutcome, Outcome, ResetMode

Floats = NDArray[np.float64]

BEFORE = 10.0
"""Seconds before a reset that make its baseline."""
AFTER = 5.0
"""Seconds after a wipe that count as "just after"."""
ROLLING = 12
"""Successive requests whose upper quartile of TTFT is followed until it is back."""
RECOVERED_WITHIN = 1.5
"""TTFT is back once that quartile stays within this factor of the one before the reset."""
BIN_WIDTHS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)
"""Bin widths a curve may have, in seconds."""
BIN_REQUESTS = 8
"""A curve's bins are wide enough to hold about this many pooled requests."""


class Stretch(msgspec.Struct, frozen=True):
    """What the requests of one stretch of time saw; None without requests.

    Means, in seconds: after a wipe TTFT has two humps, hits and misses, and a median would jump
    from one to the other.
    """

    requests: int
    ttft: float | None
    latency: float | None
    cached_share: float | None
    """Prompt tokens from the prefix cache over all prompt tokens, where the server tells."""


class ResetRecovery(msgspec.Struct, frozen=True):
    """How one wipe showed, and when TTFT was back."""

    before: Stretch
    """First tokens and ends in the ``BEFORE`` seconds up to the call: what the wipe cannot have
    touched."""
    after: Stretch
    """Requests scheduled in the first ``AFTER`` seconds after the wipe took effect."""
    window: float
    """Seconds from the wipe to the next reset, or to the end of the load."""
    time_to_recover: float | None
    """Seconds from the wipe until TTFT was back for three requests in four: of any ``ROLLING``
    successive requests from then on to the end of the window, the upper quartile stays within
    ``RECOVERED_WITHIN`` times the one before the reset. Dated by the middle of the first such
    twelve; 0 if it never left; None if it was not back within the window, or nothing came
    before."""


class Quartiles(msgspec.Struct, frozen=True):
    """Spread of one quantity over pooled requests, in seconds."""

    q1: float
    median: float
    q3: float


class CurveBin(msgspec.Struct, frozen=True):
    """Requests scheduled ``start`` to ``end`` seconds after a wipe, pooled over resets."""

    start: float
    end: float
    resets: int
    """Wipes whose window reaches this bin."""
    requests: int
    failed: int
    ttft: Quartiles | None
    latency: Quartiles | None
    cached_share: float | None


class RecoveryCurve(msgspec.Struct, frozen=True):
    """Wipes of one mode, aligned at the instant they took effect; negative times lie before it."""

    mode: ResetMode
    resets: int
    bins: tuple[CurveBin, ...]


@dataclass(frozen=True)
class _Window:
    """The stretch of a run that one wipe (or sham) has to itself."""

    index: int
    """Place of the reset in the journal."""
    mode: ResetMode
    at: float
    """When the wipe took effect."""
    called: float
    previous: float
    """When the reset before it took effect, or the run's zero."""
    end: float


def recoveries(
    journals: Journals, resets: tuple[SettledReset, ...]
) -> tuple[ResetRecovery | None, ...]:
    """One entry a reset; None where nothing took effect."""
    requests = _Requests(journals)
    found: list[ResetRecovery | None] = [None] * len(resets)
    for window in _windows(resets, journals.manifest.plan.end):
        before_from = max(window.called - BEFORE, window.previous)
        before = requests.by_event(before_from, window.called)
        after = requests.by_schedule(window.at, min(window.at + AFTER, window.end))
        found[window.index] = ResetRecovery(
            before=before,
            after=after,
            window=window.end - window.at,
            time_to_recover=requests.time_to_recover(window, before_from),
        )
    return tuple(found)


def curves(journals: Journals, resets: tuple[SettledReset, ...]) -> tuple[RecoveryCurve, ...]:
    """One curve for each mode that took effect at least once, in the order of ``ResetMode``."""
    requests = _Requests(journals)
    windows = list(_windows(resets, journals.manifest.plan.end))
    by_mode = ((mode, [w for w in windows if w.mode is mode]) for mode in ResetMode)
    return tuple(RecoveryCurve(mode, len(own), requests.bins(own)) for mode, own in by_mode if own)


def _windows(resets: tuple[SettledReset, ...], end: float) -> Iterator[_Window]:
    effects = [effect(reset) for reset in resets]
    instants = [0.0, *(at for at in effects if at is not None), end]
    place = 0
    for index, (reset, at) in enumerate(zip(resets, effects, strict=True)):
        if at is None:
            continue
        place += 1
        if reset.record.cleared_at is None:
            continue
        attempts = reset.record.attempts
        yield _Window(
            index,
            reset.record.mode,
            at,
            called=attempts[-1].called if attempts else at,
            previous=instants[place - 1],
            end=max(at, instants[place + 1]),
        )


def effect(reset: SettledReset) -> float | None:
    """When a reset (or a sham's mark) began to change anything; None if every call was refused."""
    record = reset.record
    if record.cleared_at is not None:
        return record.cleared_at
    calls = (a.called for a in record.attempts if a.outcome is not AttemptOutcome.REFUSED)
    return next(calls, None)


class _Requests:
    """The run's requests in the order in which they were scheduled."""

    def __init__(self, journals: Journals) -> None:
        frame = journals.requests.frame.sort_values("scheduled", kind="stable")
        self._scheduled, self._first_token, self._finished, self._prompt, self._cached = (
            frame[name].to_numpy(np.float64)
            for name in ("scheduled", "first_token", "finished", "prompt_tokens", "cached_tokens")
        )
        self._ok = (frame["outcome"] == Outcome.OK).to_numpy(np.bool_)
        self._ttft = self._first_token - self._scheduled
        self._latency = np.where(self._ok, self._finished - self._scheduled, np.nan)
        self._longest = float(np.max(self._finished - self._scheduled, initial=0.0))

    def _rows(self, start: float, end: float) -> slice:
        first, last = np.searchsorted(self._scheduled, [start, end], side="left")
        return slice(int(first), int(last))

    def by_schedule(self, start: float, end: float) -> Stretch:
        """Requests scheduled in [start, end)."""
        rows = self._rows(start, end)
        return Stretch(
            requests=rows.stop - rows.start,
            ttft=_mean(self._ttft[rows]),
            latency=_mean(self._latency[rows]),
            cached_share=_share(self._cached[rows], self._prompt[rows]),
        )

    def by_event(self, start: float, end: float) -> Stretch:
        """First tokens, and requests that ended, in [start, end)."""
        rows = self._rows(start - self._longest, end)
        begun = _inside(self._first_token[rows], start, end)
        ended = _inside(self._finished[rows], start, end)
        return Stretch(
            requests=int(np.sum(ended)),
            ttft=_mean(self._ttft[rows][begun]),
            latency=_mean(self._latency[rows][ended]),
            cached_share=_share(self._cached[rows][begun], self._prompt[rows][begun]),
        )

    def time_to_recover(self, window: _Window, before_from: float) -> float | None:
        """See ``ResetRecovery.time_to_recover``."""
        earlier = self._rows(before_from - self._longest, window.called)
        begun = _inside(self._first_token[earlier], before_from, window.called)
        rows = self._rows(window.at, window.end)
        answered = ~np.isnan(self._ttft[rows])
        since = self._scheduled[rows][answered] - window.at
        if not begun.any() or len(since) < ROLLING:
            return None
        limit = RECOVERED_WITHIN * np.percentile(self._ttft[earlier][begun], 75)
        successive = np.lib.stride_tricks.sliding_window_view(self._ttft[rows][answered], ROLLING)
        outside = np.flatnonzero(np.percentile(successive, 75, axis=1) > limit)
        if not len(outside):
            return 0.0
        back = int(outside[-1]) + 1
        return float(since[back + ROLLING // 2]) if back < len(successive) else None

    def bins(self, windows: list[_Window]) -> tuple[CurveBin, ...]:
        """Pooled bins from ``BEFORE`` seconds before the wipes to the end of the longest window."""
        slices = [self._rows(max(w.at - BEFORE, w.previous), w.end) for w in windows]
        rows = np.concatenate([np.arange(one.start, one.stop) for one in slices])
        since = np.concatenate(
            [self._scheduled[one] - w.at for one, w in zip(slices, windows, strict=True)]
        )
        order = np.argsort(since, kind="stable")
        rows, since = rows[order], since[order]
        reach = np.array([window.end - window.at for window in windows])
        width = _bin_width(len(rows), float(reach.max()) + BEFORE)
        numbers = np.arange(math.floor(-BEFORE / width), math.ceil(float(reach.max()) / width) + 1)
        borders = np.searchsorted(since, numbers * width, side="left")
        return tuple(
            self._bin(rows[first:last], number * width, width, int(np.sum(reach > number * width)))
            for number, first, last in zip(
                numbers.tolist(), borders.tolist(), borders[1:].tolist(), strict=False
            )
            if last > first
        )

    def _bin(self, rows: NDArray[np.int64], start: float, width: float, resets: int) -> CurveBin:
        return CurveBin(
            start,
            start + width,
            resets=resets,
            requests=len(rows),
            failed=int(np.sum(~self._ok[rows])),
            ttft=_quartiles(self._ttft[rows]),
            latency=_quartiles(self._latency[rows]),
            cached_share=_share(self._cached[rows], self._prompt[rows]),
        )


def _inside(values: Floats, start: float, end: float) -> NDArray[np.bool_]:
    inside: NDArray[np.bool_] = (values >= start) & (values < end)
    return inside


def _mean(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def _share(part: Floats, whole: Floats) -> float | None:
    known = ~np.isnan(part) & ~np.isnan(whole)
    total = float(whole[known].sum())
    return float(part[known].sum()) / total if total else None


def _quartiles(values: Floats) -> Quartiles | None:
    known = values[~np.isnan(values)]
    return Quartiles(*np.percentile(known, [25, 50, 75]).tolist()) if len(known) else None


def _bin_width(requests: int, span: float) -> float:
    """The narrowest width whose bins hold ``BIN_REQUESTS`` on average."""
    needed = BIN_REQUESTS * span / requests if requests else math.inf
    return next((width for width in BIN_WIDTHS if width >= needed), BIN_WIDTHS[-1])
