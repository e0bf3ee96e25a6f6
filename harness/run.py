"""One run: examine the server, prime its cache, measure, and leave a run folder behind."""

from __future__ import annotations

import gc
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
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
from harness.journals import SCHEMA_VERSION, Manifest, RunStatus
from harness.load.prompts import as_text
from harness.measurement import Ending, Instruments, measure
from harness.plan import Plan, prompts_of
from harness.priming import prime
from harness.records import Arrival, Progress, RequestRecord, ResetMode
from harness.replica.doctor import Diagnosis, inspect
from harness.replica.metrics import Scraper
from harness.replica.process import ReplicaSpec
from harness.replica.reset import Resetter
from harness.scenario import LengthLaw, PromptForm
from harness.server import Server, open_server
from harness.store import RunFolder
from harness.target import Target
from harness.wire.client import open_client
from harness.wire.completions import Completions

LEAD = 0.2
"""Seconds between the end of priming and the run's zero, so that every task is up before it."""
REPLICA_LOG = "vllm.log"
COLLECT_AFTER = 50_000
"""Objects that come to be, less those that go, between garbage collections."""


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

    async def carry_out() -> Ending:
        async with open_server(where, folder.path / REPLICA_LOG, watcher.say) as server:
            return await one.conduct(server)

    try:
        return one.finish(on_uvloop(carry_out))
    finally:
        folder.close()


def on_uvloop(work: Callable[[], Awaitable[Ending]]) -> Ending:
    """Run ``work`` on uvloop; an error of ours or a signal ends it and is its ending."""
    run_work = partial(_until_signalled, work)
    with rare_collections():
        return anyio.run(run_work, backend="asyncio", backend_options={"use_uvloop": True})


@contextmanager
def rare_collections() -> Iterator[None]:
    """Keep the garbage collector from what runs meanwhile: in a pass nothing is sent or stamped.

    What exists now, imports above all, is passed over: a full collection would go through all of
    it for tens of milliseconds. And passes are few, since a request leaves no garbage to collect:
    by Python's own thresholds, the longest pass in 8 s of 600 streams took 10 to 19 ms.
    """
    gc.collect()
    gc.freeze()
    before = gc.get_threshold()
    gc.set_threshold(COLLECT_AFTER, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


async def _until_signalled(work: Callable[[], Awaitable[Ending]]) -> Ending:
    ending = Ending(RunStatus.INTERRUPTED)

    async def listen(everything: anyio.CancelScope) -> None:
        nonlocal ending
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for caught in signals:
                ending = Ending(RunStatus.INTERRUPTED, f"interrupted by {caught.name}")
                everything.cancel()
                return

    async with anyio.create_task_group() as group:
        group.start_soon(listen, group.cancel_scope)
        try:
            ending = await work()
        except HarnessError as error:
            ending = Ending(RunStatus.FAILED, str(error), error)
        group.cancel_scope.cancel()
    return ending


class Run:
    """One run on a server that is up; its manifest says ``running`` until ``finish``."""

    def __init__(self, plan: Plan, folder: RunFolder, watcher: Watcher) -> None:
        self._plan = plan
        self._folder = folder
        self._watcher = watcher
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

    async def conduct(self, server: Server) -> Ending:
        """Examine, prime and measure.

        Raises:
            TargetError, KeepUnsupported: the server cannot serve this run; no load was sent.
        """
        self._note(host=server.host)
        diagnosis = await inspect(server.target, {reset.mode for reset in self._plan.resets})
        diagnosis.raise_problem()
        self._note(server=diagnosis.server(), warnings=diagnosis.warnings())
        async with AsyncExitStack() as stack:
            wire = await _Wire.open(self._plan, server.target, diagnosis, stack)
            self._watcher.say(f"priming {self._plan.scenario.prompts.prefixes} prefixes")
            began = perf_counter()
            priming = await prime(
                self._plan.scenario.prompts,
                wire.priming(began),
                wire.reset(began) if wire.can_reset else None,
                self._watcher.show,
            )
            zero = perf_counter() + LEAD
            self._note(
                started_utc=(datetime.now(UTC) + timedelta(seconds=LEAD)).isoformat(),
                preparation=msgspec.to_builtins(priming),
                warnings=diagnosis.warnings() + priming.warnings,
            )
            return await measure(
                self._plan,
                wire.instruments(zero),
                self._folder,
                zero,
                watch=self._watcher.show,
                replica_ended=server.ended,
            )

    def finish(self, ending: Ending) -> Ending:
        """Write down how the run ended; a manifest that cannot be written is the ending."""
        try:
            self._note(status=ending.status, reason=ending.reason)
        except JournalError as error:
            return ending if ending.error else Ending(RunStatus.FAILED, str(error), error)
        return ending

    def _note(self, **changes: Any) -> None:  # noqa: ANN401 - fields of Manifest
        self._manifest = msgspec.structs.replace(self._manifest, **changes)
        self._folder.write_manifest(self._manifest)


class _Wire:
    """A plan's connections to its target; ``zero`` is what the stamps count from."""

    def __init__(
        self, plan: Plan, completions: partial[Completions], resetter: Resetter, scraper: Scraper
    ) -> None:
        self._scenario = plan.scenario
        self._prompts = prompts_of(plan.scenario)
        self._completions = completions
        self._resetter = resetter
        self._scraper = scraper
        self.can_reset = False

    @classmethod
    async def open(
        cls, plan: Plan, target: Target, diagnosis: Diagnosis, stack: AsyncExitStack
    ) -> _Wire:
        assert diagnosis.model is not None  # else the diagnosis had a problem
        scenario, load, timeouts = plan.scenario, target.load, plan.scenario.timeouts
        client = open_client(timeouts, headers=load.headers, verify=load.verify())
        completions = partial(
            Completions,
            await stack.enter_async_context(client),
            load.url,
            model=diagnosis.model,
            form=scenario.prompts.form,
            ignore_eos=scenario.output.law is LengthLaw.FIXED,
        )
        resetter = Resetter(target.control, timeouts.reset)
        scraper = Scraper(target.metrics, timeouts.scrape)
        await stack.enter_async_context(resetter)
        await stack.enter_async_context(scraper)
        wire = cls(plan, completions, resetter, scraper)
        wire.can_reset = ResetMode.DEFAULT in diagnosis.reset_modes
        return wire

    def reset(self, zero: float) -> partial[Any]:
        return partial(self._resetter.attempt, external=self._scenario.resets.external, zero=zero)

    def priming(self, zero: float) -> Callable[[Arrival, int], Awaitable[RequestRecord]]:
        completions = self._completions(zero=zero)

        async def send(arrival: Arrival, visit: int) -> RequestRecord:
            ids = self._prompts.priming(arrival.prefix, visit)
            return await completions.send(arrival, self._prompt(ids))

        return send

    def instruments(self, zero: float) -> Instruments:
        completions = self._completions(zero=zero)

        async def send(arrival: Arrival, started: float) -> RequestRecord:
            ids = self._prompts.token_ids(arrival.prefix, arrival.id)
            return await completions.send(arrival, self._prompt(ids), started)

        return Instruments(
            send=send,
            reset=self.reset(zero),
            scrape=partial(self._scraper.scrape, zero),
            last_heard=lambda: completions.last_heard,
            abandon=completions.abandon,
        )

    def _prompt(self, token_ids: list[int]) -> list[int] | str:
        ids_on_the_wire = self._scenario.prompts.form is PromptForm.TOKEN_IDS
        return token_ids if ids_on_the_wire else as_text(token_ids)
