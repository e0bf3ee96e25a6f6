"""Dispatch: absolute deadlines, an open loop, and a stop that drains."""

from __future__ import annotations

from statistics import median
from time import perf_counter

import anyio
import pytest

from harness.load.dispatch import dispatch
from harness.records import Arrival, Turn

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> object:
    return ("asyncio", {"use_uvloop": request.param == "uvloop"})


async def test_fault_06_the_rate_does_not_drift() -> None:
    # Relative sleeps made 10,000 requests at 200/s take 54.5 s instead of 50: 9 % late.
    arrivals = [Arrival(n, n / 200, 0, 1) for n in range(200)]
    starts: list[float] = []

    async def send(arrival: Arrival, started: float) -> None:
        starts.append(started - arrival.scheduled)

    zero = perf_counter()
    await dispatch(arrivals, send, zero, sending=anyio.CancelScope())
    assert perf_counter() - zero < 1.05
    assert min(starts) >= 0
    assert median(starts) < 0.005
    assert median(starts[-50:]) < 0.02, "a drift of 9 % is 80 ms here"


async def test_a_late_arrival_delays_no_other() -> None:
    arrivals = [Arrival(0, 0.0, 0, 1), Arrival(1, 0.05, 0, 1), Arrival(2, 0.1, 0, 1)]
    started: dict[int, float] = {}

    async def send(arrival: Arrival, at: float) -> None:
        started[arrival.id] = at
        await anyio.sleep(0.3)

    await dispatch(arrivals, send, perf_counter(), sending=anyio.CancelScope())
    assert started[2] < 0.2


async def test_a_cap_waits_after_the_task_has_started() -> None:
    arrivals = [Arrival(n, 0.0, 0, 1) for n in range(4)]
    sent: list[tuple[float, float]] = []
    zero = perf_counter()

    async def send(arrival: Arrival, started: float) -> None:
        sent.append((started, perf_counter() - zero))
        await anyio.sleep(0.1)

    await dispatch(arrivals, send, zero, sending=anyio.CancelScope(), max_in_flight=2)
    assert all(started < 0.08 for started, _ in sent)
    assert [at > 0.09 for _, at in sent] == [False, False, True, True]


async def test_a_stop_sends_no_more_and_lets_those_in_flight_end() -> None:
    arrivals = [Arrival(n, n * 0.05, 0, 1) for n in range(100)]
    sending = anyio.CancelScope()
    ended: list[int] = []

    async def send(arrival: Arrival, started: float) -> None:
        await anyio.sleep(0.2)
        ended.append(arrival.id)

    async with anyio.create_task_group() as group:
        group.start_soon(lambda: dispatch(arrivals, send, perf_counter(), sending=sending))
        await anyio.sleep(0.22)
        sending.cancel()
    assert 3 <= len(ended) <= 6


def session(number: int, at: float, turns: int) -> Arrival:
    later = tuple(Turn(10 * number + n, 0.05, 1) for n in range(1, turns))
    return Arrival(10 * number, at, 0, 1, later=later)


def next_turn(arrival: Arrival, ended: float) -> Arrival | None:
    if not arrival.later:
        return None
    turn, *later = arrival.later
    return Arrival(turn.id, ended + turn.think, 0, 1, later=tuple(later), closed_loop=True)


async def test_a_turn_comes_when_the_one_before_has_ended_and_its_user_has_thought() -> None:
    zero = perf_counter()
    times: dict[int, tuple[float, float]] = {}

    async def send(arrival: Arrival, started: float) -> Arrival | None:
        await anyio.sleep(0.1)
        times[arrival.id] = started, perf_counter() - zero
        return next_turn(arrival, times[arrival.id][1])

    arrivals = [session(1, 0.0, 3), session(2, 0.02, 2), Arrival(30, 0.03, 0, 1)]
    await dispatch(arrivals, send, zero, sending=anyio.CancelScope())
    assert sorted(times) == [10, 11, 12, 20, 21, 30]
    for number in (11, 12, 21):
        assert 0.05 <= times[number][0] - times[number - 1][1] < 0.15


async def test_a_failed_turn_ends_its_session() -> None:
    sent: list[int] = []

    async def send(arrival: Arrival, started: float) -> Arrival | None:
        sent.append(arrival.id)
        return None

    with anyio.fail_after(5):
        await dispatch([session(1, 0.0, 3)], send, perf_counter(), sending=anyio.CancelScope())
    assert sent == [10]


async def test_a_stop_ends_thinking_too_and_lets_those_in_flight_end() -> None:
    sending, zero = anyio.CancelScope(), perf_counter()
    ended: list[int] = []

    async def send(arrival: Arrival, started: float) -> Arrival | None:
        await anyio.sleep(0.2 if arrival.id == 20 else 0.0)
        ended.append(arrival.id)
        later = next_turn(arrival, perf_counter() - zero)
        if later is None or arrival.id == 20:
            return later
        return Arrival(later.id, later.scheduled + 60, 0, 1, closed_loop=True)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            arrivals = [session(1, 0.0, 3), session(2, 0.0, 3)]
            group.start_soon(lambda: dispatch(arrivals, send, zero, sending=sending))
            await anyio.sleep(0.1)
            sending.cancel()
    assert ended == [10, 20]
