"""What each mode did, in counts: outcomes, preemptions, discarded tokens, stalls, idle windows.

Counts of one reset come from the server's replies and the client's journal and need no inference;
``figures`` pools them over the runs of one rate, a mode at a time.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from harness.analysis import idle, preemptions
from harness.analysis.cohorts import Cohorts, Window, windows
from harness.analysis.counters import Counter
from harness.analysis.experiment import cached
from harness.analysis.experiment.cached import CACHED_EDGES, PrefixGroup
from harness.analysis.experiment.recorded import Recorded
from harness.analysis.period import Period
from harness.records import AttemptOutcome, ResetMode, ResetRecord


class Spread(msgspec.Struct, frozen=True):
    """What was seen of one figure, a value a reset; all but ``count`` None if nothing was."""

    count: int
    mean: float | None = None
    median: float | None = None
    least: float | None = None
    most: float | None = None

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread:
        """Spread of the values that are known."""
        known = np.array([value for value in values if value is not None], np.float64)
        if not len(known):
            return cls(0)
        return cls(
            len(known),
            float(known.mean()),
            float(np.median(known)),
            float(known.min()),
            float(known.max()),
        )


class ResetFigures(msgspec.Struct, frozen=True):
    """One reset of one run, in counts; None was not told."""

    run: str
    id: int
    mode: ResetMode
    at: float
    """When it took effect; its planned instant if nothing did. Seconds since the run's zero."""
    outcome: AttemptOutcome
    attempts: int
    wait: float | None
    """Seconds from the planned instant until the wipe took effect; None if it never did."""
    in_flight: int
    """Requests of this client in flight at the last call."""
    running: int | None
    """Requests that ran just before, by the server's reply."""
    preempted: int | None
    unresolved: int | None
    """Requests whose preemption the counter could not show."""
    discarded_tokens: int | None
    """Computed tokens that its preemptions threw away, by the reply."""
    stall: float | None
    """Seconds an engine stepped nothing inside the reset, by the reply; the longest engine."""
    window: float | None
    """Seconds from when it took effect to the next reset or the end; None if nothing did."""
    pressure: int | None
    """Preemptions in its window that no reset caused, by the server's counter."""
    idle_windows: int
    """Idle windows in its window, and below it the seconds they lasted."""
    idle_seconds: float
    cached: tuple[float | None, ...]
    """Cached share of prompt tokens over the stretches that ``CACHED_EDGES`` begin, by the
    planned instants of the requests."""


class ModeFigures(msgspec.Struct, frozen=True):
    """One mode at one rate, over all its resets; spreads hold a value a wipe that took effect.

    For NONE, a control, all that needs a reset is empty and its windows are whole measured runs.
    """

    rate: float
    """Planned arrivals a second."""
    mode: ResetMode
    runs: int
    planned: int
    outcomes: dict[AttemptOutcome, int]
    attempts: int
    """Calls of the reset route, over all resets."""
    took_effect: int
    """Resets that cleared something; for a sham, marks."""
    in_flight: Spread
    """Requests of this client in flight at the wipe."""
    wait: Spread
    """Seconds from the planned instant until the wipe took effect."""
    preemptions: Spread
    """Requests preempted because of the reset."""
    unresolved: int
    """Further requests, over all resets, whose preemption the counter could not show."""
    preempted_share: float | None
    """Preempted over running requests, summed over the resets whose reply tells both."""
    discarded_tokens: Spread
    """Computed tokens thrown away: what has to be prefilled again."""
    stall: Spread
    """Seconds an engine stood still inside the reset."""
    minutes: float
    """Length of its windows together."""
    idle_per_minute: float | None
    """Idle windows a minute in its windows, and what λ·P₀ says of their own share P₀."""
    idle_expected_per_minute: float | None
    pressure_per_minute: float | None
    """Preemptions a minute in its windows that no reset caused; None without the counter."""
    cached_by_prefix: tuple[PrefixGroup, ...]
    """Groups double in size, so that each draws about equally often under a Zipf law."""


def figures(runs: Sequence[Recorded]) -> tuple[ModeFigures, ...]:
    """Figures of every mode that was planned at each rate, in the order of rates and modes."""
    rows = {id(run): tuple(of_run(run)) for run in runs}
    found = []
    for rate in sorted({run.rate for run in runs}):
        for mode in ResetMode:
            own = [run for run in runs if run.rate == rate and mode in run.planned_modes]
            if own:
                resets = [row for run in own for row in rows[id(run)] if row.mode is mode]
                found.append(_pooled(rate, mode, own, resets))
    return tuple(found)


def of_run(run: Recorded) -> Iterator[ResetFigures]:
    """Every recorded reset of ``run``, in order."""
    period = run.summary.period
    counter = Counter.read(run.journals.server, preemptions.COUNTER)
    cohorts = Cohorts(run.journals.requests)
    own = {window.index: window for window in windows(run.resets, period)}
    for index, row in enumerate(run.summary.resets):
        record, window = row.reset.record, own.get(index)
        told = _told(record)
        quiet = _idle(run, window.at, window.end) if window else (0, 0.0)
        yield ResetFigures(
            run=run.name,
            id=record.id,
            mode=record.mode,
            at=window.at if window else record.scheduled,
            outcome=record.outcome,
            attempts=len(record.attempts),
            wait=row.wait,
            in_flight=record.in_flight,
            running=_sum(told, "running"),
            preempted=record.preemptions,
            unresolved=record.preemptions_unresolved,
            discarded_tokens=_sum(told, "discarded_tokens"),
            stall=max(_numbers(told, "stall_seconds"), default=None),
            window=window.end - window.at if window else None,
            pressure=_pressure(counter, window, record) if window and counter else None,
            idle_windows=quiet[0],
            idle_seconds=quiet[1],
            cached=cached.after(cohorts, window) if window else (None,) * len(CACHED_EDGES),
        )


def _told(record: ResetRecord) -> list[dict[str, Any]]:
    """The reply of each pod to the last attempt; empty unless every pod replied."""
    reply = record.attempts[-1].reply if record.attempts else None
    if reply is None:
        return []
    pods = reply.get("pods")
    replies = [pod.get("reply") for pod in pods] if isinstance(pods, list) else [reply]
    return replies if all(isinstance(one, dict) for one in replies) else []


def _numbers(told: list[dict[str, Any]], name: str) -> list[float]:
    return [one[name] for one in told if isinstance(one.get(name), int | float)]


def _sum(told: list[dict[str, Any]], name: str) -> int | None:
    """Sum over the pods; None unless every pod told it."""
    values = _numbers(told, name)
    return round(sum(values)) if values and len(values) == len(told) else None


def _pressure(counter: Counter, window: Window, record: ResetRecord) -> int:
    """What the counter grew by in the window beyond the reset's own preemptions.

    A victim counts when it next emits a token, which a window of several seconds holds.
    """
    return max(0, round(counter.growth(window.called, window.end)) - (record.preemptions or 0))


def _idle(run: Recorded, start: float, end: float) -> tuple[int, float]:
    """Idle windows between two instants, and how many seconds they lasted."""
    if end <= start:
        return 0, 0.0
    seen = idle.measure(run.in_flight, Period(start, end), run.rate)
    return seen.count, (seen.share or 0.0) * (end - start)


def _pooled(
    rate: float, mode: ResetMode, runs: Sequence[Recorded], rows: Sequence[ResetFigures]
) -> ModeFigures:
    planned = [reset for run in runs for reset in run.journals.manifest.plan.resets]
    effective = [row for row in rows if row.window is not None]
    if mode is ResetMode.NONE:
        idles = [(run.summary.idle.count, _idle_seconds(run)) for run in runs]
        seconds = sum(run.summary.period.length for run in runs)
        pressure = [_control_pressure(run) for run in runs]
    else:
        idles = [(row.idle_windows, row.idle_seconds) for row in effective]
        seconds = sum(row.window or 0.0 for row in effective)
        pressure = [row.pressure for row in effective]
    minutes = seconds / 60
    both = [(row.preempted, row.running) for row in effective]
    known = [(a, b) for a, b in both if a is not None and b is not None]
    running = sum(b for _, b in known)
    poisson = all(run.journals.manifest.plan.scenario.poisson_rate for run in runs)
    expected = rate * sum(s for _, s in idles) if poisson else None
    told = minutes > 0 and bool(pressure) and None not in pressure
    return ModeFigures(
        rate=rate,
        mode=mode,
        runs=len(runs),
        planned=sum(reset.mode is mode for reset in planned),
        outcomes=dict(Tally(row.outcome for row in rows)),
        attempts=sum(row.attempts for row in rows),
        took_effect=len(effective),
        in_flight=Spread.of(row.in_flight for row in effective),
        wait=Spread.of(row.wait for row in effective),
        preemptions=Spread.of(row.preempted for row in effective),
        unresolved=sum(row.unresolved or 0 for row in effective),
        preempted_share=sum(a for a, _ in known) / running if running else None,
        discarded_tokens=Spread.of(row.discarded_tokens for row in effective),
        stall=Spread.of(row.stall for row in effective),
        minutes=minutes,
        idle_per_minute=sum(count for count, _ in idles) / minutes if minutes else None,
        idle_expected_per_minute=expected / minutes if minutes and expected is not None else None,
        pressure_per_minute=sum(p or 0 for p in pressure) / minutes if told else None,
        cached_by_prefix=cached.by_prefix(mode, runs),
    )


def _idle_seconds(run: Recorded) -> float:
    return (run.summary.idle.share or 0.0) * run.summary.period.length


def _control_pressure(run: Recorded) -> int | None:
    counter = Counter.read(run.journals.server, preemptions.COUNTER)
    period = run.summary.period
    return None if counter is None else round(counter.growth(period.start, period.end))
