"""Carrying out a plan's resets at their absolute instants, one after the other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter

import anyio

from harness.load.dispatch import sleep_until
from harness.plan import Plan
from harness.records import (
    AttemptOutcome,
    PlannedReset,
    PreemptionSource,
    ResetAttempt,
    ResetMode,
    ResetRecord,
)


async def fire(
    plan: Plan,
    zero: float,
    reset: Callable[[ResetMode], Awaitable[ResetAttempt]],
    in_flight: Callable[[], int],
    journal: Callable[[ResetRecord], None],
) -> None:
    """Call ``reset`` at each planned instant and ``journal`` what came of it.

    A refused ``default`` is tried again until the next planned reset (or the end of load); a long
    wait is journaled several times under one id, and the last line counts. Cancelled in the middle
    of a reset, it journals that reset as failed.
    """
    ends = [*(planned.scheduled for planned in plan.resets[1:]), plan.end]
    for planned, until in zip(plan.resets, ends, strict=False):
        await sleep_until(zero + planned.scheduled)
        if planned.mode is ResetMode.SHAM:
            journal(_mark(planned, in_flight(), perf_counter() - zero))
            continue
        wait = plan.scenario.resets.retry_every
        attempts: list[ResetAttempt] = []
        while True:
            record = await _attempt(planned, attempts, zero, reset, in_flight, journal)
            refused = record.outcome is AttemptOutcome.REFUSED
            again = refused and planned.mode is ResetMode.DEFAULT
            if not again or perf_counter() - zero + wait >= until:
                journal(record)
                break
            if len(attempts).bit_count() == 1:
                # At 1, 2, 4 ... attempts: a killed run keeps most of them, the journal stays short.
                journal(record)
            await anyio.sleep(wait)


async def _attempt(
    planned: PlannedReset,
    attempts: list[ResetAttempt],
    zero: float,
    reset: Callable[[ResetMode], Awaitable[ResetAttempt]],
    in_flight: Callable[[], int],
    journal: Callable[[ResetRecord], None],
) -> ResetRecord:
    """Call ``reset`` once, add the attempt to ``attempts``, and return the record so far."""
    count, called = in_flight(), perf_counter() - zero
    try:
        attempts.append(await reset(planned.mode))
    except anyio.get_cancelled_exc_class():
        why = "the run ended before the answer came"
        attempts.append(ResetAttempt(called, None, AttemptOutcome.FAILED, error=why))
        journal(_record(planned, count, attempts))
        raise
    return _record(planned, count, attempts)


def _mark(planned: PlannedReset, in_flight: int, now: float) -> ResetRecord:
    return ResetRecord(
        id=planned.id,
        mode=planned.mode,
        scheduled=planned.scheduled,
        outcome=AttemptOutcome.MARKED,
        in_flight=in_flight,
        cleared_at=now,
    )


def _record(planned: PlannedReset, in_flight: int, attempts: Sequence[ResetAttempt]) -> ResetRecord:
    last = attempts[-1]
    told = [attempt.preemptions for attempt in attempts if attempt.preemptions is not None]
    return ResetRecord(
        id=planned.id,
        mode=planned.mode,
        scheduled=planned.scheduled,
        outcome=last.outcome,
        in_flight=in_flight,
        cleared_at=last.replied if last.outcome is AttemptOutcome.CLEARED else None,
        preemptions=sum(told) if told else None,
        preemptions_unresolved=0 if told else None,
        preemptions_source=PreemptionSource.REPLY if told else None,
        attempts=tuple(attempts),
    )
