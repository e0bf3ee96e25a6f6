"""This client's own health while it measured: processor use and how late its ticker woke."""

from __future__ import annotations

import msgspec
import numpy as np

from harness.analysis.period import Period
from harness.analysis.timings import Distribution, describe
from harness.records import ClientSample


class ClientHealth(msgspec.Struct, frozen=True):
    """Health of this process during the measured period."""

    cpu_share: float | None
    """CPU seconds a second: 1 is one whole core; None with fewer than two samples."""
    overshoot: Distribution
    """How late each tick of the 20 ms ticker woke, in seconds."""


def measure(samples: tuple[ClientSample, ...], period: Period) -> ClientHealth:
    """Health over the samples inside ``period``."""
    inside = [sample for sample in samples if period.start <= sample.t < period.end]
    share = None
    if len(inside) > 1:
        first, last = inside[0], inside[-1]
        share = (last.cpu - first.cpu) / (last.t - first.t)
    late = np.array([over for sample in inside for over in sample.overshoots], np.float64)
    return ClientHealth(share, describe(late))
