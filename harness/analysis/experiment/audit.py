"""The checks of every report, made on all runs of one rate together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from harness.analysis import counters, queueing
from harness.analysis.experiment import checks
from harness.analysis.experiment.checks import Check
from harness.analysis.experiment.pairs import Run
from harness.analysis.experiment.recorded import Recorded
from harness.analysis.experiment.service import Queue, law_of, undisturbed
from harness.analysis.occupancy import RUNNING_AND_WAITING
from harness.analysis.queueing import PoissonCheck
from harness.records import ResetMode


def check(recorded: Sequence[Recorded], runs: Sequence[Run], queue: Queue) -> tuple[Check, ...]:
    """All checks of the runs of one rate.

    Args:
        recorded: the runs.
        runs: the same as contrasts see them, as far as they can.
        queue: theirs.
    """
    measured = [run for run in recorded if run.summary.period.length > 0]
    if not measured:
        return ()
    rate = measured[0].rate
    plan = measured[0].journals.manifest.plan
    poisson = plan.scenario.poisson_rate is not None
    found = [
        _worst(_gauges(run) for run in measured),
        *([checks.arrivals(_poisson(measured))] if poisson else []),
        _preemptions(measured, rate),
        *([_idle_starts(rate, queue)] if poisson else []),
        checks.shams(runs),
    ]
    if queue.latency is not None:
        warmup = plan.scenario.load.warmup
        advised = max((cut for run in measured if (cut := _mser(run)) is not None), default=None)
        found.append(checks.warmup(warmup, queue.latency, queue.utilisation, advised))
    return tuple(found)


def _idle_starts(rate: float, queue: Queue) -> Check:
    return checks.idle_starts(law_of(queue), rate, queue.idle_windows, queue.idle_seconds)


def _mser(run: Recorded) -> float | None:
    """Seconds that MSER would cut of the load before the first reset."""
    frame = run.journals.requests.frame.sort_values("scheduled", kind="stable")
    first = min((r.scheduled for r in run.journals.manifest.plan.resets), default=np.inf)
    frame = frame[frame["scheduled"] < first].dropna(subset=["first_token"])
    scheduled = frame["scheduled"].to_numpy(np.float64)
    cut = queueing.mser(frame["first_token"].to_numpy(np.float64) - scheduled)
    return None if cut is None else float(scheduled[cut]) if cut else 0.0


def _gauges(run: Recorded) -> Check:
    frame, period = run.journals.requests.frame, run.summary.period
    gauges = counters.total(run.journals.server, RUNNING_AND_WAITING)
    law = queueing.littles_law(
        frame["sent"],
        frame["finished"],
        (period.start, period.end),
        gauges.times if gauges else (),
        gauges.values if gauges else (),
    )
    return checks.gauges(law)


def _worst(found: Iterable[Check]) -> Check:
    """The one that failed, else the one furthest from what it expects, else any."""

    def badness(one: Check) -> tuple[bool, float]:
        known = one.observed is not None and one.expected
        return one.passed is False, abs((one.observed or 0) / (one.expected or 1) - 1) * bool(known)

    return max(found, key=badness)


def _poisson(runs: Sequence[Recorded]) -> PoissonCheck | None:
    """The worst plan's test, its p-values raised by the number of plans (Bonferroni)."""
    plans: dict[str, Recorded] = {}
    for run in runs:
        plans.setdefault(run.summary.plan_digest, run)
    told = [found for run in plans.values() if (found := _poisson_of(run))]
    if not told:
        return None
    worst = min(told, key=lambda one: one.p_value)
    return PoissonCheck(
        worst.arrivals,
        min(1.0, worst.uniform * len(told)),
        min(1.0, worst.lewis * len(told)),
    )


def _poisson_of(run: Recorded) -> PoissonCheck | None:
    sent = run.journals.requests.frame["sent"].dropna()
    return queueing.poisson(sent, (run.summary.period.start, run.summary.period.end))


def _preemptions(runs: Sequence[Recorded], rate: float) -> Check:
    """Against λT of the runs in which the resets were made, where no wipe was fresh.

    Not of all their time: a wipe piles requests up after it, but it met those from before it.
    """
    own = [run for run in runs if ResetMode.PREEMPT in run.planned_modes]
    counts = [
        np.nan if record.preemptions is None else float(record.preemptions)
        for run in own
        for record in (reset.record for reset in run.resets)
        if record.mode is ResetMode.PREEMPT and record.cleared_at is not None
    ]
    level = undisturbed(own)
    if level is None:
        none = checks.preemptions([], rate, 0.0)
        return msgspec.structs.replace(none, expected=None)
    return checks.preemptions(counts, rate, level / rate)
