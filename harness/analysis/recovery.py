"""Recovery of each reset: TTFT and latency before and just after, and when TTFT was back."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from harness.analysis.cohorts import Cohorts, Window, windows
from harness.analysis.period import measured
from harness.analysis.resets import SettledReset
from harness.journals import Journals

BEFORE = 10.0
"""Seconds before a reset that make its baseline."""
AFTER = 5.0
"""Seconds after a wipe that count as "just after"."""
ROLLING = 12
"""Successive requests whose upper quartile of TTFT is followed until it is back."""
RECOVERED_WITHIN = 1.5
"""TTFT is back once that quartile stays within this factor of the one before the reset."""


class Stretch(msgspec.Struct, frozen=True):
    """What the requests of one stretch of time saw; None without requests.

    Means, in seconds: after a wipe TTFT has two humps, hits and misses, and a median would jump
    from one to the other.
    """

    requests: int
    """That succeeded."""
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
    """Seconds from the wipe to the next reset, or to the end of what was measured."""
    time_to_recover: float | None
    """Seconds from the wipe until TTFT was back for three requests in four: of any ``ROLLING``
    successive requests from then on to the end of the window, the upper quartile stays within
    ``RECOVERED_WITHIN`` times the one before the reset. Dated by the middle of the first such
    twelve; 0 if it never left; None if it was not back within the window, or nothing came
    before."""


def recoveries(
    journals: Journals, resets: tuple[SettledReset, ...]
) -> tuple[ResetRecovery | None, ...]:
    """One entry a reset; None where nothing took effect."""
    cohorts = Cohorts(journals.requests)
    found: list[ResetRecovery | None] = [None] * len(resets)
    for window in windows(resets, measured(journals)):
        start = max(window.called - BEFORE, window.previous)
        begun = cohorts.during(start, window.called, cohorts.first_token)
        ended = cohorts.during(start, window.called, cohorts.finished)
        after = cohorts.rows(window.at, min(window.at + AFTER, window.end))
        found[window.index] = ResetRecovery(
            before=_stretch(cohorts, begun, ended),
            after=_stretch(cohorts, after, after),
            window=window.end - window.at,
            time_to_recover=_time_to_recover(cohorts, window, cohorts.ttft[begun]),
        )
    return tuple(found)


def _stretch(
    cohorts: Cohorts, begun: slice | NDArray[np.int64], ended: slice | NDArray[np.int64]
) -> Stretch:
    return Stretch(
        requests=int(np.sum(cohorts.ok[ended])),
        ttft=_mean(cohorts.ttft[begun]),
        latency=_mean(cohorts.latency[ended]),
        cached_share=cohorts.cached_share(begun),
    )


def _time_to_recover(cohorts: Cohorts, window: Window, before: NDArray[np.float64]) -> float | None:
    """See ``ResetRecovery.time_to_recover``; ``before`` are the TTFTs of the baseline."""
    rows = cohorts.untouched(window, window.at, cohorts.first_token)
    answered = ~np.isnan(cohorts.ttft[rows])
    since = cohorts.scheduled[rows][answered] - window.at
    if not len(before) or len(since) < ROLLING:
        return None
    limit = RECOVERED_WITHIN * np.percentile(before, 75)
    successive = np.lib.stride_tricks.sliding_window_view(cohorts.ttft[rows][answered], ROLLING)
    outside = np.flatnonzero(np.percentile(successive, 75, axis=1) > limit)
    if not len(outside):
        return 0.0
    back = int(outside[-1]) + 1
    return float(since[back + ROLLING // 2]) if back < len(successive) else None


def _mean(values: NDArray[np.float64]) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None
