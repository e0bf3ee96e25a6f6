"""Starting, examining, sampling and ending a real vLLM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.errors import ReplicaError
from harness.records import ResetMode
from harness.replica.doctor import Level, inspect
from harness.replica.metrics import SAMPLED, Scraper
from harness.replica.process import ReplicaSpec, managed_replica
from harness.target import Target

OWNER = """
import sys
from pathlib import Path
import anyio
from harness.replica.process import ReplicaSpec, managed_replica

async def main():
    async with managed_replica(ReplicaSpec(), Path(sys.argv[1]), print) as replica:
        print("up", flush=True)
        await anyio.sleep_forever()

anyio.run(main, backend_options={"use_uvloop": True})
"""


def descendants(pid: int) -> set[int]:
    table = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True)
    children: dict[int, list[int]] = {}
    for line in table.stdout.splitlines():
        child, parent = map(int, line.split())
        children.setdefault(parent, []).append(child)
    found, todo = set(), [pid]
    while todo:
        for child in children.get(todo.pop(), []):
            found.add(child)
            todo.append(child)
    return found


@pytest.mark.anyio
async def test_it_passes_its_examination(replica, client) -> None:
    endpoint = client.endpoint
    diagnosis = await inspect(Target(endpoint, (endpoint,), (endpoint,)), {ResetMode.KEEP})
    diagnosis.raise_problem()
    assert {finding.level for finding in diagnosis.findings} == {Level.OK}
    assert diagnosis.reset_modes == {ResetMode.DEFAULT, ResetMode.PREEMPT, ResetMode.KEEP}
    assert diagnosis.reset_external
    assert diagnosis.model == replica.model
    assert diagnosis.engines == ("0",)
    assert diagnosis.cache["0"]["block_size"] == "32"


@pytest.mark.anyio
async def test_every_sampled_metric_is_one_that_it_has(client) -> None:
    async with Scraper([client.endpoint], 5) as scraper:
        (sample,) = await scraper.scrape(time.perf_counter())
    assert {name.partition("{")[0] for name in sample.metrics} == set(SAMPLED)


@pytest.mark.anyio
async def test_samples_follow_what_runs(client) -> None:
    generated = await client.metric("generation_tokens_total")
    async with client.running(3, 300):
        assert await client.metric("num_requests_running") == 3
        assert await client.metric("kv_cache_usage_perc") > 0
    assert await client.metric("generation_tokens_total") == generated + 900


def test_killing_its_owner_leaves_no_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        try:
            for line in owner.stdout:
                if line == "up\n":
                    break
            processes = descendants(owner.pid)
            assert len(processes) >= 3, "guard, API server, engine"
        finally:
            os.kill(owner.pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while left := [pid for pid in processes if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < deadline, subprocess.run(
            ["ps", "-fp", ",".join(map(str, left))], capture_output=True, text=True, check=False
        ).stdout
        time.sleep(0.1)


@pytest.mark.anyio
async def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    spec = ReplicaSpec(arguments=("--max-model-len=100000",))  # the description says 8192
    with pytest.raises(ReplicaError, match=r"died while starting") as raised:
        async with managed_replica(spec, tmp_path / "log", print):
            raise AssertionError("it is not up")
    assert "max_model_len" in str(raised.value)
