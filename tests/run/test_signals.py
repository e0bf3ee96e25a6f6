"""SIGINT and SIGTERM at each phase of a run; while it measures, see ``test_run``."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.experiment.plan import plan_runs, read_experiment
from harness.journals import RunStatus
from harness.store import read_manifest, read_run

from .conftest import EXPERIMENT, Bench, SmallReplica
from .test_faults import OWN, PRIMING, QUICK_TIMEOUTS, SHORT, SOURCE
from .test_run import lines, wait_until

Start = Callable[..., SmallReplica]
SIGNALS = pytest.mark.parametrize("caught", [signal.SIGINT, signal.SIGTERM])


@pytest.fixture
def patient(bench: Bench) -> Bench:
    """One whose server may hang for as long as it takes a test."""
    (bench.folder / "quick.toml").write_text(
        "[timeouts]\nidle = 60.0\nscrape = 60.0\ndrain = 60.0\ngive_up = 60.0\n"
    )
    return bench


def ended(process: subprocess.Popen[str], seconds: float = 60) -> str:
    """What it printed as an error, once it has ended as one that was interrupted."""
    _, err = process.communicate(timeout=seconds)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    return err


def examined(folder: Path) -> bool:
    file = folder / "run.json"
    return file.exists() and bool(json.loads(file.read_bytes())["server"])


@SIGNALS
def test_while_the_server_is_examined(
    patient: Bench, fault_server: Start, caught: signal.Signals
) -> None:
    server = fault_server("--at", "/version", "hang")
    process = patient.start("run", "--url", server.url, *SHORT)
    wait_until((patient.folder / "r" / "run.json").exists)
    time.sleep(0.5)
    process.send_signal(caught)
    ended(process)
    manifest = read_manifest(patient.folder / "r")
    assert (manifest.status, manifest.reason) == (
        RunStatus.INTERRUPTED, f"interrupted by {caught.name}",
    )  # fmt: skip


@SIGNALS
def test_while_the_cache_is_primed(
    patient: Bench, fault_server: Start, caught: signal.Signals
) -> None:
    server = fault_server("--at", "/v1/completions", "hang")
    process = patient.start("run", "--url", server.url, *SHORT)
    wait_until(lambda: examined(patient.folder / "r"))
    time.sleep(0.2)
    process.send_signal(caught)
    process.send_signal(caught)  # an impatient user changes nothing
    ended(process)
    assert read_manifest(patient.folder / "r").status is RunStatus.INTERRUPTED


@SIGNALS
def test_while_it_drains(patient: Bench, fault_server: Start, caught: signal.Signals) -> None:
    server = fault_server("--after", str(PRIMING + 20), "--at", "/v1/completions", "hang")
    process = patient.start("run", "--url", server.url, *SHORT)
    wait_until(lambda: lines(patient.folder / "r" / "client.jsonl") >= 3)
    for _ in range(2 if caught is signal.SIGINT else 1):
        process.send_signal(caught)
        time.sleep(0.1)
    ended(process)
    run = read_run(patient.folder / "r")
    assert run.manifest.status is RunStatus.INTERRUPTED
    assert set(run.requests.frame["outcome"]) == {"ok", "abandoned"}
    assert len(run.requests) == len(run.manifest.plan.arrivals)


def test_at_the_last_look_at_the_servers_counters(patient: Bench, fault_server: Start) -> None:
    server = fault_server("--after", str(PRIMING + 20), "--at", "/metrics", "hang")
    process = patient.start("run", "--url", server.url, *SHORT)
    wait_until(lambda: lines(patient.folder / "r" / "client.jsonl") >= 1)
    time.sleep(2.5)  # the load is over and its requests have ended
    process.send_signal(signal.SIGTERM)
    ended(process)
    run = read_run(patient.folder / "r")
    assert len(run.requests) == len(run.manifest.plan.arrivals)
    assert (run.requests.frame["outcome"] == "ok").all()


@pytest.mark.parametrize(
    ("caught", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)]
)
def test_while_the_report_is_made(
    patient: Bench, fault_server: Start, caught: signal.Signals, code: int
) -> None:
    process = patient.start("run", "--url", fault_server().url, *SHORT)
    manifest = patient.folder / "r" / "run.json"
    wait_until(lambda: manifest.exists() and b'"complete"' in manifest.read_bytes())
    process.send_signal(caught)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in err
    assert read_run(patient.folder / "r").manifest.status is RunStatus.COMPLETE


@SIGNALS
def test_before_the_second_run_of_an_experiment(
    patient: Bench, fault_server: Start, caught: signal.Signals
) -> None:
    spec = patient.folder / "x.toml"
    spec.write_text(EXPERIMENT)
    first, second = plan_runs(read_experiment(spec))
    server = fault_server("--after", str(PRIMING + len(first.plan.arrivals)),
                          "--at", "/v1/completions", "hang")  # fmt: skip
    process = patient.start("experiment", "x.toml", "--url", server.url, "--out", "x")
    wait_until(lambda: examined(patient.folder / "x" / second.name))
    time.sleep(0.2)
    process.send_signal(caught)
    ended(process)
    statuses = [read_manifest(patient.folder / "x" / run.name).status for run in (first, second)]
    assert statuses == [RunStatus.COMPLETE, RunStatus.INTERRUPTED]


def test_while_our_own_replica_starts(bench: Bench) -> None:
    (bench.folder / "quick.toml").write_text(QUICK_TIMEOUTS)
    process = bench.start("run", *SHORT, "--vllm-arg=--at", "--vllm-arg=/health",
                          "--vllm-arg=hang", PYTHONPATH=f"{OWN}:{SOURCE}")  # fmt: skip
    log = bench.folder / "r" / "vllm.log"
    wait_until(lambda: log.exists() and len(log.read_text().splitlines()) >= 3)
    pids = [int(line.split()[1]) for line in log.read_text().splitlines()[:2]]
    while process.poll() is None:  # down to the last moment of the process
        process.send_signal(signal.SIGINT)
        time.sleep(0.02)
    ended(process)
    assert read_manifest(bench.folder / "r").status is RunStatus.INTERRUPTED
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
