"""The queue of one run: mean in flight, Little's law, utilisation, whether it had settled."""

from __future__ import annotations

import math
from itertools import pairwise

import msgspec
import numpy as np

from harness import settling
from harness.analysis import counters, queueing
from harness.analysis.in_flight import InFlight
from harness.analysis.period import Period
from harness.analysis.queueing import Window
from harness.journals import Journals

RUNNING_AND_WAITING = ("num_requests_running", "num_requests_waiting")


class Occupancy(msgspec.Struct, frozen=True):
    """The number in flight, N, during the measured period, and what it says of the queue."""

    mean: float
    """L: time average of N."""
    most: int
    at_end: int
    """N when the load ended, or where the journal broke off."""
    rate: float
    """λ: requests sent a second."""
    residence: float | None
    """W: mean of ``finished − sent`` over the requests sent in the period, seconds."""
    boundary: float
    """λW − L, which is exactly what crossed the period's edges, in requests."""
    server_gap: float | None
    """The server's running + waiting over N at the scrapes, minus 1; None without gauges."""
    utilisation: float | None
    """ρ at the planned rate by the service law fitted to the stretches without a fresh wipe; None
    if the run does not tell."""
    warmup: float | None
    """Mean of N over the last half of the warm-up."""
    undisturbed: float | None
    """Mean of N from the end of the warm-up to the first reset."""
    drift: float | None
    """How far these two lie apart, in standard errors."""


def measure(
    journals: Journals, in_flight: InFlight, effects: list[float], period: Period
) -> Occupancy | None:
    """Queue figures of the measured ``period``; None if it has no length.

    ``effects`` are the instants, ascending, at which resets began to change anything.
    """
    if period.length <= 0:
        return None
    frame = journals.requests.frame
    sent, finished = (frame[name].to_numpy(np.float64) for name in ("sent", "finished"))
    window = (period.start, period.end)
    gauges = counters.total(journals.server, RUNNING_AND_WAITING)
    scrapes, gauge = (gauges.times, gauges.values) if gauges else ((), ())
    little = queueing.littles_law(sent, finished, window, scrapes, gauge)
    fit = queueing.fit(sent, finished, quiet(period, effects)) if len(frame) else None
    rho = fit.law.utilisation(journals.manifest.plan.scenario.load.rate) if fit else None
    residence = None if math.isnan(little.latency) else little.latency
    levels, _ = in_flight.segments(*window)
    before, first = _before_resets(period, effects)
    return Occupancy(
        mean=little.in_flight,
        most=int(levels.max()),
        at_end=int(in_flight.at(np.nextafter(period.end, -np.inf))),
        rate=little.rate,
        residence=residence,
        boundary=little.boundary,
        server_gap=little.gap,
        utilisation=rho,
        warmup=in_flight.mean(*before) if before else None,
        undisturbed=in_flight.mean(*first) if first else None,
        drift=_drift(in_flight, before, first, residence, rho) if before and first else None,
    )


def quiet(period: Period, effects: list[float]) -> list[Window]:
    """Up to the first reset, then the second half of the time between resets."""
    edges = [*(at for at in effects if period.start < at < period.end), period.end]
    halves = [((at + until) / 2, until) for at, until in pairwise(edges)]
    return [(period.start, edges[0]), *halves]


def _before_resets(period: Period, effects: list[float]) -> tuple[Window | None, Window | None]:
    """Last half of the warm-up, and from its end to the first reset; None where empty."""
    until = min([period.end, *(at for at in effects if at >= period.start)])
    before = (period.start / 2, period.start)
    first = (period.start, until)
    return (
        before if before[1] > before[0] else None,
        first if first[1] > first[0] else None,
    )


def _drift(
    in_flight: InFlight, before: Window, after: Window, residence: float | None, rho: float | None
) -> float | None:
    """Difference of the means of N over two windows, in standard errors.

    The mean of N over T seconds has a variance of about 2·Var(N)·τ/T, where τ = W/(1 − ρ) is how
    long the queue remembers. An unknown ρ is taken as one half.
    """
    if residence is None:
        return None
    levels, held = in_flight.segments(before[0], after[1])
    mean = float(levels @ held) / held.sum()
    variance = float((levels - mean) ** 2 @ held) / held.sum()
    memory = settling.relaxation(residence, 0.5 if rho is None else rho)
    spans = 1 / (before[1] - before[0]) + 1 / (after[1] - after[0])
    error = math.sqrt(2 * variance * memory * spans)
    if not 0 < error < math.inf:
        return None
    return (in_flight.mean(*after) - in_flight.mean(*before)) / error
