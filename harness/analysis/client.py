"""A client's own health while it measured: processor use and how late its tickers woke."""

from __future__ import annotations

import msgspec
import numpy as np

from harness.analysis.period import Period
from harness.analysis.timings import Distribution, describe
from harness.records import ClientSample


class ClientHealth(msgspec.Struct, frozen=True):
    """Health during the measured period: of the process that fares worst, where there are several.

    One that is late or busy is so for its share of the requests; the others' health does not help.
    """

    cpu_share: float | None
    """CPU seconds a second: 1 is one whole core; None with fewer than two samples."""
    overshoot: Distribution
    """How late each tick of the 20 ms ticker woke, in seconds."""
    processes: int = 1


def measure(samples: tuple[ClientSample, ...], period: Period) -> ClientHealth:
    """Health over the samples inside ``period``."""
    processes: dict[int, list[ClientSample]] = {}
    for sample in samples:
        if period.start <= sample.t < period.end:
            processes.setdefault(sample.process, []).append(sample)
    shares = [share for one in processes.values() if (share := _cpu_share(one)) is not None]
    overshoots = [_overshoot(one) for one in processes.values()] or [_overshoot([])]
    return ClientHealth(
        max(shares, default=None),
        max(overshoots, key=lambda late: -1.0 if late.p99 is None else late.p99),
        max(1, len(processes)),
    )


def _cpu_share(samples: list[ClientSample]) -> float | None:
    first, last = samples[0], samples[-1]
    return (last.cpu - first.cpu) / (last.t - first.t) if len(samples) > 1 else None


def _overshoot(samples: list[ClientSample]) -> Distribution:
    return describe(np.array([over for one in samples for over in one.overshoots], np.float64))
