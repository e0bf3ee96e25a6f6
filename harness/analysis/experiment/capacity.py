"""Hot and cold capacity: the highest rates sustained with a warm cache and an always cold one.

A run is saturated when fewer requests end than are sent, over the second half of what was measured,
by more than chance. The capacity lies between the highest rate that was kept up with and the lowest
that was not; what a saturated run completes is less than its capacity, since part of its work goes
into requests that have not ended yet. The law fitted to the highest rate that was kept up with
extrapolates to a capacity of its own, shown beside them as a prediction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from harness.analysis import queueing
from harness.analysis.experiment.recorded import Recorded
from harness.records import ResetMode


class Throughput(msgspec.Struct, frozen=True):
    """One run's second half: what came in and what went out."""

    run: str
    mode: ResetMode
    """NONE with a warm cache; otherwise the mode whose resets keep it cold."""
    rate: float
    """Planned arrivals a second, and below it sent and ended a second in that half."""
    sent: float
    ended: float
    in_flight: tuple[int, int]
    """At both ends of that half."""
    cached_share: float | None
    """Of the prompt tokens of the measured period; near 0 is what cold means."""
    saturated: bool
    predicted: float | None
    """Capacity by the service law fitted to this run; None where it shows no sharing."""


class Bracket(msgspec.Struct, frozen=True):
    """What the runs of one cache state say of its capacity, requests a second."""

    mode: ResetMode
    kept_up: float | None
    """The highest rate that was kept up with; None if none was."""
    fell_behind: float | None
    """The lowest rate that was not kept up with; None if all were."""
    ended: float | None
    """The most that ended a second where not all did: capacity is at least that."""
    predicted: float | None
    """By the law fitted to the highest rate that was kept up with; extrapolated, not measured, and
    None where what was measured contradicts it."""
    cached_share: float | None
    """Mean over its runs."""


class Capacity(msgspec.Struct, frozen=True):
    """Hot capacity first; between it and a cold one the replica is vulnerable to a wipe."""

    brackets: tuple[Bracket, ...]
    runs: tuple[Throughput, ...]


def measure(recorded: Sequence[Recorded]) -> Capacity:
    """Throughput of every run that measured anything, and brackets by mode."""
    runs = tuple(
        _throughput(run)
        for run in sorted(recorded, key=lambda one: one.rate)
        if run.summary.period.length > 0 and len(run.planned_modes) == 1
    )
    modes = [mode for mode in ResetMode if any(run.mode is mode for run in runs)]
    brackets = (_bracket(mode, [run for run in runs if run.mode is mode]) for mode in modes)
    return Capacity(tuple(brackets), runs)


def _throughput(run: Recorded) -> Throughput:
    period = run.summary.period
    middle, end = (period.start + period.end) / 2, period.end
    frame = run.journals.requests.frame
    sent, finished = (frame[name].to_numpy(np.float64) for name in ("sent", "finished"))
    came = int(np.sum((sent >= middle) & (sent < end)))
    went = int(np.sum((finished >= middle) & (finished < end)))
    fit = queueing.fit(sent, finished, [(period.start, end)]) if len(frame) else None
    # In flight grew by more than three standard deviations of a stationary count, and by a tenth
    # of what came in.
    grown = came - went
    levels = run.in_flight.at([middle, end])
    (mode,) = run.planned_modes
    return Throughput(
        run=run.name,
        mode=mode,
        rate=run.rate,
        sent=came / (end - middle),
        ended=went / (end - middle),
        in_flight=(int(levels[0]), int(levels[1])),
        cached_share=run.summary.volume.cached_share,
        saturated=grown > 3 * math.sqrt(max(float(levels[0]), 1.0)) and grown > 0.1 * came,
        predicted=fit.law.capacity if fit else None,
    )


def _bracket(mode: ResetMode, runs: Sequence[Throughput]) -> Bracket:
    kept = [run for run in runs if not run.saturated and run.sent]
    full = [run for run in runs if run.saturated]
    best = max(kept, key=lambda run: run.sent, default=None)
    behind = min((run.sent for run in full), default=None)
    law = best.predicted if best else None
    if best and law and not best.sent < law < (behind or math.inf):
        law = None
    shares = [run.cached_share for run in runs if run.cached_share is not None]
    return Bracket(
        mode=mode,
        kept_up=best.sent if best else None,
        fell_behind=behind,
        ended=max((run.ended for run in full), default=None),
        predicted=law,
        cached_share=float(np.mean(shares)) if shares else None,
    )
