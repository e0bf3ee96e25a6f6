"""What a reset costs: request-seconds in flight beyond those of a control.

Excess of a reset is ∫ (N_reset − N_control) dt over a horizon H from the instant the wipe took
effect, where N is the number in flight. Counted so, the harm done to requests already in flight
belongs to the reset that hit them. With B(t) = Σ (finished − t) over the requests in flight at t,
any window obeys Σ latency of the requests sent in it = ∫ N dt + B(end) − B(start).

A request that failed counts as the cap C, one that succeeded as min(latency, C), in every run
alike; C is the spacing of the resets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from harness.analysis.in_flight import Floats, InFlight
from harness.records import Outcome

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Stays:
    """Requests of one run as intervals in flight; arrays of one length, in order of ``start``."""

    id: Ints
    start: Floats
    """When each was sent; when it was due, if it never was."""
    end: Floats
    """When it left, capped: start + min(finished − start, C), or start + C if it failed."""
    failed: NDArray[np.bool_]

    @classmethod
    def capped(
        cls, ids: ArrayLike, start: ArrayLike, finished: ArrayLike, failed: ArrayLike, cap: float
    ) -> Stays:
        """Stays of requests in any order, with the cap C in seconds."""
        starts, fails = np.asarray(start, np.float64), np.asarray(failed, bool)
        order = np.argsort(starts, kind="stable")
        stay = np.where(fails, cap, np.minimum(np.asarray(finished, np.float64) - starts, cap))
        return cls(
            np.asarray(ids, np.int64)[order],
            starts[order],
            (starts + stay)[order],
            fails[order],
        )

    @classmethod
    def of(cls, requests: pd.DataFrame, cap: float) -> Stays:
        """Stays of a run's request table (``RequestTable.frame``)."""
        sent = requests["sent"].fillna(requests["scheduled"])
        failed = requests["outcome"] != Outcome.OK
        return cls.capped(requests["id"], sent, requests["finished"], failed, cap)

    def present(self, instants: Floats) -> tuple[Ints, Ints]:
        """Every pair (row of a request, row of an instant) with start ≤ instant < end.

        The cost is that of the pairs, however long a request stays.
        """
        order = np.argsort(instants, kind="stable")
        first = np.searchsorted(instants[order], self.start, side="left")
        last = np.searchsorted(instants[order], self.end, side="left")
        spans = last - first
        rows = np.repeat(np.arange(len(self.start)), spans)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(spans) - spans, spans)
        return rows, order[np.repeat(first, spans) + within]

    def left_over(self, instants: Floats, within: float = np.inf) -> Floats:
        """B(t) at each instant, or what of it falls in the next ``within`` seconds."""
        rows, at = self.present(instants)
        left = np.minimum(self.end[rows] - instants[at], within)
        return np.bincount(at, left, minlength=len(instants)).astype(np.float64)


def windows(stays: Stays, instants: ArrayLike, horizon: float) -> pd.DataFrame:
    """What happened within ``horizon`` seconds of each instant; one row an instant, in order.

    Columns: ``in_flight`` (N at the instant), ``integral`` (∫ N dt, request-seconds), ``victims``
    and ``later`` (its shares by the requests in flight at the instant and by later arrivals),
    ``before`` and ``after`` (B at both ends), ``latency`` (Σ latency of the requests sent in the
    window) and how many those are (``arrivals``) and how many of them ``failed``. Exactly:
    latency = integral + after − before.
    """
    at = np.asarray(instants, np.float64)
    count = InFlight.from_stamps(stays.start, stays.end)
    integral = count.integral(at, at + horizon)
    victims = stays.left_over(at, horizon)
    edges = np.searchsorted(stays.start, [at, at + horizon], side="right")
    totals = {
        name: np.diff(np.concatenate([[0.0], np.cumsum(values)])[edges], axis=0)[0]
        for name, values in {
            "latency": stays.end - stays.start,
            "arrivals": np.ones(len(stays.start)),
            "failed": stays.failed.astype(np.float64),
        }.items()
    }
    return pd.DataFrame(
        {
            "in_flight": count.at(at),
            "integral": integral,
            "victims": victims,
            "later": integral - victims,
            "before": stays.left_over(at),
            "after": stays.left_over(at + horizon),
            **totals,
        }
    )
