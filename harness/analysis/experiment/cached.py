"""Cached share of prompt tokens after wipes: how soon each prefix is computed again."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from harness.analysis.cohorts import Cohorts, Window, windows
from harness.analysis.experiment.recorded import Recorded
from harness.records import ResetMode

CACHED_EDGES = (0.0, 5.0, 20.0)
"""Seconds after a wipe at which the stretches begin over which the cached share is told; the last
one lasts to the next reset."""


class PrefixGroup(msgspec.Struct, frozen=True):
    """Cached share of the requests of neighbouring prefixes after a mode's wipes."""

    first: int
    """Prefixes ``first`` to ``last``, from 0, the most frequent."""
    last: int
    requests: int
    cached: tuple[float | None, ...]
    """Over the stretches that ``CACHED_EDGES`` begin; None without requests."""


def after(cohorts: Cohorts, window: Window) -> tuple[float | None, ...]:
    """Cached share over the stretches after one wipe; None without requests."""
    starts = [window.at + edge for edge in CACHED_EDGES]
    ends = [*starts[1:], window.end]
    rows = cohorts.untouched(window, window.at, cohorts.first_token)
    stop = int(rows.stop)
    shares = []
    for start, end in zip(starts, ends, strict=True):
        part = cohorts.rows(start, min(end, window.end))
        shares.append(cohorts.cached_share(slice(part.start, min(part.stop, stop))))
    return tuple(shares)


def by_prefix(mode: ResetMode, runs: Sequence[Recorded]) -> tuple[PrefixGroup, ...]:
    """Cached share by prefix and time since the wipe, over all wipes of ``mode``."""
    prefixes = max(run.journals.manifest.plan.prefixes for run in runs)
    groups = int(np.log2(prefixes)) + 1
    shape = (groups, len(CACHED_EDGES))
    requests, cached, prompt = np.zeros(shape, np.int64), np.zeros(shape), np.zeros(shape)
    for run in runs:
        frame = run.journals.requests.frame.dropna(subset=["cached_tokens", "prompt_tokens"])
        frame = frame.sort_values("scheduled", kind="stable")
        scheduled, first, told, asked = (
            frame[name].to_numpy(np.float64)
            for name in ("scheduled", "first_token", "cached_tokens", "prompt_tokens")
        )
        group = np.log2(frame["prefix"].to_numpy(np.int64) + 1).astype(np.int64)
        for window in windows(run.resets, run.summary.period):
            if window.mode is not mode:
                continue
            # A request that had no token by the next reset may owe its miss to it.
            low, high = np.searchsorted(scheduled, [window.at, window.end], side="left")
            rows = np.flatnonzero(first[low:high] < window.end) + low
            stretch = np.searchsorted(CACHED_EDGES, scheduled[rows] - window.at, "right") - 1
            np.add.at(requests, (group[rows], stretch), 1)
            np.add.at(cached, (group[rows], stretch), told[rows])
            np.add.at(prompt, (group[rows], stretch), asked[rows])
    if not requests.any():
        return ()
    return tuple(
        PrefixGroup(
            first=2**group - 1,
            last=min(2 ** (group + 1) - 2, prefixes - 1),
            requests=int(requests[group].sum()),
            cached=tuple(
                float(c / p) if p else None
                for c, p in zip(cached[group], prompt[group], strict=True)
            ),
        )
        for group in range(groups)
    )
