"""How long a loaded replica takes to settle, and what the measuring rules make of it.

The service law is processor sharing with a fixed cost: while n requests are in flight each
progresses at 1/(a + b·n), so departures occur at rate n/(a + b·n). With Poisson arrivals of rate λ
the number in flight is a birth-death chain whose stationary law is negative binomial with
parameters a/b + 1 and λb, whatever the law of the work per request (processor sharing is
insensitive to it). Hence utilisation ρ = λb, mean latency (a + b)/(1 − λb), and
P₀ = (1 − λb)^(a/b + 1).
"""

from __future__ import annotations

import math
from typing import Annotated

import msgspec

WARMUP_RULE = 60.0
"""Seconds of warm-up at least; near capacity 5 × mean latency/(1 − ρ) may be more."""
SPACING_RULE = 120.0
"""Seconds between resets at least; near capacity 10 × mean latency/(1 − ρ) may be more."""


class ProcessorSharing(msgspec.Struct, frozen=True):
    """Service law: with n in flight, each request takes (a + b·n) seconds per unit of its work."""

    a: Annotated[float, msgspec.Meta(ge=0, le=86_400)]
    """Seconds a request takes for itself, however many share the server."""
    b: Annotated[float, msgspec.Meta(gt=0, le=86_400)]
    """Seconds each request in flight adds to every other's: 1/b is the capacity."""

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

    def idle_probability(self, rate: float) -> float:
        """P₀ = (1 − λb)^(a/b + 1): the share of time with nothing in flight."""
        rho = self.utilisation(rate)
        return (1 - rho) ** (self.a / self.b + 1) if rho < 1 else 0.0

    def idle_starts(self, rate: float) -> float:
        """Idle windows that begin a second, λ·P₀."""
        return rate * self.idle_probability(rate)


def relaxation(latency: float, utilisation: float) -> float:
    """Seconds a queue takes to forget its state, mean latency/(1 − ρ); infinite at ρ ≥ 1."""
    return latency / (1 - utilisation) if utilisation < 1 else math.inf


def warmup(latency: float, utilisation: float) -> float:
    """Seconds of load before measuring: max(60 s, 5 × relaxation)."""
    return max(WARMUP_RULE, 5 * relaxation(latency, utilisation))


def spacing(latency: float, utilisation: float) -> float:
    """Seconds between resets: max(120 s, 10 × relaxation)."""
    return max(SPACING_RULE, 10 * relaxation(latency, utilisation))
