"""What a run's own queue says: service law, Little's law, Poisson arrivals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, stats

from harness.analysis.in_flight import Floats, InFlight
from harness.settling import ProcessorSharing

MIN_DEPARTURES = 50
"""Fewer departures than this do not fix two parameters."""

Window = tuple[float, float]
"""Start and end of a stretch of the run, in seconds since its zero."""


@dataclass(frozen=True)
class Fit:
    """A service law as a run shows it."""

    law: ProcessorSharing
    b_interval: tuple[float, float]
    """95 % profile-likelihood interval of ``b``; wide where work varies little."""
    departures: int
    """How many departures the law was fitted to."""


def fit(sent: ArrayLike, finished: ArrayLike, windows: Sequence[Window] = ()) -> Fit | None:
    """Service law of largest likelihood, or None where the run cannot tell.

    With T(n) the time spent at level n and D(n) the departures from it, the likelihood is
    Σ D(n)·log μ(n) − T(n)·μ(n) with μ(n) = n/(a + b·n). By insensitivity D(n)/T(n) estimates μ(n)
    for any law of the work as long as the run is stationary, so give ``windows`` that leave out
    what follows a wipe.

    Args:
        sent: when each request was sent, seconds; NaN for one that never was.
        finished: when each ended, whatever its outcome; same length.
        windows: stretches to use, not overlapping; the whole run by default.

    Returns:
        None with fewer than ``MIN_DEPARTURES`` departures, or where the 95 % interval of b reaches
        down to 0: such a run shows no sharing, and so no capacity.

    Raises:
        ValueError: a request finishes before it was sent.
    """
    in_flight = InFlight.from_stamps(sent, finished)
    spans = windows or [(float(in_flight.times[0]), float(in_flight.times[-1]))]
    time, departures = _time_and_departures(in_flight, spans)
    busy = np.flatnonzero(time[1:] > 0) + 1
    if departures[busy].sum() < MIN_DEPARTURES or len(busy) < 3:
        return None
    return _Levels(busy.astype(np.float64), time[busy], departures[busy]).fit()


def _time_and_departures(in_flight: InFlight, windows: Sequence[Window]) -> tuple[Floats, Floats]:
    """T(n) in seconds and D(n), indexed by n, summed over the windows."""
    size = int(in_flight.level.max(initial=0)) + 1
    time, departures = np.zeros(size), np.zeros(size)
    for start, end in windows:
        levels, held = in_flight.segments(start, end)
        left = levels[:-1][np.diff(levels) < 0]
        time += np.bincount(levels, held, size)
        departures += np.bincount(left, minlength=size)
    return time, departures


@dataclass(frozen=True)
class _Levels:
    """The levels n ≥ 1 that were visited, with T(n) and D(n): all that the likelihood needs."""

    n: Floats
    time: Floats
    departures: Floats

    def deviance(self, a: float, b: float) -> float:
        """−2 log-likelihood of (a, b), up to a constant."""
        slowness = a / self.n + b
        return float(2 * np.sum(self.departures * np.log(slowness) + self.time / slowness))

    def best_a(self, b: float) -> float:
        """The a ≥ 0 of least deviance for a given b > 0, to a part in a million of its range."""
        top = 2 * float(self.time @ self.n) / float(self.departures.sum())
        found = optimize.minimize_scalar(
            lambda a: self.deviance(a, b), bounds=(0.0, top), options={"xatol": 1e-6 * top}
        )
        inside = float(found.x)
        return inside if self.deviance(inside, b) < self.deviance(0.0, b) else 0.0

    def fit(self) -> Fit | None:
        """Least deviance, and the interval of b in which it rises by less than 3.84."""

        def profile(b: float) -> float:  # the best a taken for each b
            return self.deviance(self.best_a(b), b)

        alone = float(self.time.sum() / self.departures.sum())
        found = optimize.minimize_scalar(
            profile, bounds=(0.0, 2 * alone), options={"xatol": 1e-6 * alone}
        )
        b = float(found.x)
        limit = float(found.fun) + float(stats.chi2.ppf(0.95, 1))
        nothing, ceiling = 1e-6 * alone, 4 * alone
        if profile(nothing) <= limit or profile(ceiling) <= limit:
            return None
        low = float(optimize.brentq(lambda at: profile(at) - limit, nothing, b))
        high = float(optimize.brentq(lambda at: profile(at) - limit, b, ceiling))
        law = ProcessorSharing(self.best_a(b), b)
        return Fit(law, (low, high), int(self.departures.sum()))


def mser(values: ArrayLike) -> int | None:
    """How many of the first values the rule MSER-5 would cut as not yet stationary; None if few.

    Of all cuts d at batches of five that leave half, it takes the one that makes the squared
    standard error of what is left, Σ(y − ȳ)²/(n − d)², the smallest (White, Cobb and Spratt, 2000).
    Advice only: near capacity it passes an empty start as readily as a stationary one.
    """
    series = np.asarray(values, np.float64)
    batches = series[: len(series) // 5 * 5].reshape(-1, 5).mean(axis=1)
    if len(batches) < 4:
        return None
    left = np.arange(len(batches), 0, -1)
    sums, squares = (np.cumsum(part[::-1])[::-1] for part in (batches, batches**2))
    error = (squares - sums**2 / left) / left**2
    return 5 * int(np.argmin(error[: len(batches) // 2]))


@dataclass(frozen=True)
class LittlesLaw:
    """One window's two sides of L = λW, and the server's gauges beside them."""

    in_flight: float
    """L: time average of the number in flight, from the journal."""
    rate: float
    """λ: requests sent in the window, a second."""
    latency: float
    """W: mean of finished − sent over the requests sent in the window, seconds."""
    boundary: float
    """(Left over at the end − brought in at the start)/window: exactly λW − L."""
    client_at_scrapes: float | None = None
    """Mean number in flight by the journal at the instants of the scrapes."""
    server_at_scrapes: float | None = None
    """Mean of the server's running + waiting at the same instants."""

    @property
    def gap(self) -> float | None:
        """Server minus client at the scrapes, as a share of the client's; None without scrapes."""
        if self.server_at_scrapes is None or not self.client_at_scrapes:
            return None
        return self.server_at_scrapes / self.client_at_scrapes - 1


def littles_law(
    sent: ArrayLike,
    finished: ArrayLike,
    window: Window,
    scrapes: ArrayLike = (),
    gauge: ArrayLike = (),
) -> LittlesLaw:
    """L = λW over ``window``, and the journal's count against the server's gauges.

    Args:
        sent: when each request was sent, seconds; NaN for one that never was.
        finished: when each ended; same length.
        window: start and end, seconds.
        scrapes: instants of the metric scrapes; those outside the window are left out.
        gauge: running + waiting requests over all engines at each scrape; same length.
    """
    starts, ends = np.asarray(sent, np.float64), np.asarray(finished, np.float64)
    start, end = window
    count = InFlight.from_stamps(starts, ends)
    inside = (starts >= start) & (starts < end) & ~np.isnan(ends)
    area = float(count.integral(start, end))
    work = float(np.sum(ends[inside] - starts[inside]))
    at, level = np.asarray(scrapes, np.float64), np.asarray(gauge, np.float64)
    seen = (at >= start) & (at < end) & ~np.isnan(level)
    arrived = int(inside.sum())
    return LittlesLaw(
        in_flight=area / (end - start),
        rate=arrived / (end - start),
        latency=work / arrived if arrived else math.nan,
        boundary=(work - area) / (end - start),
        client_at_scrapes=float(count.at(at[seen]).mean()) if seen.any() else None,
        server_at_scrapes=float(level[seen].mean()) if seen.any() else None,
    )


@dataclass(frozen=True)
class PoissonCheck:
    """Whether arrivals in one window look like a Poisson process of constant rate."""

    arrivals: int
    uniform: float
    """p-value that the arrivals are uniform over the window: sees a rate that moves."""
    lewis: float
    """p-value after the Lewis transform: sees gaps that are too even or too bunched."""

    @property
    def p_value(self) -> float:
        """Of both together (Bonferroni): at most this likely under a Poisson process."""
        return min(1.0, 2 * min(self.uniform, self.lewis))


def poisson(arrivals: ArrayLike, window: Window) -> PoissonCheck | None:
    """Conditional-uniformity check; None with fewer than 10 arrivals in the window.

    Given their number n, the arrivals of a Poisson process on (0, T] are n independent uniforms,
    so no rate is estimated and Kolmogorov-Smirnov's p-values hold as they stand. Lewis (1965)
    orders the n + 1 gaps C(1) ≤ C(2) ≤ …, and the sums of Zⱼ = (n + 2 − j)·(C(j) − C(j−1)) are
    again ordered uniforms (Durbin 1961); Kim and Whitt (2014, "Choosing arrival process models
    for service systems") show that this sees wrong gaps far better.
    """
    start, end = window
    times = np.sort(np.asarray(arrivals, np.float64))
    places = (times[(times > start) & (times <= end)] - start) / (end - start)
    n = len(places)
    if n < 10:
        return None
    gaps = np.sort(np.diff(np.concatenate([[0.0], places, [1.0]])))
    steps = (n + 1 - np.arange(n + 1)) * np.diff(np.concatenate([[0.0], gaps]))
    return PoissonCheck(n, _uniform_p(places), _uniform_p(np.cumsum(steps)[:n]))


def _uniform_p(places: NDArray[np.float64]) -> float:
    return float(stats.kstest(places, "uniform").pvalue)
