"""TTFT, ITL, latency and lag of one run, each counted at the instant of its event.

A request that straddles an edge of the measured period belongs to it by event and not by start:
its TTFT counts where its first token came, its latency where it finished, every gap between
chunks where the gap ended.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from harness.analysis.period import Period
from harness.journals import RequestTable
from harness.records import Outcome

Floats = NDArray[np.float64]


class Distribution(msgspec.Struct, frozen=True):
    """What was observed of one quantity, in seconds; all but ``count`` None if nothing was."""

    count: int
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None


def describe(values: Floats) -> Distribution:
    """Distribution of ``values`` without NaN; reorders the array it is given."""
    if not len(values):
        return Distribution(0)
    largest, mean = float(values.max()), float(values.mean())
    p50, p90, p95, p99 = np.percentile(values, [50, 90, 95, 99], overwrite_input=True).tolist()
    return Distribution(len(values), mean, p50, p90, p95, p99, largest)


class Timings(msgspec.Struct, frozen=True):
    """The run's distributions.

    ``ttft`` takes every request that had a first token, ``itl`` every gap between two content
    chunks of one request, whatever became of the request later; ``latency`` those that ended well.
    """

    ttft: Distribution
    """``first_token − scheduled``."""
    ttft_from_sent: Distribution
    latency: Distribution
    """``finished − scheduled``."""
    latency_from_sent: Distribution
    itl: Distribution
    """A chunk may hold several tokens; a stall stays a gap of its own."""
    lag: Distribution
    """``sent − scheduled``: this client's own lateness."""
    start_lag: Distribution
    """``started − scheduled``: the part of the lag before a connection was asked for."""


def measure(requests: RequestTable, period: Period) -> Timings:
    """Distributions over the events inside ``period``."""
    scheduled, started, sent, first_token, finished = (
        requests.frame[name].to_numpy(np.float64)
        for name in ("scheduled", "started", "sent", "first_token", "finished")
    )
    ok = (requests.frame["outcome"] == Outcome.OK).to_numpy(np.bool_)
    begun = period.holds(first_token)
    ended = period.holds(finished) & ok
    handed_over = period.holds(sent)

    def since(start: Floats, end: Floats, which: NDArray[np.bool_]) -> Distribution:
        spans = (end - start)[which]
        return describe(spans[~np.isnan(spans)])

    return Timings(
        ttft=since(scheduled, first_token, begun),
        ttft_from_sent=since(sent, first_token, begun),
        latency=since(scheduled, finished, ended),
        latency_from_sent=since(sent, finished, ended),
        itl=describe(gaps(requests, period)),
        lag=since(scheduled, sent, handed_over),
        start_lag=since(scheduled, started, handed_over),
    )


def gaps(requests: RequestTable, period: Period) -> Floats:
    """Every gap between successive chunks of one request that ended inside ``period``, seconds."""
    times = requests.token_times
    counted = period.holds(times[1:])
    between = requests.token_offsets[1:-1] - 1
    counted[between[(between >= 0) & (between < len(counted))]] = False
    return np.asarray(np.diff(times)[counted])


def chunks(requests: RequestTable, period: Period) -> NDArray[np.int64]:
    """How many chunks of each request arrived inside ``period``; one number a row."""
    rows = np.arange(len(requests))
    return first_chunk(requests, rows, period.end) - first_chunk(requests, rows, period.start)


def first_chunk(requests: RequestTable, rows: NDArray[np.int64], t: float) -> NDArray[np.int64]:
    """Place in ``token_times`` of each row's first chunk at or after ``t``, or of its end.

    One bisection of all the rows at once: as many steps as the longest stream has bits.
    """
    low, high = requests.token_offsets[rows], requests.token_offsets[rows + 1]
    last = len(requests.token_times) - 1
    while np.any(undecided := low < high):
        middle = (low + high) // 2
        early = undecided & (requests.token_times[np.minimum(middle, last)] < t)
        low = np.where(early, middle + 1, low)
        high = np.where(undecided & ~early, middle, high)
    return low
