"""Idle windows: maximal intervals in which this client has nothing in flight."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from harness.analysis.in_flight import Floats, InFlight
from harness.analysis.period import Period


class IdleWindows(msgspec.Struct, frozen=True):
    """Idle windows of one run, clipped to its measured period."""

    count: int
    longest: float
    """Seconds."""
    share: float | None
    """P₀: the share of time with nothing in flight; None without a measured period."""
    per_minute: float | None
    """Windows a minute, as counted."""
    expected_per_minute: float | None
    """λ·P₀ a minute, with the planned rate λ and this run's own P₀; None unless Poisson."""


def windows(in_flight: InFlight, period: Period) -> tuple[Floats, Floats]:
    """Starts and ends of the idle windows inside ``period``, in order, in seconds."""
    levels, held = in_flight.segments(period.start, period.end)
    turning = in_flight.times[(in_flight.times > period.start) & (in_flight.times <= period.end)]
    edges = np.concatenate([[period.start], turning, [period.end]])
    lasting = held > 0
    idle: NDArray[np.int8] = (levels[lasting] == 0).astype(np.int8)
    turns = np.diff(np.concatenate([[0], idle, [0]]))
    begins = edges[:-1][lasting]
    ends = edges[1:][lasting]
    return begins[turns[:-1] == 1], ends[turns[1:] == -1]


def measure(in_flight: InFlight, period: Period, rate: float | None) -> IdleWindows:
    """Idle windows in ``period``, beside what Poisson arrivals at ``rate`` a second predict.

    Every idle window is ended by an arrival that finds nothing in flight, and Poisson arrivals
    see time averages (Wolff 1982), so windows come at λ·P₀ whatever the service. In one run the
    difference between the count and λ × the idle time is a martingale: its expectation is 0 and
    its variance is that same λ × idle time. A window cut by the period's edge counts, so the count
    may exceed the arrivals that ended one by 1. Where arrivals are not Poisson ``rate`` is None and
    nothing is predicted.
    """
    if period.length <= 0:
        return IdleWindows(0, 0.0, None, None, None)
    begins, ends = windows(in_flight, period)
    lengths = ends - begins
    share = float(lengths.sum()) / period.length
    return IdleWindows(
        count=len(lengths),
        longest=float(lengths.max(initial=0.0)),
        share=share,
        per_minute=60 * len(lengths) / period.length,
        expected_per_minute=None if rate is None else 60 * rate * share,
    )
