"""A process that sends a share of a load: ``python -m harness.sending.worker``, for ``crew``.

Orders come, and messages go, over the socket that is its standard input. It ends with its share, or
as soon as that socket is closed: whoever gave the orders is gone then.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import anyio
import msgspec

from harness.eventloop import on_uvloop
from harness.plan import make_plan
from harness.replica.scheduling import client_first
from harness.sending.orders import (
    LONGEST,
    Began,
    Done,
    Ended,
    Go,
    Health,
    Heard,
    Message,
    Orders,
    Ready,
    Stop,
    as_command,
    line,
)
from harness.sending.sender import Ledger, Sender
from harness.target import Endpoint
from harness.ticker import tick
from harness.wire.client import open_client
from harness.workload import prompts_of

HEARD_EVERY = 0.2


def main() -> None:
    """Serve the orders on standard input."""
    with client_first():
        on_uvloop(_serve)


async def _serve() -> None:
    channel = socket.socket(fileno=0)
    reader, writer = await asyncio.open_unix_connection(sock=channel, limit=LONGEST)
    # Nobody listens any more: nothing to do is left.
    with contextlib.suppress(ConnectionError):
        if ordered := await reader.readline():
            await _carry_out(msgspec.json.decode(ordered, type=Orders), reader, writer)
        await writer.drain()
    writer.close()


async def _carry_out(orders: Orders, reader: StreamReader, writer: StreamWriter) -> None:
    def tell(message: Message) -> None:
        writer.write(line(message))

    where = Endpoint(orders.url, orders.headers, Path(orders.ca) if orders.ca else None)
    plan = make_plan(orders.scenario)
    timeouts = plan.scenario.timeouts
    async with open_client(timeouts, headers=where.headers, verify=where.verify()) as client:
        tell(Ready(perf_counter(), plan.digest))
        begin = await reader.readline()
        command = as_command.decode(begin) if begin else None
        if not isinstance(command, Go):
            return
        zero, share = command.zero, plan.arrivals[orders.share :: orders.of]
        prompts = prompts_of(plan.scenario)
        sender = Sender(
            plan.scenario, prompts, share, client, where.url, model=orders.model, zero=zero
        )
        ledger = Ledger(
            began=lambda: tell(Began()),
            ended=lambda record: tell(Ended(record)),
            sampled=lambda sample: tell(Health(sample)),
        )
        sending, everything = anyio.CancelScope(), anyio.CancelScope()
        async with anyio.create_task_group() as around:
            around.start_soon(_obey, reader, sending, everything)
            around.start_soon(tick, zero, ledger.sampled, orders.share + 1)
            around.start_soon(_tell_heard, sender, tell)
            with everything:
                await sender.carry_out(ledger, sending)
            around.cancel_scope.cancel()
    tell(Done())


async def _obey(
    reader: StreamReader, sending: anyio.CancelScope, everything: anyio.CancelScope
) -> None:
    while order := await reader.readline():
        if not isinstance(as_command.decode(order), Stop):
            break
        sending.cancel()
    everything.cancel()


async def _tell_heard(sender: Sender, tell: Callable[[Message], None]) -> None:
    while True:
        await anyio.sleep(HEARD_EVERY)
        tell(Heard(sender.last_heard))


if __name__ == "__main__":
    main()
