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
    send: Callable[[Arrival, float], Awaitable[Arrival | None]],
    zero: float,
    *,
    sending: anyio.CancelScope,
    max_in_flight: int | None = None,
) -> None:
    """Start ``send(arrival, started)`` for every arrival and return when all have ended.

    Each starts at ``zero + arrival.scheduled``, an absolute deadline: a late one delays no other.
    So does an arrival that ``send`` returns, the next turn of a session. ``started`` is seconds
    since ``zero``. Cancelling ``sending`` stops further arrivals and lets those in flight end. With
    ``max_in_flight`` a request over the cap waits, after it has started, for an earlier one to end.
    ``send`` handles its own failures.
    """
    limit = anyio.CapacityLimiter(max_in_flight) if max_in_flight else nullcontext()
    sessions = _Open()

    async def one(arrival: Arrival) -> None:
        started = perf_counter() - zero
        following: Arrival | None = None
        async with limit:
            if not sending.cancel_called:
                following = await send(arrival, started)
        if following is not None and not sending.cancel_called:
            thinking.start_soon(turn, following)
        elif arrival.later or arrival.closed_loop:
            sessions.close()

    async def turn(arrival: Arrival) -> None:
        await sleep_until(zero + arrival.scheduled)
        group.start_soon(one, arrival)

    async with anyio.create_task_group() as group:
        with sending:
            async with anyio.create_task_group() as thinking:
                for arrival in arrivals:
                    await sleep_until(zero + arrival.scheduled)
                    if arrival.later:
                        sessions.open()
                    group.start_soon(one, arrival)
                sessions.close()
                await sessions.over.wait()


class _Open:
    """Counts what must end before ``over`` is set; begins at one, for whoever still opens some."""

    def __init__(self) -> None:
        self._count = 1
        self.over = anyio.Event()

    def open(self) -> None:
        self._count += 1

    def close(self) -> None:
        self._count -= 1
        if not self._count:
            self.over.set()
