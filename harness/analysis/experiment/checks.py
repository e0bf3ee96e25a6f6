"""Checks of a measurement against what must hold whatever the server does."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import scipy.stats
from numpy.typing import ArrayLike

from harness import settling
from harness.analysis.experiment.contrast import SHORT_HORIZON
from harness.analysis.experiment.pairs import Run
from harness.analysis.experiment.stats import trend
from harness.analysis.in_flight import Floats
from harness.analysis.queueing import LittlesLaw, PoissonCheck
from harness.records import ResetMode
from harness.settling import ProcessorSharing

GAUGE_GAP = 0.1
"""Share by which the server's gauges may differ from the journal's count."""
ALARM = 0.01
"""p-value below which a check that is made in every report is taken to have failed."""


class Check(msgspec.Struct, frozen=True):
    """One thing that must hold, what was expected, and what was seen."""

    name: str
    passed: bool | None
    """None where the run cannot tell."""
    observed: float | None
    expected: float | None
    unit: str
    note: str
    """What it means, in a sentence, and what to do if it failed."""


def gauges(law: LittlesLaw) -> Check:
    """Little's law closes from the journal, and the server counts what the journal counts."""
    close = None if law.gap is None else abs(law.gap) <= GAUGE_GAP
    return Check(
        "Little's law",
        close,
        observed=law.server_at_scrapes,
        expected=law.client_at_scrapes,
        unit="requests in flight at the scrapes",
        note="The server's running + waiting against this client's count. A higher gauge means "
        "other traffic; a lower one means requests that wait outside the server.",
    )


def arrivals(poisson: PoissonCheck | None) -> Check:
    """The requests were sent as a Poisson process of constant rate."""
    p_value = poisson.p_value if poisson else None
    return Check(
        "Poisson arrivals",
        None if p_value is None else p_value >= ALARM,
        observed=p_value,
        expected=None,
        unit="p-value",
        note="Conditional uniformity and Lewis's test on the instants of sending. A failure means "
        "that the client was late or was held up; look at its lag.",
    )


def preemptions(counts: ArrayLike, rate: float, latency: float) -> Check:
    """A preempting reset hits λ·T requests on average, since arrivals are Poisson.

    Args:
        counts: preemptions of each preempting reset; NaN where unknown.
        rate: λ, requests a second.
        latency: T, mean time in flight of undisturbed requests, seconds.
    """
    known = _known(counts)
    expected = rate * latency
    passed = None
    if len(known) >= 2:
        root, tail = np.sqrt(len(known)), 1 - ALARM / 2
        seen = float(scipy.stats.t.ppf(tail, len(known) - 1) * known.std(ddof=1) / root)
        # A handful may look steadier than counts of this mean can be: a Poisson variance at least.
        least = float(scipy.stats.norm.ppf(tail) * np.sqrt(expected) / root)
        reach = max(seen, least)
        passed = bool(abs(float(known.mean()) - expected) <= max(reach, 0.15 * expected))
    return Check(
        "preemptions per reset",
        passed,
        observed=float(known.mean()) if len(known) else None,
        expected=expected,
        unit="requests",
        note="Resets at planned instants find what is in flight where no wipe is fresh, λ·T. Fewer "
        "means that requests were waiting, or that the counter had not shown all of them.",
    )


def idle_starts(law: ProcessorSharing | None, rate: float, seen: int, seconds: float) -> Check:
    """Idle windows come as often as the fitted service law says.

    Args:
        law: fitted to the same run.
        rate: λ, requests a second.
        seen: idle windows that began.
        seconds: in how long.
    """
    expected = None if law is None else law.idle_starts(rate) * seconds
    passed = None
    if expected is not None:
        tail = min(
            float(scipy.stats.poisson.cdf(seen, expected)),
            float(scipy.stats.poisson.sf(seen - 1, expected)),
        )
        passed = 2 * tail >= ALARM
    return Check(
        "idle windows",
        passed,
        observed=float(seen),
        expected=expected,
        unit="windows",
        note="λ·P₀ by the processor-sharing fit. A mismatch means that the replica does not share "
        "its capacity that way, so do not trust the fit at other rates.",
    )


def shams(runs: Sequence[Run], horizon: float = SHORT_HORIZON) -> Check:
    """Nothing happens at a sham: the integral after it is that before it.

    Over all shams of all runs; a plain t-test, since the instants are the plan's.
    """
    changes = np.concatenate([np.zeros(0), *(_changes(run, horizon) for run in runs)])
    passed = None
    if len(changes) >= 3 and changes.std() > 0:
        passed = bool(scipy.stats.ttest_1samp(changes, 0.0).pvalue >= ALARM)
    return Check(
        "sham resets",
        passed,
        observed=float(changes.mean()) if len(changes) else None,
        expected=0.0,
        unit="request-seconds",
        note=f"∫N dt over {horizon:g} s after the mark minus that before it. A change means that "
        "the resets before still show: space them further apart.",
    )


def _changes(run: Run, horizon: float) -> Floats:
    at = run.resets.loc[run.resets["mode"] == ResetMode.SHAM, "instant"].to_numpy(np.float64)
    return run.count.integral(at, at + horizon) - run.count.integral(at - horizon, at)


def warmup(
    planned: float, latency: float, utilisation: float | None, advised: float | None = None
) -> Check:
    """The warm-up was long enough for the utilisation that the run turned out to have.

    Args:
        planned: seconds of load before measuring.
        latency: mean latency, seconds.
        utilisation: ρ, or None if unknown.
        advised: seconds that MSER on the TTFT would have cut, or None; it decides nothing.
    """
    needed = None if utilisation is None else settling.warmup(latency, utilisation)
    return Check(
        "warm-up",
        None if needed is None else planned >= needed,
        observed=planned,
        expected=needed,
        unit="s",
        note="max(60 s, 5 × mean latency/(1 − ρ)). If it is too short, give a longer --warmup."
        + ("" if advised is None else f" MSER on TTFT would cut {advised:.0f} s (advice only)."),
    )


def control_drift(one: Run, other: Run, horizon: float) -> float:
    """How far two runs without resets drift apart: request-seconds a window, first to last.

    Paired inference between runs is refused where this exceeds half of the effect.
    """
    starts = np.arange(max(one.start, other.start), min(one.end, other.end) - horizon, horizon)
    return trend(
        one.count.integral(starts, starts + horizon)
        - other.count.integral(starts, starts + horizon)
    )


def _known(values: ArrayLike) -> Floats:
    array = np.asarray(values, np.float64)
    return np.asarray(array[~np.isnan(array)])
