"""Several processes that send one plan between them.

Arrivals are dealt out in turn, so together they are the plan's own, each at its instant on the one
monotonic clock that the processes of a machine share (``CLOCK_MONOTONIC``), and each process makes
their prompts from the seed: the server sees what one process would have sent. Records come back to
the run, which alone writes journals.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from time import perf_counter

import anyio
from anyio.abc import Process

from harness.errors import RunAborted
from harness.plan import Plan
from harness.sending.orders import (
    LONGEST,
    Began,
    Command,
    Done,
    Ended,
    Go,
    Halt,
    Health,
    Heard,
    Message,
    Orders,
    Ready,
    Stop,
    as_message,
    line,
)
from harness.sending.sender import Ledger
from harness.target import Endpoint

WORKER = (sys.executable, "-m", "harness.sending.worker")
STARTING = 60.0
"""Seconds a process may take until it is ready."""
ENDING = 5.0
"""Seconds in which a process gives its records back when it is halted, and in which it ends."""


@dataclass
class _Worker:
    number: int
    process: Process
    reader: StreamReader
    writer: StreamWriter
    asked: float
    """When its orders were sent."""
    last_heard: float = 0.0
    gone: bool = False

    @property
    def who(self) -> str:
        return f"sending process {self.number} (PID {self.process.pid})"

    def tell(self, order: Orders | Command) -> None:
        self.writer.write(line(order))

    async def hear(self) -> Message | None:
        """Its next message; None if it is gone."""
        try:
            said = await self.reader.readline()
        except ConnectionError:
            return None
        return as_message.decode(said) if said.endswith(b"\n") else None

    async def ready(self, digest: str) -> None:
        with anyio.move_on_after(STARTING):
            said = await self.hear()
            if not isinstance(said, Ready):
                raise RunAborted(f"{self.who} ended while it started; its error is above.")
            if said.digest != digest:
                raise RunAborted(
                    f"{self.who} made another plan from the same scenario: did the trace change?"
                )
            if not self.asked <= said.clock <= perf_counter():
                raise RunAborted(
                    f"the clock of {self.who} is not this one's, so its stamps are worth nothing. "
                    "Leave out --processes."
                )
            return
        raise RunAborted(f"{self.who} was not ready after {STARTING:g} s; is this machine busy?")


class Crew:
    """The processes of one run, ready to send."""

    def __init__(self, workers: list[_Worker]) -> None:
        self._workers = workers

    @property
    def last_heard(self) -> float:
        """When a byte of a response last arrived, seconds since zero; 0.0 if none has."""
        return max(worker.last_heard for worker in self._workers)

    def begin(self, zero: float) -> None:
        """Have all of them send from ``zero`` on; once, before ``carry_out``."""
        self._tell(Go(zero))

    async def carry_out(self, ledger: Ledger, sending: anyio.CancelScope) -> None:
        """As ``Sender.carry_out``.

        Raises:
            RunAborted: a process died; the rest of its share is not sent, and what it had in flight
                has no record. The others drain first.
        """
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._pass_on, sending)
                async with anyio.create_task_group() as listening:
                    for worker in self._workers:
                        listening.start_soon(_listen, worker, ledger, sending)
                group.cancel_scope.cancel()
        except anyio.get_cancelled_exc_class():
            self._tell(Halt())
            with anyio.move_on_after(ENDING, shield=True):
                for worker in self._workers:
                    await _listen(worker, ledger, sending)
            raise
        lost = [worker.who for worker in self._workers if worker.gone]
        if lost:
            raise RunAborted(
                f"{', '.join(lost)} died before its share was sent; what it had in flight left no "
                "record. Look for what killed it (memory?), and run again."
            )

    async def _pass_on(self, sending: anyio.CancelScope) -> None:
        with sending:
            await anyio.sleep_forever()
        self._tell(Stop())

    def _tell(self, command: Command) -> None:
        for worker in self._workers:
            worker.tell(command)


async def _listen(worker: _Worker, ledger: Ledger, sending: anyio.CancelScope) -> None:
    """Enter what a process says until it has no more to say; if it dies, the load stops."""
    while not worker.gone:
        match await worker.hear():
            case Began():
                ledger.began()
            case Ended(record):
                worker.last_heard = max(worker.last_heard, record.finished)
                ledger.ended(record)
            case Heard(at):
                worker.last_heard = max(worker.last_heard, at)
            case Health(sample):
                ledger.sampled(sample)
            case Done():
                return
            case _:
                worker.gone = True
                sending.cancel()


@asynccontextmanager
async def open_crew(plan: Plan, where: Endpoint, model: str) -> AsyncIterator[Crew]:
    """Start ``plan.scenario.load.processes`` processes; they are gone afterwards.

    Raises:
        RunAborted: one of them does not start, or made another plan.
    """
    count = plan.scenario.load.processes
    ca = None if where.ca is None else str(where.ca)
    async with AsyncExitStack() as stack:
        workers = []
        for share in range(count):
            orders = Orders(plan.scenario, share, count, where.url, where.headers, ca, model)
            workers.append(await stack.enter_async_context(_open_worker(orders)))
        for worker in workers:
            await worker.ready(plan.digest)
        yield Crew(workers)


@asynccontextmanager
async def _open_worker(orders: Orders) -> AsyncIterator[_Worker]:
    ours, theirs = socket.socketpair()
    with theirs:
        process = await anyio.open_process(
            WORKER,
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=None,
            start_new_session=True,  # Ctrl-C is the run's, which tells its processes what to do
        )
    try:
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=LONGEST)
        worker = _Worker(orders.share + 1, process, reader, writer, perf_counter())
        worker.tell(orders)
        try:
            yield worker
        finally:
            writer.close()
    finally:
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(ENDING):
                await process.wait()
            if process.returncode is None:
                process.kill()
            await process.aclose()
