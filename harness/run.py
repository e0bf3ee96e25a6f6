"""One run: examine the server, prime its cache, measure, and leave a run folder behind."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import anyio
import msgspec

import harness
from harness.errors import HarnessError, JournalError
from harness.eventloop import on_uvloop
from harness.interruption import Interruptions
from harness.journals import SCHEMA_VERSION, Manifest, RunStatus
from harness.load.prompts import Family
from harness.measurement import Ending, Instruments, Load, measure
from harness.plan import Plan
from harness.priming import Pool, prime
from harness.records import (
    Arrival,
    Progress,
    RequestRecord,
    ResetAttempt,
    ResetMode,
    ServerSample,
)
from harness.replica.doctor import Diagnosis, inspect
from harness.replica.metrics import Scraper
from harness.replica.process import ReplicaSpec
from harness.replica.reset import Resetter
from harness.sending.crew import Crew, open_crew
from harness.sending.sender import Sender
from harness.server import Server, open_server
from harness.store import RunFolder
from harness.target import Target
from harness.wire.client import open_client
from harness.workload import offers, prompts_of

LEAD = 0.2
"""Seconds between the end of priming and the run's zero, so that every task is up before it.

Writing the manifest comes in between, and of a long plan that takes longer.
"""
REPLICA_LOG = "vllm.log"


@dataclass(frozen=True)
class Watcher:
    """Who is told what happens: a line now and then, and progress twice a second."""

    say: Callable[[str], None]
    show: Callable[[Progress], None]


def run(plan: Plan, where: Target | ReplicaSpec, out: Path, watcher: Watcher) -> Ending:
    """Carry out ``plan`` on a target, or on a replica started for it, and journal it into ``out``.

    Returns how it ended. Whatever ended it early is ``Ending.error``, and the folder holds what
    was measured until then.

    Raises:
        JournalError: ``out`` cannot be created.
    """
    folder = RunFolder(out)
    one = Run(plan, folder, watcher)

    async def carry_out(interruptions: Interruptions) -> Ending:
        async with open_server(where, folder.path / REPLICA_LOG, watcher.say) as server:
            return await one.conduct(server, interruptions)

    try:
        return one.finish(until_signalled(carry_out))
    finally:
        folder.close()


def until_signalled(work: Callable[[Interruptions], Awaitable[Ending]]) -> Ending:
    """Run ``work`` on an event loop; an error of ours or a signal ends it and is its ending.

    ``work`` may take signals over for a time. Those that come after the first wait for its end:
    for a replica of our own to be gone, at most. If it was interrupted before there was something
    to report, further ones are ignored from then on: nothing is left to do but exit.
    """
    interruptions = Interruptions()
    with interruptions.caught():
        ending = on_uvloop(partial(_until_signalled, work, interruptions))
        if ending.status is RunStatus.INTERRUPTED and not ending.measured:
            interruptions.ignore()
    return ending


async def _until_signalled(
    work: Callable[[Interruptions], Awaitable[Ending]], interruptions: Interruptions
) -> Ending:
    ending = Ending(RunStatus.INTERRUPTED)
    everything = anyio.CancelScope()

    def stop(caught: signal.Signals) -> None:
        nonlocal ending
        if not everything.cancel_called:
            ending = Ending(RunStatus.INTERRUPTED, f"interrupted by {caught.name}")
            everything.cancel()

    with interruptions.told_to(stop), everything:
        try:
            ending = await work(interruptions)
        except HarnessError as error:
            ending = Ending(RunStatus.FAILED, str(error), error)
    return ending


class Run:
    """One run on a server that is up; its manifest says ``running`` until ``finish``."""

    def __init__(self, plan: Plan, folder: RunFolder, watcher: Watcher) -> None:
        self._plan = plan
        self._folder = folder
        self._watcher = watcher
        self._afterthoughts: tuple[str, ...] = ()
        self._noting = 0.0  # seconds that the manifest took to write
        self._manifest = Manifest(
            schema_version=SCHEMA_VERSION,
            status=RunStatus.RUNNING,
            plan=plan,
            harness_version=harness.__version__,
            started_utc=datetime.now(UTC).isoformat(),
            server={},
            host={},
            preparation={},
        )
        self._note()

    async def carry_out(self, server: Server, interruptions: Interruptions) -> Ending:
        """``conduct`` and ``finish``; cut short before its load, the run says so."""
        try:
            ending = await self.conduct(server, interruptions)
        except HarnessError as error:
            ending = Ending(RunStatus.FAILED, str(error), error)
        except anyio.get_cancelled_exc_class():
            self.finish(Ending(RunStatus.INTERRUPTED, "interrupted before its load began"))
            raise
        return self.finish(ending)

    async def conduct(self, server: Server, interruptions: Interruptions) -> Ending:
        """Examine, prime and measure; signals are the measurement's business while it lasts.

        Raises:
            TargetError, KeepUnsupported: the server cannot serve this run; no load was sent.
        """
        self._note(host=server.host)
        diagnosis = await inspect(server.target, {reset.mode for reset in self._plan.resets})
        diagnosis.raise_problem()
        self._note(server=diagnosis.server(), warnings=diagnosis.warnings())
        async with AsyncExitStack() as stack:
            wire = await _Wire.open(self._plan, server.target, diagnosis, stack)
            context = diagnosis.max_model_len
            for line in offers(self._plan.scenario, self._plan.arrivals, context):
                self._watcher.say(line)
            self._watcher.say(f"priming {wire.pool.prefixes} prefixes")
            began = perf_counter()
            priming = await prime(
                wire.pool,
                wire.priming(began),
                wire.reset(began) if wire.can_reset else None,
                self._watcher.show,
            )
            lead = LEAD + 2 * self._noting
            zero = perf_counter() + lead
            load = wire.begin(zero)
            self._note(
                started_utc=(datetime.now(UTC) + timedelta(seconds=lead)).isoformat(),
                preparation=msgspec.to_builtins(priming),
                warnings=diagnosis.warnings() + priming.warnings,
            )
            ending = await measure(
                self._plan,
                Instruments(load, wire.reset(zero), wire.scrape(zero)),
                self._folder,
                zero,
                interruptions=interruptions,
                watch=self._watcher.show,
                replica_ended=server.ended,
            )
            self._afterthoughts = wire.doubts()
            return ending

    def finish(self, ending: Ending) -> Ending:
        """Write down how the run ended; a manifest that cannot be written is the ending."""
        try:
            warnings = self._manifest.warnings + self._afterthoughts
            self._note(status=ending.status, reason=ending.reason, warnings=warnings)
        except JournalError as error:
            return ending if ending.error else Ending(RunStatus.FAILED, str(error), error)
        return ending

    def _note(self, **changes: Any) -> None:  # noqa: ANN401 - fields of Manifest
        began = perf_counter()
        self._manifest = msgspec.structs.replace(self._manifest, **changes)
        self._folder.write_manifest(self._manifest)
        self._noting = perf_counter() - began


class _Wire:
    """A plan's connections to its target; ``zero`` is what the stamps count from."""

    def __init__(
        self,
        plan: Plan,
        pool: Pool,
        sender: Callable[[Sequence[Arrival], float], Sender],
        crew: Crew | None,
        resetter: Resetter,
        scraper: Scraper,
    ) -> None:
        self._plan = plan
        self.pool = pool
        self._sender = sender
        self._crew = crew
        self._resetter = resetter
        self._scraper = scraper
        self.can_reset = False

    @classmethod
    async def open(
        cls, plan: Plan, target: Target, diagnosis: Diagnosis, stack: AsyncExitStack
    ) -> _Wire:
        model = diagnosis.model
        assert model is not None  # else the diagnosis had a problem
        scenario, where, timeouts = plan.scenario, target.load, plan.scenario.timeouts
        client = await stack.enter_async_context(
            open_client(timeouts, headers=where.headers, verify=where.verify())
        )

        prompts = prompts_of(scenario)  # one for all: it keeps the prefixes that it has made

        def sender(arrivals: Sequence[Arrival], zero: float) -> Sender:
            return Sender(scenario, prompts, arrivals, client, where.url, model=model, zero=zero)

        crew = None
        if scenario.load.processes > 1:
            crew = await stack.enter_async_context(open_crew(plan, where, model))
        resetter = Resetter(target.control, timeouts.reset)
        scraper = Scraper(target.metrics, timeouts.scrape)
        await stack.enter_async_context(resetter)
        await stack.enter_async_context(scraper)
        pool = _pool(prompts.family, scenario.prompts.unique_tokens)
        wire = cls(plan, pool, sender, crew, resetter, scraper)
        wire.can_reset = target.resets_allowed and ResetMode.DEFAULT in diagnosis.reset_modes
        return wire

    def priming(self, zero: float) -> Callable[[Arrival, int], Awaitable[RequestRecord]]:
        return self._sender((), zero).prime

    def reset(self, zero: float) -> Callable[[ResetMode], Awaitable[ResetAttempt]]:
        external = self._plan.scenario.resets.external
        return partial(self._resetter.attempt, external=external, zero=zero)

    def scrape(self, zero: float) -> Callable[[], Awaitable[Sequence[ServerSample]]]:
        return partial(self._scraper.scrape, zero)

    def begin(self, zero: float) -> Load:
        """What sends the load; where several processes do, they are told when."""
        if self._crew is None:
            return self._sender(self._plan.arrivals, zero)
        self._crew.begin(zero)
        return self._crew

    def doubts(self) -> tuple[str, ...]:
        """What went wrong on the side of the load, in words."""
        return tuple(
            f"{count} samples of the server's metrics are missing: {reason}"
            for reason, count in self._scraper.failures.items()
        )


def _pool(family: Family, unique_tokens: int) -> Pool:
    """What is cached before the load."""
    shared = sum(part.tokens for part in family.shared(0))
    return Pool(family.primed, shared, unique_tokens, family.branches)
