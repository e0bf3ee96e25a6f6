"""Recovery curves: TTFT, latency and cached share against the time since the wipe."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from harness.analysis.cohorts import Cohorts, Window, windows
from harness.analysis.period import measured
from harness.analysis.resets import SettledReset
from harness.journals import Journals
from harness.records import ResetMode

Floats = NDArray[np.float64]

BEFORE = 10.0
"""Seconds before the wipes from which a curve starts."""
WIDTHS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)
"""Widths that bins may have, in seconds."""
BIN_REQUESTS = 8
"""Bins are wide enough to hold about this many pooled requests."""


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
    """In order; a bin without requests is left out."""


def draw(journals: Journals, resets: tuple[SettledReset, ...]) -> tuple[RecoveryCurve, ...]:
    """One curve for each mode that took effect at least once, in the order of ``ResetMode``."""
    cohorts = Cohorts(journals.requests)
    found = list(windows(resets, measured(journals)))
    by_mode = ((mode, [window for window in found if window.mode is mode]) for mode in ResetMode)
    return tuple(
        RecoveryCurve(mode, len(own), tuple(_bins(cohorts, own))) for mode, own in by_mode if own
    )


@dataclass(frozen=True)
class _Pool:
    """Requests of several windows, by the time since the wipe."""

    rows: NDArray[np.int64]
    since: Floats

    @classmethod
    def gather(cls, cohorts: Cohorts, parts: Iterable[tuple[Window, slice]]) -> _Pool:
        rows, since = [], []
        for window, part in parts:
            rows.append(np.arange(part.start, part.stop))
            since.append(cohorts.scheduled[part] - window.at)
        order = np.argsort(np.concatenate(since), kind="stable")
        return cls(np.concatenate(rows)[order], np.concatenate(since)[order])

    def between(self, start: float, end: float) -> NDArray[np.int64]:
        first, last = np.searchsorted(self.since, [start, end], side="left")
        return self.rows[first:last]


def _bins(cohorts: Cohorts, own: list[Window]) -> Iterable[CurveBin]:
    pairs = [(window, max(window.at - BEFORE, window.previous)) for window in own]
    everyone = _Pool.gather(cohorts, ((w, cohorts.rows(start, w.end)) for w, start in pairs))
    # A request without a first token by then, or in flight then, is the next reset's victim.
    begun, ended = (
        _Pool.gather(cohorts, ((w, cohorts.untouched(w, start, events)) for w, start in pairs))
        for events in (cohorts.first_token, cohorts.finished)
    )
    reach = np.array([window.end - window.at for window in own])
    horizon = float(reach.max())
    width = _width(len(everyone.rows), horizon + BEFORE)
    for number in range(math.floor(-BEFORE / width), math.ceil(horizon / width)):
        start, end = number * width, (number + 1) * width
        rows = everyone.between(start, end)
        if len(rows):
            yield CurveBin(
                start,
                end,
                resets=int(np.sum(reach > start)),
                requests=len(rows),
                failed=int(np.sum(~cohorts.ok[rows])),
                ttft=_quartiles(cohorts.ttft[begun.between(start, end)]),
                latency=_quartiles(cohorts.latency[ended.between(start, end)]),
                cached_share=cohorts.cached_share(begun.between(start, end)),
            )


def _quartiles(values: Floats) -> Quartiles | None:
    known = values[~np.isnan(values)]
    return Quartiles(*np.percentile(known, [25, 50, 75]).tolist()) if len(known) else None


def _width(requests: int, span: float) -> float:
    """The narrowest width whose bins hold ``BIN_REQUESTS`` on average."""
    needed = BIN_REQUESTS * span / requests if requests else math.inf
    return next((width for width in WIDTHS if width >= needed), WIDTHS[-1])
