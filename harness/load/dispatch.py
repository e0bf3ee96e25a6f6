"""Sending a plan's arrivals at their absolute instants, whatever the replica is doing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from time import perf_counter

import anyio

from harness.records import Arrival


async def sleep_until(instant: float) -> None:
    """Return at or just after ``instant`` on ``time.perf_counter``'s clock, never before.

    libuv's timers count whole milliseconds from a cached time, so one sleep may return early.
    """
    while (left := instant - perf_counter()) > 0:  # noqa: ASYNC110 - a clock has no event
        await anyio.sleep(left)


async def dispatch(
    arrivals: Sequence[Arrival],
    send: Callable[[Arrival, float], Awaitable[None]],
    zero: float,
    *,
    sending: anyio.CancelScope,
    max_in_flight: int | None = None,
) -> None:
    """Start ``send(arrival, started)`` for every arrival and return when all have ended.

    Each starts at ``zero + arrival.scheduled``, an absolute deadline: a late one delays no other.
    ``started`` is seconds since ``zero``. Cancelling ``sending`` stops further arrivals and lets
    those in flight end. With ``max_in_flight`` a request over the cap waits, after it has started,
    for an earlier one to end. ``send`` handles its own failures.
    """
    limit = anyio.CapacityLimiter(max_in_flight) if max_in_flight else nullcontext()

    async def one(arrival: Arrival) -> None:
        started = perf_counter() - zero
        async with limit:
            if not sending.cancel_called:
                await send(arrival, started)

    async with anyio.create_task_group() as group:
        with sending:
            for arrival in arrivals:
                await sleep_until(zero + arrival.scheduled)
                group.start_soon(one, arrival)
