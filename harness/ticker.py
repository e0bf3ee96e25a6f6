"""How late this process wakes: the bound on what its stamps are worth."""

from __future__ import annotations

import resource
from collections.abc import Callable
from time import perf_counter

from harness.load.dispatch import sleep_until
from harness.records import ClientSample

TICK = 0.02


async def tick(zero: float, note: Callable[[ClientSample], None], process: int = 0) -> None:
    """Note, once a second, the CPU time of this process and how late each 20 ms tick woke it."""
    due = perf_counter()
    while True:
        overshoots: list[float] = []
        while len(overshoots) < round(1 / TICK):
            due = max(due + TICK, perf_counter())
            await sleep_until(due)
            overshoots.append(perf_counter() - due)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        cpu = usage.ru_utime + usage.ru_stime
        note(ClientSample(perf_counter() - zero, cpu, tuple(overshoots), process))
