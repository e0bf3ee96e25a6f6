"""The measured part of a run: load, resets and sampling in one task group, written to journals.

Tasks here never raise for what a server does. Whatever ends the measurement early calls ``_stop``
with its reason; the first one wins, and the journals keep all that was seen until then.
"""

from __future__ import annotations

import signal
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Protocol

import anyio
from anyio import to_thread

from harness.errors import HarnessError, JournalError, RunAborted
from harness.interruption import Interruptions
from harness.journals import RunStatus
from harness.load.dispatch import sleep_until
from harness.plan import Plan
from harness.records import (
    Outcome,
    Phase,
    Progress,
    RequestRecord,
    ResetAttempt,
    ResetMode,
    ResetRecord,
    ServerSample,
)
from harness.resets import fire
from harness.sending.sender import Ledger
from harness.store import RunFolder
from harness.ticker import tick

SAMPLE_EVERY = 0.5
FLUSH_EVERY = 0.5
WATCH_EVERY = 0.5
RECENT = 5.0
"""Seconds of ended requests whose TTFT the live display shows."""


@dataclass(frozen=True)
class Ending:
    """How a measurement ended."""

    status: RunStatus
    reason: str | None = None
    error: HarnessError | None = None
    """What to raise once the partial report is out; None for a complete or interrupted run."""
    measured: bool = False
    """Whether load began, so that there is something to report."""


class Load(Protocol):
    """Sends a plan's arrivals: a ``Sender`` from this process, a ``Crew`` from several."""

    @property
    def last_heard(self) -> float:
        """When a byte of a response last arrived, seconds since zero; 0.0 if none has."""

    async def carry_out(self, ledger: Ledger, sending: anyio.CancelScope) -> None:
        """Send every arrival and return when each has ended and is in ``ledger``.

        Cancelling ``sending`` stops further arrivals and lets those in flight end. After a
        cancellation of the whole those in flight are in the ledger too, as ``abandoned``.

        Raises:
            RunAborted: a part of the load can no longer be sent.
        """


@dataclass(frozen=True)
class Instruments:
    """What a measurement acts through; all instants are seconds since its zero."""

    load: Load
    reset: Callable[[ResetMode], Awaitable[ResetAttempt]]
    scrape: Callable[[], Awaitable[Sequence[ServerSample]]]
    """Sample every engine; empty where a scrape failed."""


async def measure(
    plan: Plan,
    instruments: Instruments,
    folder: RunFolder,
    zero: float,
    *,
    interruptions: Interruptions,
    watch: Callable[[Progress], None],
    replica_ended: Callable[[], Awaitable[HarnessError]] | None = None,
) -> Ending:
    """Carry out ``plan`` from ``zero`` (on ``time.perf_counter``'s clock) and journal everything.

    Returns when the last request has ended, or the reason to stop is dealt with. ``replica_ended``
    returns when a managed replica dies.

    The first SIGINT stops sending and drains, a second one or SIGTERM stops at once.
    """
    measurement = _Measurement(plan, instruments, folder, zero, watch)
    with interruptions.told_to(measurement.interrupt):
        return await measurement.carry_out(replica_ended)


class _Measurement:
    def __init__(
        self,
        plan: Plan,
        instruments: Instruments,
        folder: RunFolder,
        zero: float,
        watch: Callable[[Progress], None],
    ) -> None:
        self._plan = plan
        self._do = instruments
        self._folder = folder
        self._zero = zero
        self._watch = watch
        self._sending = anyio.CancelScope()
        self._in_flight = anyio.CancelScope()
        self._last_look = anyio.CancelScope()
        self._ending = Ending(RunStatus.COMPLETE, measured=True)
        self._outcomes: Counter[Outcome] = Counter()
        self._sent = 0
        self._busy_since = 0.0
        self._recent: deque[tuple[float, float]] = deque()
        self._failing_since: float | None = None
        self._last_failure: RequestRecord | None = None
        self._last_reset: ResetRecord | None = None

    async def carry_out(
        self, replica_ended: Callable[[], Awaitable[HarnessError]] | None
    ) -> Ending:
        async with anyio.create_task_group() as around:
            for task in (self._sample, self._flush, self._oversee):
                around.start_soon(task)
            around.start_soon(tick, self._zero, self._folder.append_client)
            if replica_ended is not None:
                around.start_soon(self._await_death, replica_ended)
            async with anyio.create_task_group() as firing:
                firing.start_soon(self._fire_resets)
                await self._load()
                firing.cancel_scope.cancel()
            around.cancel_scope.cancel()
        await self._finish()
        return self._ending

    @property
    def _now(self) -> float:
        return perf_counter() - self._zero

    @property
    def _pending(self) -> int:
        return self._sent - self._outcomes.total()

    # Load

    async def _load(self) -> None:
        """Send every arrival; return when each has ended, the drain's limit included."""
        limit = self._zero + self._plan.end + self._plan.scenario.timeouts.drain - perf_counter()
        ledger = Ledger(self._began, self._note, self._folder.append_client)
        with anyio.move_on_after(limit) as in_time, self._in_flight:
            try:
                await self._do.load.carry_out(ledger, self._sending)
            except RunAborted as error:
                self._stop(error)
        if in_time.cancelled_caught:
            self._stop(
                RunAborted(
                    f"{self._outcomes[Outcome.ABANDONED]} requests had not ended "
                    f"{self._plan.scenario.timeouts.drain:g} s after the last arrival; the "
                    "rate may exceed what the replica sustains. Lower --rate or raise "
                    "timeouts.drain."
                )
            )

    def _began(self) -> None:
        if not self._pending:
            self._busy_since = self._now
        self._sent += 1

    def _note(self, record: RequestRecord) -> None:
        self._folder.append_request(record)
        self._outcomes[record.outcome] += 1
        if record.outcome is Outcome.OK:
            self._failing_since = None
            if record.first_token is not None:
                self._recent.append((record.finished, record.first_token - record.scheduled))
        else:
            self._last_failure = record
            if self._failing_since is None:
                self._failing_since = record.finished

    async def _fire_resets(self) -> None:
        await fire(
            self._plan, self._zero, self._do.reset, lambda: self._pending, self._journal_reset
        )

    def _journal_reset(self, record: ResetRecord) -> None:
        self._folder.append_reset(record)
        self._last_reset = record

    # Watching

    async def _sample(self) -> None:
        due = perf_counter()
        while True:
            for sample in await self._do.scrape():
                self._folder.append_server(sample)
            due = max(due + SAMPLE_EVERY, perf_counter())
            await sleep_until(due)

    async def _flush(self) -> None:
        while True:
            await anyio.sleep(FLUSH_EVERY)
            try:
                await to_thread.run_sync(self._folder.flush)
            except JournalError as error:
                self._stop(error, at_once=True)
                return

    async def _oversee(self) -> None:
        """Show progress, and give up on a server that answers nothing or only failures."""
        patience = self._plan.scenario.timeouts.give_up
        while True:
            self._watch(self._progress())
            await anyio.sleep(WATCH_EVERY)
            silent = self._now - max(self._do.load.last_heard, self._busy_since)
            if self._pending and silent > patience:
                self._stop(
                    RunAborted(
                        f"the server sent nothing for {silent:.0f} s while {self._pending} "
                        "requests were in flight. Look at its log; timeouts.give_up is how long "
                        "to wait."
                    ),
                    at_once=True,
                )
                return
            failing = self._now - self._failing_since if self._failing_since is not None else 0.0
            if failing > patience and self._last_failure is not None:
                self._stop(
                    RunAborted(
                        f"every request has failed for {failing:.0f} s, the last one with "
                        f"{self._last_failure.outcome}: {self._last_failure.error}"
                    )
                )
                return

    async def _await_death(self, replica_ended: Callable[[], Awaitable[HarnessError]]) -> None:
        self._stop(await replica_ended(), at_once=True)

    # Ending

    def interrupt(self, caught: signal.Signals) -> None:
        """Stop sending and drain; for SIGTERM, or if sending has stopped, end at once."""
        at_once = caught is signal.SIGTERM or self._sending.cancel_called
        if self._ending.status is RunStatus.COMPLETE:
            reason = f"interrupted by {caught.name}"
            self._ending = Ending(RunStatus.INTERRUPTED, reason, measured=True)
        self._halt(at_once)

    def _stop(self, error: HarnessError, *, at_once: bool = False) -> None:
        if self._ending.status is RunStatus.COMPLETE:
            self._ending = Ending(RunStatus.FAILED, str(error), error, measured=True)
        self._halt(at_once)

    def _halt(self, at_once: bool) -> None:
        self._sending.cancel()
        if at_once:
            self._in_flight.cancel()
            self._last_look.cancel()

    async def _finish(self) -> None:
        """One last sample (the counter shows late preemptions) and one last flush."""
        with self._last_look:
            for sample in await self._do.scrape():
                self._folder.append_server(sample)
        try:
            self._folder.flush()
        except JournalError as error:
            self._stop(error)

    def _progress(self) -> Progress:
        now = self._now
        while self._recent and self._recent[0][0] < now - RECENT:
            self._recent.popleft()
        return Progress(
            phase=self._phase(now),
            t=now,
            end=self._plan.end,
            in_flight=self._pending,
            sent=self._sent,
            done=self._outcomes[Outcome.OK],
            failed=self._outcomes.total() - self._outcomes[Outcome.OK],
            ttft=median(ttft for _, ttft in self._recent) if self._recent else None,
            resets_done=0 if self._last_reset is None else self._last_reset.id + 1,
            resets_planned=len(self._plan.resets),
            last_reset=self._last_reset,
        )

    def _phase(self, now: float) -> Phase:
        if self._sending.cancel_called or now > self._plan.end:
            return Phase.DRAINING
        return Phase.WARMING if now < self._plan.scenario.load.warmup else Phase.MEASURING
