"""The queue of all runs of one rate: undisturbed load, service law, and what it predicts."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from harness import settling
from harness.analysis import idle, queueing
from harness.analysis.cohorts import effect
from harness.analysis.experiment.recorded import Recorded
from harness.analysis.occupancy import quiet
from harness.analysis.period import Period
from harness.analysis.queueing import Fit, Window
from harness.settling import ProcessorSharing

OTHER_RATES = (0.5, 0.75, 1.25, 1.5)
"""Shares of the measured rate at which the fit is asked what it predicts."""


class Prediction(msgspec.Struct, frozen=True):
    """What the service law says of a rate that was not run; extrapolated, not measured."""

    rate: float
    utilisation: float
    in_flight: float | None
    """Mean; None at and above capacity."""
    idle_per_minute: float


class ServiceLaw(msgspec.Struct, frozen=True):
    """Processor sharing, fitted where no wipe was fresh: each of n progresses at 1/(a + b·n)."""

    a: float
    """Seconds."""
    b: float
    """Seconds; 1/b is the capacity with the cache as it was there."""
    b_low: float
    b_high: float
    departures: int
    capacity: float
    """Requests a second."""
    predictions: tuple[Prediction, ...]


class Queue(msgspec.Struct, frozen=True):
    """The queue at one rate, where no wipe was fresh.

    That is up to the first reset, then the second half of each time between resets; a control's
    whole run.
    """

    in_flight: float | None
    """L: time average of the requests in flight."""
    latency: float | None
    """T = L/λ, mean seconds in flight."""
    utilisation: float | None
    """ρ = λb by the service law; None without one."""
    relaxation: float | None
    """T/(1 − ρ): seconds in which the queue forgets; ρ unknown is taken as 0."""
    law: ServiceLaw | None
    idle_windows: int
    """Idle windows seen there in the first run of each plan (runs of one plan fall idle together),
    and below it in how many seconds."""
    idle_seconds: float


def measure(runs: Sequence[Recorded]) -> Queue:
    """The undisturbed queue of ``runs``, which have one rate, pooled."""
    rate, level = runs[0].rate, undisturbed(runs)
    spans = {run.name: _spans(run) for run in runs}
    fit = _fit(runs, spans)
    latency = level / rate if level is not None else None
    rho = fit.law.utilisation(rate) if fit else None
    relaxation = settling.relaxation(latency, rho or 0.0) if latency is not None else None
    plans = {run.summary.plan_digest: run for run in reversed(runs)}
    alone = [
        idle.measure(run.in_flight, Period(start, end), rate)
        for run in plans.values()
        for start, end in spans[run.name]
    ]
    return Queue(
        in_flight=level,
        latency=latency,
        utilisation=rho,
        relaxation=relaxation if relaxation != float("inf") else None,
        law=_described(fit, rate) if fit else None,
        idle_windows=sum(one.count for one in alone),
        idle_seconds=sum(end - start for run in plans.values() for start, end in spans[run.name]),
    )


def undisturbed(runs: Sequence[Recorded]) -> float | None:
    """L where no wipe was fresh: time average of the requests in flight; None without such time."""
    spans = [(run.in_flight, span) for run in runs for span in _spans(run)]
    seconds = sum(end - start for _, (start, end) in spans)
    area = sum(float(count.integral(*span)) for count, span in spans)
    return area / seconds if seconds else None


def law_of(queue: Queue) -> ProcessorSharing | None:
    """The fitted law of ``queue`` as ``queueing`` takes it."""
    return ProcessorSharing(queue.law.a, queue.law.b) if queue.law else None


def _spans(run: Recorded) -> list[Window]:
    found = [effect(reset) for reset in run.resets]
    period = run.summary.period
    if period.length <= 0:
        return []
    effects = [at for at in found if at is not None]
    return [(start, end) for start, end in quiet(period, effects) if end > start]


def _fit(runs: Sequence[Recorded], spans: dict[str, list[Window]]) -> Fit | None:
    """One law for all runs: they are laid one behind the other on one axis of time."""
    sent, finished, windows = [], [], []
    offset = 0.0
    for run in runs:
        frame = run.journals.requests.frame
        starts, ends = (frame[name].to_numpy(np.float64) for name in ("sent", "finished"))
        sent.append(starts + offset)
        finished.append(ends + offset)
        windows += [(start + offset, end + offset) for start, end in spans[run.name]]
        offset += max(float(np.nanmax(ends, initial=0.0)), run.journals.manifest.plan.end) + 1.0
    if not windows:
        return None
    return queueing.fit(np.concatenate(sent), np.concatenate(finished), windows)


def _described(fit: Fit, rate: float) -> ServiceLaw:
    law = fit.law
    others = [rate * share for share in OTHER_RATES]
    return ServiceLaw(
        a=law.a,
        b=law.b,
        b_low=fit.b_interval[0],
        b_high=fit.b_interval[1],
        departures=fit.departures,
        capacity=law.capacity,
        predictions=tuple(
            Prediction(
                rate=other,
                utilisation=law.utilisation(other),
                in_flight=law.in_flight(other) if law.utilisation(other) < 1 else None,
                idle_per_minute=60 * law.idle_starts(other),
            )
            for other in others
        ),
    )
