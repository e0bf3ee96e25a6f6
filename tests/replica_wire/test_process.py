"""The managed replica's life, on a stand-in for vLLM with the same tree of processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import httpx
import pytest

import harness
from harness.errors import DependencyMissing, ReplicaError, UsageError
from harness.replica.process import (
    BUNDLED_MODEL,
    Device,
    ReplicaSpec,
    managed_replica,
    replica_command,
    replica_environment,
)
from harness.replica.scheduling import Policy

STAND_IN = Path(__file__).with_name("stand_in")
PROCESSES = 3
"""Server, engine, worker."""


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Path(harness.__file__).parents[1]
    monkeypatch.setenv("PYTHONPATH", f"{STAND_IN}{os.pathsep}{source}")
    monkeypatch.setattr("harness.replica.process.installed_device", lambda: Device.CPU)


def spec(*modes: str, **more: object) -> ReplicaSpec:
    return ReplicaSpec(plugin=False, arguments=tuple(f"--stand-in={m}" for m in modes), **more)


def tree(log: Path) -> dict[int, int]:
    """Scheduling policy of each of the stand-in's processes by pid, once all of them are up."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
        found = {int(words[1]): int(words[2]) for words in lines if words[:1] == ["pid"]}
        if len(found) == PROCESSES:
            return found
        time.sleep(0.02)
    raise AssertionError(f"the stand-in did not come up: {log.read_text()}")


def alive(pids: object) -> list[int]:
    """Those of ``pids`` that still run, after giving them 15 s to end."""
    deadline = time.monotonic() + 15
    while True:
        left = [pid for pid in pids if _runs(pid)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.anyio
async def test_it_serves_on_loopback_and_leaves_nothing(tmp_path: Path) -> None:
    told: list[str] = []
    async with managed_replica(spec(), tmp_path / "log", told.append) as replica:
        assert replica.url.startswith("http://127.0.0.1:")
        assert replica.model == "stand-in"
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"{replica.url}/health")).status_code == 200
        pids = tree(tmp_path / "log")
        assert len([pid for pid in pids if _runs(pid)]) == PROCESSES
    assert alive(pids) == []
    assert str(tmp_path / "log") in told[0]


@pytest.mark.anyio
async def test_an_exception_in_the_owner_ends_it(tmp_path: Path) -> None:
    async def fail() -> None:
        async with managed_replica(spec(), tmp_path / "log", print):
            tree(tmp_path / "log")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert alive(tree(tmp_path / "log")) == []


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["serve", "hang"])
async def test_a_cancelled_owner_ends_it(tmp_path: Path, mode: str) -> None:
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:

            async def own() -> None:
                async with managed_replica(spec(mode), tmp_path / "log", print):
                    await anyio.sleep_forever()

            tasks.start_soon(own)
            pids = await anyio.to_thread.run_sync(tree, tmp_path / "log")
            scope.cancel()
    assert alive(pids) == []


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(*modes: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, Path(__file__).with_name("owner.py"), tmp_path / "log", *modes]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("mode", "end"),
    [
        ("serve", signal.SIGKILL),
        ("hang", signal.SIGKILL),
        ("serve", signal.SIGTERM),
        ("serve", signal.SIGINT),
    ],
)
def test_it_never_outlives_its_owner(tmp_path: Path, owner, mode: str, end: signal.Signals) -> None:
    process = owner(mode)
    pids = tree(tmp_path / "log")
    process.send_signal(end)
    assert process.wait(30) != 0
    assert alive(pids) == []


def parent_of(pid: int) -> int:
    found = subprocess.run(
        ["ps", "-o", "ppid=", "-p", str(pid)], capture_output=True, check=True, text=True
    )
    return int(found.stdout)


@pytest.mark.anyio
async def test_killing_the_guard_ends_it(tmp_path: Path) -> None:
    async with managed_replica(spec(), tmp_path / "log", print) as replica:
        server, *_ = pids = list(tree(tmp_path / "log"))
        os.kill(parent_of(server), signal.SIGKILL)  # its guard
        error = await replica.ended()
        assert isinstance(error, ReplicaError)
        assert alive([server]) == []
    # the worker left its session before its guard died: nothing can find it any more
    assert alive(pids[:2]) == []
    os.kill(pids[2], signal.SIGKILL)


@pytest.mark.anyio
async def test_a_replica_that_dies_while_starting(tmp_path: Path) -> None:
    with pytest.raises(ReplicaError) as raised:
        async with managed_replica(spec("die"), tmp_path / "log", print):
            raise AssertionError("it is not up")
    said = str(raised.value)
    assert "status 3" in said
    assert "ValueError: not enough memory" in said  # 40 lines before the end
    assert "unrelated line 39" in said
    assert alive(tree(tmp_path / "log")) == []


@pytest.mark.anyio
async def test_a_replica_that_does_not_come_up_in_time(tmp_path: Path) -> None:
    told: list[str] = []
    with pytest.raises(ReplicaError, match=r"not healthy after 6 s"):
        async with managed_replica(spec("hang", start_timeout=6.0), tmp_path / "log", told.append):
            raise AssertionError("it is not up")
    assert told[-1] == "starting vLLM, 5 s"
    assert alive(tree(tmp_path / "log")) == []


@pytest.mark.anyio
async def test_a_replica_that_dies_while_it_serves(tmp_path: Path) -> None:
    async with managed_replica(spec(), tmp_path / "log", print) as replica:
        server, *_ = pids = list(tree(tmp_path / "log"))
        os.kill(server, signal.SIGKILL)
        with anyio.fail_after(60):
            error = await replica.ended()
        assert f"status {128 + signal.SIGKILL}" in str(error)
        assert str(tmp_path / "log") in str(error)
        assert alive(pids) == []


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("policy", "number"), [(Policy.NORMAL, os.SCHED_OTHER), (Policy.BATCH, os.SCHED_BATCH)]
)
async def test_its_scheduling(tmp_path: Path, policy: Policy, number: int) -> None:
    async with managed_replica(spec(policy=policy), tmp_path / "log", print):
        assert set(tree(tmp_path / "log").values()) == {number}


@pytest.mark.anyio
async def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ReplicaError, match=str(port)):
            async with managed_replica(spec(port=port), tmp_path / "log", print):
                raise AssertionError("it is not up")


def test_the_bundled_model_is_the_default_and_flags_come_last() -> None:
    command = replica_command(ReplicaSpec(arguments=("--block-size=16",)), 8123, Device.CPU)
    assert command[1:3] == ["-m", "vllm.entrypoints.openai.api_server"]
    assert f"--model={BUNDLED_MODEL}" in command
    assert (BUNDLED_MODEL / "config.json").is_file()
    assert {"--host=127.0.0.1", "--port=8123", "--enable-prompt-tokens-details"} < set(command)
    assert command[-1] == "--block-size=16"


def test_another_model_gets_none_of_the_bundled_ones_flags() -> None:
    command = replica_command(
        ReplicaSpec(model="org/name", arguments=("--dtype", "auto")), 8123, Device.CPU
    )
    assert command[3:] == [
        *("--host=127.0.0.1", "--port=8123", "--enable-prompt-tokens-details"),
        *("--model=org/name", "--dtype", "auto"),
    ]


@pytest.mark.parametrize(
    "flag",
    [
        "--host=0.0.0.0",
        "--host",
        "--port=1",
        "--uds=/s",
        "--api-key=k",
        "--api_key",
        "--ssl-keyfile",
    ],
)
def test_flags_that_would_move_it_are_refused(flag: str) -> None:
    with pytest.raises(UsageError, match="loopback"):
        replica_command(ReplicaSpec(arguments=(flag,)), 8123, Device.CPU)


class Point:
    def __init__(self, name: str, value: str) -> None:
        self.name, self.value = name, value


PLUGINS = [Point("keep_reset", "vllm_keep_reset:register"), Point("lora", "some_plugin:register")]


@pytest.mark.parametrize(
    ("listed", "wanted", "expected"),
    [
        (None, True, None),
        ("lora", True, "lora,keep_reset"),
        ("keep_reset,lora", True, "keep_reset,lora"),
        ("", True, "keep_reset"),
        (None, False, "lora"),
        ("lora,keep_reset", False, "lora"),
        ("keep_reset", False, ""),
    ],
)
def test_the_plugin_is_added_to_an_allow_list(monkeypatch, listed, wanted, expected) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: PLUGINS)
    inherited = {} if listed is None else {"VLLM_PLUGINS": listed}
    made = replica_environment(inherited, ReplicaSpec(plugin=wanted), Device.CPU, 2)
    assert made.get("VLLM_PLUGINS") == expected


def test_a_missing_plugin_is_named(monkeypatch) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: PLUGINS[1:])
    with pytest.raises(DependencyMissing, match="vllm-keep-reset"):
        replica_environment({}, ReplicaSpec(), Device.CPU, 2)
    replica_environment({}, ReplicaSpec(plugin=False), Device.CPU, 2)


def test_the_environment_opens_the_reset_route_and_drops_the_key() -> None:
    inherited = {
        "VLLM_API_KEY": "secret",
        "VLLM_SERVER_DEV_MODE": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": "/home/x",
    }
    made = replica_environment(inherited, ReplicaSpec(plugin=False), Device.CPU, 2)
    assert made["VLLM_SERVER_DEV_MODE"] == "1"
    assert made["HOME"] == "/home/x"
    assert not {"VLLM_API_KEY", "PYTHONDONTWRITEBYTECODE"} & made.keys()


def test_only_the_bundled_model_on_a_cpu_has_its_worker_in_the_engine() -> None:
    name = "VLLM_ENABLE_V1_MULTIPROCESSING"
    bundled, other = ReplicaSpec(plugin=False), ReplicaSpec(model="org/name", plugin=False)
    assert replica_environment({}, bundled, Device.CPU, 2)[name] == "0"
    assert replica_environment({name: "1"}, bundled, Device.CPU, 2)[name] == "1"
    assert name not in replica_environment({}, bundled, Device.GPU, 2)
    assert name not in replica_environment({}, other, Device.CPU, 2)


@pytest.mark.parametrize(
    ("cores", "given", "reserved"),
    [(2, None, None), (4, None, "2"), (64, None, "2"), (4, "1", "1"), (2, "0", "0")],
)
def test_cores_left_to_the_client(cores, given, reserved) -> None:
    name = "VLLM_CPU_NUM_OF_RESERVED_CPU"
    inherited = {} if given is None else {name: given}
    made = replica_environment(inherited, ReplicaSpec(model="m", plugin=False), Device.CPU, cores)
    assert made.get(name) == reserved
