"""One run: examine the server, prime its cache, measure, and leave a run folder behind."""

from __future__ import annotations

import os
import platform
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
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
from harness.plan import LengthLaw, Plan, PromptForm, prompts_of
from harness.priming import prime
from harness.records import Arrival, Progress, RequestRecord, ResetMode
from harness.replica.doctor import inspect
from harness.replica.metrics import Scraper
from harness.replica.process import ReplicaSpec, managed_replica
from harness.replica.reset import Resetter
from harness.replica.scheduling import Scheduling, client_first
from harness.store import RunFolder
from harness.target import Endpoint, Target
from harness.wire.client import open_client
from harness.wire.completions import Completions

LEAD = 0.2
"""Seconds between the end of priming and the run's zero, so that every task is up before it."""
REPLICA_LOG = "vllm.log"

ReplicaEnded = Callable[[], Awaitable[HarnessError]]


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
    run_task = partial(_run, plan, where, RunFolder(out), watcher)
    return anyio.run(run_task, backend="asyncio", backend_options={"use_uvloop": True})


async def _run(
    plan: Plan, where: Target | ReplicaSpec, folder: RunFolder, watcher: Watcher
) -> Ending:
    """Run everything under one listener, so that a signal at any phase ends it in order."""
    one = _Run(plan, folder, watcher)
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(one.listen, group.cancel_scope)
            await one.carry_out(where)
            group.cancel_scope.cancel()
        one.write_manifest(status=one.ending.status, reason=one.ending.reason)
    except JournalError as error:
        one.ending = Ending(RunStatus.FAILED, str(error), error)
    finally:
        folder.close()
    return one.ending


class _Run:
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
            host=_host(),
            preparation={},
        )
        self.ending = Ending(RunStatus.FAILED, "a fault of the harness; the terminal has its trace")
        self.write_manifest()

    def write_manifest(self, **changes: Any) -> None:  # noqa: ANN401 - fields of Manifest
        """Replace the manifest with one that has ``changes``."""
        self._manifest = msgspec.structs.replace(self._manifest, **changes)
        self._folder.write_manifest(self._manifest)

    async def listen(self, everything: anyio.CancelScope) -> None:
        """End the run at the first SIGINT or SIGTERM before or after the measurement."""
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for caught in signals:
                self.ending = Ending(RunStatus.INTERRUPTED, f"interrupted by {caught.name}")
                everything.cancel()
                return

    async def carry_out(self, where: Target | ReplicaSpec) -> None:
        try:
            with client_first() as scheduling:
                self._watcher.say(scheduling.words())
                async with self._server(where, scheduling) as (target, replica_ended):
                    self.ending = await self._conduct(target, replica_ended)
        except HarnessError as error:
            self.ending = Ending(RunStatus.FAILED, str(error), error)

    @asynccontextmanager
    async def _server(
        self, where: Target | ReplicaSpec, scheduling: Scheduling
    ) -> AsyncIterator[tuple[Target, ReplicaEnded | None]]:
        """The target, started first if it is a replica of our own."""
        host = self._manifest.host | {"scheduling": msgspec.to_builtins(scheduling)}
        if isinstance(where, Target):
            self.write_manifest(host=host)
            yield where, None
            return
        spec = msgspec.structs.replace(where, policy=scheduling.replica)
        log = self._folder.path / REPLICA_LOG
        async with managed_replica(spec, log, self._watcher.say) as replica:
            self._watcher.say(f"vLLM answers after {replica.started_in:.0f} s")
            self.write_manifest(
                host=host
                | {
                    "replica_command": list(replica.command),
                    "replica_device": replica.device,
                    "replica_started_in": replica.started_in,
                }
            )
            endpoint = Endpoint(replica.url)
            yield Target(endpoint, (endpoint,), (endpoint,), replica.model), replica.ended

    async def _conduct(self, target: Target, replica_ended: ReplicaEnded | None) -> Ending:
        """Examine, prime and measure ``target``."""
        scenario = self._plan.scenario
        timeouts = scenario.timeouts
        needed = {reset.mode for reset in self._plan.resets}
        diagnosis = await inspect(target, needed)
        diagnosis.raise_problem()
        assert diagnosis.model is not None
        self.write_manifest(server=diagnosis.server(), warnings=diagnosis.warnings())
        async with (
            open_client(
                timeouts, headers=target.load.headers, verify=target.load.verify()
            ) as client,
            Resetter(target.control, timeouts.reset) as resetter,
            Scraper(target.metrics, timeouts.scrape) as scraper,
        ):
            url, model, form = target.load.url, diagnosis.model, scenario.prompts.form
            fixed = scenario.output.law is LengthLaw.FIXED
            prompts = prompts_of(scenario)

            def prompt(token_ids: list[int]) -> list[int] | str:
                return token_ids if form is PromptForm.TOKEN_IDS else as_text(token_ids)

            began = perf_counter()
            speak = partial(Completions, client, url, model=model, form=form, ignore_eos=fixed)
            primer = speak(zero=began)

            async def send_priming(arrival: Arrival, visit: int) -> RequestRecord:
                return await primer.send(arrival, prompt(prompts.priming(arrival.prefix, visit)))

            self._watcher.say(f"priming {scenario.prompts.prefixes} prefixes")
            reset = partial(resetter.attempt, external=scenario.resets.external, zero=began)
            priming = await prime(
                scenario.prompts,
                send_priming,
                reset if ResetMode.DEFAULT in diagnosis.reset_modes else None,
                self._watcher.show,
            )
            zero = perf_counter() + LEAD
            self.write_manifest(
                started_utc=(datetime.now(UTC) + timedelta(seconds=LEAD)).isoformat(),
                preparation=msgspec.to_builtins(priming),
                warnings=diagnosis.warnings() + priming.warnings,
            )
            completions = speak(zero=zero)

            async def send(arrival: Arrival, started: float) -> RequestRecord:
                ids = prompts.token_ids(arrival.prefix, arrival.id)
                return await completions.send(arrival, prompt(ids), started)

            instruments = Instruments(
                send=send,
                reset=partial(resetter.attempt, external=scenario.resets.external, zero=zero),
                scrape=partial(scraper.scrape, zero),
                last_heard=lambda: completions.last_heard,
                abandon=completions.abandon,
            )
            return await measure(
                self._plan,
                instruments,
                self._folder,
                zero,
                watch=self._watcher.show,
                replica_ended=replica_ended,
            )


def _host() -> dict[str, Any]:
    return {
        "platform": platform.platform(),
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
    }
