"""A load that several processes send: one plan, one set of journals, and no process left behind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from harness.journals import RunStatus
from harness.records import Outcome
from harness.store import read_run

from .conftest import QUICK, Bench, SmallReplica
from .test_run import lines, wait_until

Start = Callable[..., SmallReplica]
LONG = (*QUICK, "--duration", "60", "--reset-every", "20")


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def senders(pid: int) -> list[int]:
    return [child for child in children(pid) if b"harness.sending.worker" in command(child)]


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return b""


def all_gone(pids: list[int]) -> bool:
    return not any(command(pid) for pid in pids)


def test_three_processes_send_what_one_sends(bench: Bench, small_replica: Start) -> None:
    sent = {}
    for count in (1, 3):
        bodies = bench.folder / f"bodies{count}"
        url = small_replica("--bodies", str(bodies)).url
        done = bench(
            "run", "--url", url, *QUICK, "--reset-mode", "keep",
            "--processes", str(count), "--out", f"r{count}",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        sent[count] = sorted(bodies.read_bytes().splitlines())
    assert sent[1] == sent[3]

    one, three = (read_run(bench.folder / f"r{count}") for count in (1, 3))
    planned = [arrival.scheduled for arrival in three.manifest.plan.arrivals]
    assert one.manifest.plan.digest == three.manifest.plan.digest
    frame = three.requests.frame.sort_values("id")
    assert frame["id"].tolist() == list(range(len(planned)))
    assert frame["scheduled"].tolist() == planned
    assert (frame["outcome"] == Outcome.OK).all()
    assert (frame["sent"] >= frame["scheduled"]).all()
    assert np.median(frame["sent"] - frame["scheduled"]) < 0.1
    assert [reset.outcome for reset in three.resets] == ["cleared"] * 3
    assert any(reset.in_flight for reset in three.resets)
    assert {sample.process for sample in three.client} == {0, 1, 2, 3}
    assert {sample.process for sample in one.client} == {0}


def test_what_several_processes_send_is_poisson(bench: Bench, small_replica: Start) -> None:
    load = ("--rate", "60", "--warmup", "0.5", "--duration", "10", *QUICK[8:], "--seed", "3")
    done = bench("run", "--url", small_replica().url, *load, "--processes", "2", "--out", "r")
    assert done.returncode == 0, done.stderr
    sent = read_run(bench.folder / "r").requests.frame["sent"]
    counts = np.histogram(sent, bins=100, range=(0.5, 10.5))[0]
    # Of n Poisson counts, Var/Mean has standard deviation sqrt(2/n), here 0.14.
    assert np.var(counts, ddof=1) / np.mean(counts) == pytest.approx(1, abs=0.5)


def test_one_that_dies_ends_the_run_and_leaves_what_was_measured(
    bench: Bench, small_replica: Start
) -> None:
    url = small_replica().url
    process = bench.start("run", "--url", url, *LONG, "--processes", "2", "--out", "r")
    wait_until(lambda: lines(bench.folder / "r" / "requests.jsonl") > 20)
    victim, other = senders(process.pid)
    os.kill(victim, signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 6, err
    assert "Traceback" not in err
    assert f"(PID {victim}) died" in err
    run = read_run(bench.folder / "r")
    assert run.manifest.status is RunStatus.FAILED
    assert len(run.requests) > 20
    assert all_gone([victim, other])


@pytest.mark.parametrize("caught", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_of_them(
    bench: Bench, small_replica: Start, caught: signal.Signals
) -> None:
    url = small_replica().url
    process = bench.start("run", "--url", url, *LONG, "--processes", "2", "--out", "r")
    wait_until(lambda: lines(bench.folder / "r" / "requests.jsonl") > 20)
    pids = senders(process.pid)
    assert len(pids) == 2
    process.send_signal(caught)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    run = read_run(bench.folder / "r")
    outcomes = set(run.requests.frame["outcome"])
    # Ctrl-C drains; SIGTERM leaves what was in flight, and whatever was begun has its record.
    assert outcomes == {"ok"} if caught is signal.SIGINT else outcomes <= {"ok", "abandoned"}
    ids = run.requests.frame["id"].tolist()
    assert len(set(ids)) == len(ids)
    assert max(ids) + 1 - len(ids) <= 1, "they stop within milliseconds of one another"
    assert all_gone(pids)


def test_they_do_not_outlive_a_run_that_is_killed(bench: Bench, small_replica: Start) -> None:
    url = small_replica().url
    process = bench.start("run", "--url", url, *LONG, "--processes", "2", "--out", "r")
    wait_until(lambda: lines(bench.folder / "r" / "requests.jsonl") > 20)
    pids = senders(process.pid)
    process.kill()
    process.communicate(timeout=60)
    until = time.monotonic() + 30
    while not all_gone(pids) and time.monotonic() < until:
        time.sleep(0.05)
    assert all_gone(pids)
    assert len(read_run(bench.folder / "r").requests) > 20


def test_their_command_lines_hold_no_key(bench: Bench, small_replica: Start) -> None:
    process = bench.start(
        "run", "--url", small_replica().url, *LONG, "--processes", "2", "--out", "r",
        VLLM_API_KEY="sk-hidden",
    )  # fmt: skip
    wait_until(lambda: lines(bench.folder / "r" / "requests.jsonl") > 5)
    assert all(b"sk-hidden" not in command(pid) for pid in senders(process.pid))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err


def test_a_cap_goes_with_one_process(bench: Bench) -> None:
    done = bench("run", "--url", "http://127.0.0.1:9", "--processes", "2", "--max-in-flight", "4")
    assert done.returncode == 2
    assert "--processes" in done.stderr
