"""Sending processes that do not come up as they should end a run before its load."""

from __future__ import annotations

import sys
from time import monotonic

import anyio
import pytest

from harness.errors import RunAborted
from harness.plan import make_plan
from harness.scenario import LoadSpec, Scenario
from harness.sending import crew
from harness.target import Endpoint

HEARS = """
import socket, time
import msgspec
from harness.plan import make_plan
from harness.sending.orders import Orders, Ready, line
channel = socket.socket(fileno=0)
orders = msgspec.json.decode(channel.makefile("rb").readline(), type=Orders)
digest, now = make_plan(orders.scenario).digest, time.perf_counter()
"""
FAULTS = {
    "dies": ("raise SystemExit(1)", r"sending process 1 \(PID \d+\) ended while it started"),
    "plans otherwise": ("channel.sendall(line(Ready(now, 'x')))", "made another plan"),
    "another clock": ("channel.sendall(line(Ready(now + 1e6, digest)))", "Leave out --processes"),
    "hangs": ("time.sleep(60)", "was not ready after 3 s; is this machine busy"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_process_that_does_not_come_up_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    does, says = FAULTS[fault]
    monkeypatch.setattr(crew, "WORKER", (sys.executable, "-c", HEARS + does))
    monkeypatch.setattr(crew, "STARTING", 3.0 if fault == "hangs" else 60.0)
    monkeypatch.setattr(crew, "ENDING", 0.5)
    plan = make_plan(Scenario(load=LoadSpec(rate=1.0, warmup=1.0, duration=10.0, processes=2)))
    begun = []

    async def start() -> None:
        async with crew.open_crew(plan, Endpoint("http://127.0.0.1:9"), "small"):
            begun.append(True)

    before = monotonic()
    with pytest.raises(RunAborted, match=says):
        anyio.run(start)
    assert not begun
    assert monotonic() - before < 50, "a process that hangs is killed"
