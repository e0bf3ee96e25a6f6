"""What a run's own queue says: service law, utilisation, Little's law, Poisson arrivals.

The service law is processor sharing with a fixed cost: while n requests are in flight each
progresses at 1/(a + b·n), so departures occur at rate n/(a + b·n). With Poisson arrivals of rate λ
the number in flight is a birth-death chain whose stationary law is negative binomial with
parameters a/b + 1 and λb, whatever the law of the work per request (processor sharing is
insensitive to it). Hence utilisation ρ = λb, mean latency (a + b)/(1 − λb), and
P₀ = (1 − λb)^(a/b + 1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, stats

from harness.analysis.in_flight import Floats, InFlight

MIN_DEPARTURES = 50
"""Fewer departures than this do not fix two parameters."""

Window = tuple[float, float]
"""Start and end of a stretch of the run, in seconds since its zero."""


@dataclass(frozen=True)
class ProcessorSharing:
    """Service law: with n in flight, each request takes (a + b·n) seconds per unit of its work."""

    a: float
    """Seconds a request takes for itself, however many share the server."""
    b: float
    """Seconds each request in flight adds to every other's: 1/b is the capacity."""
    b_interval: tuple[float, float]
    """95 % profile-likelihood interval of ``b``; wide where work varies little."""
    departures: int
    """How many departures the law was fitted to."""

    @property
    def capacity(self) -> float:
        """Highest rate the server sustains, requests a second."""
        return 1 / self.b

    def utilisation(self, rate: float) -> float:
        """ρ = λb at ``rate`` requests a second."""
        return rate * self.b

    def latency(self, rate: float) -> float:
        """Mean latency in seconds at ``rate``; infinite at and above capacity."""
        rho = self.utilisation(rate)
        return (self.a + self.b) / (1 - rho) if rho < 1 else math.inf

    def in_flight(self, rate: float) -> float:
        """Mean number in flight at ``rate``; infinite at and above capacity."""
        return rate * self.latency(rate)

    def in_flight_probability(self, rate: float, n: ArrayLike) -> Floats:
        """P(N = n) at ``rate``: the negative binomial law; zero everywhere at ρ ≥ 1."""
        counts = np.asarray(n, np.int64)
        rho = self.utilisation(rate)
        if rho >= 1:
            return np.zeros(counts.shape)
        return np.asarray(stats.nbinom.pmf(counts, self.a / self.b + 1, 1 - rho))

    def idle_probability(self, rate: float) -> float:
        """P₀ = (1 − λb)^(a/b + 1): the share of time with nothing in flight."""
        rho = self.utilisation(rate)
        return (1 - rho) ** (self.a / self.b + 1) if rho < 1 else 0.0

    def idle_starts(self, rate: float) -> float:
        """Idle windows that begin a second, λ·P₀."""
        return rate * self.idle_probability(rate)


def fit(
    sent: ArrayLike, finished: ArrayLike, windows: Sequence[Window] = ()
) -> ProcessorSharing | None:
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

    def fit(self) -> ProcessorSharing | None:
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
        return ProcessorSharing(self.best_a(b), b, (low, high), int(self.departures.sum()))


WARMUP_SECONDS = 60.0
"""A replica that answers at once still warms up this long."""
RESET_SPACING_SECONDS = 120.0
"""Resets closer than this disturb each other whatever the load."""


def relaxation(latency: float, utilisation: float) -> float:
    """Seconds a queue takes to forget its state, mean latency/(1 − ρ); infinite at ρ ≥ 1."""
    return latency / (1 - utilisation) if utilisation < 1 else math.inf


def warmup(latency: float, utilisation: float) -> float:
    """Seconds of load before measuring: max(60 s, 5 × relaxation)."""
    return max(WARMUP_SECONDS, 5 * relaxation(latency, utilisation))


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


def reset_spacing(latency: float, utilisation: float) -> float:
    """Seconds between resets: max(120 s, 10 × relaxation)."""
    return max(RESET_SPACING_SECONDS, 10 * relaxation(latency, utilisation))


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
