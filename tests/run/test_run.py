"""Whole runs: what is journaled, how they end, and what the user is told."""

from __future__ import annotations

import resource
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.journals import RunStatus
from harness.records import AttemptOutcome, PreemptionSource
from harness.store import read_run

from .conftest import QUICK, Bench, SmallReplica

Start = Callable[..., SmallReplica]


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def lines(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0


@pytest.mark.parametrize("mode", ["none", "default", "preempt", "keep"])
def test_a_run_journals_everything_and_reports(
    bench: Bench, small_replica: Start, mode: str
) -> None:
    done = bench("run", "--url", small_replica().url, "--reset-mode", mode, *QUICK, "--out", "r")
    assert done.returncode == 0, done.stderr
    run = read_run(bench.folder / "r")
    frame = run.requests.frame
    assert run.manifest.status is RunStatus.COMPLETE
    assert len(frame) == len(run.manifest.plan.arrivals)
    assert (frame["outcome"] == "ok").all()
    assert (frame["started"] >= frame["scheduled"]).all()
    assert (frame["sent"] >= frame["started"]).all()
    assert (frame["finished"] > frame["first_token"]).all()
    assert (frame["completion_tokens"] == 5).all()
    assert run.manifest.preparation["cold_cached_share"] == 0
    assert run.manifest.preparation["emptied"]
    assert len(run.server) >= 7
    assert len(run.resets) == (0 if mode == "none" else 3)
    if mode in ("preempt", "keep"):
        assert {reset.outcome for reset in run.resets} == {AttemptOutcome.CLEARED}
        assert {reset.preemptions_source for reset in run.resets} == {PreemptionSource.REPLY}
    assert (bench.folder / "r" / "recovery.png").stat().st_size > 10_000
    again = bench("report", "r")
    assert again.returncode == 0
    assert again.stdout.splitlines()[-8:] == done.stdout.splitlines()[-8:]


def test_a_refused_default_is_tried_again_and_every_attempt_kept(
    bench: Bench, small_replica: Start
) -> None:
    busy = (*QUICK, "--rate", "150", "--output-tokens", "20")
    bench("run", "--url", small_replica().url, "--reset-mode", "default", *busy, "--out", "r")
    resets = read_run(bench.folder / "r").resets
    assert [reset.id for reset in resets] == [0, 1, 2]
    assert any(len(reset.attempts) > 3 for reset in resets)
    for reset in resets:
        gaps = [
            b.called - a.called for a, b in zip(reset.attempts, reset.attempts[1:], strict=False)
        ]
        assert all(gap >= 0.05 for gap in gaps)
        assert all(a.outcome is AttemptOutcome.REFUSED for a in reset.attempts[:-1])


def test_a_server_without_keep_ends_the_run_before_any_load(
    bench: Bench, small_replica: Start
) -> None:
    done = bench("run", "--url", small_replica("--stock").url, "--reset-mode", "keep", *QUICK)
    assert done.returncode == 4
    assert "vllm-keep-reset" in done.stderr
    assert "Traceback" not in done.stderr


def test_stock_preemptions_come_from_the_counter(bench: Bench, small_replica: Start) -> None:
    replica = small_replica("--stock")
    done = bench("run", "--url", replica.url, "--reset-mode", "preempt", *QUICK, "--out", "r")
    assert done.returncode == 0, done.stderr
    assert all(reset.preemptions is None for reset in read_run(bench.folder / "r").resets)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--rate", "0"], 2, "--rate"),
        (["--rate", "nan"], 2, "--rate"),
        (["--duration", "-3"], 2, "--duration"),
        (["--reset-every", "inf", "--reset-mode", "keep"], 2, "--reset-every"),
        (["--reset-mode", "keap"], 2, "keap"),
        (["--url", "ftp://localhost"], 2, "http://"),
        (["--url", "http://127.0.0.1:9"], 3, "127.0.0.1:9"),
        (["--control-url", "http://127.0.0.1:9"], 2, "--url"),
        (["--scenario", "none.toml"], 2, "none.toml"),
        (["--target", "none.toml"], 2, "none.toml"),
        (["--key-env", "NO_SUCH_KEY", "--url", "http://127.0.0.1:9"], 2, "NO_SUCH_KEY"),
    ],
)
def test_what_cannot_run_says_so_and_starts_nothing(
    bench: Bench, arguments: list[str], code: int, message: str
) -> None:
    done = bench("run", *arguments)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_used_folder_is_left_alone(bench: Bench, small_replica: Start) -> None:
    (bench.folder / "r").mkdir()
    (bench.folder / "r" / "precious").write_text("mine")
    done = bench("run", "--url", small_replica().url, *QUICK, "--out", "r")
    assert done.returncode == 7
    assert [file.name for file in (bench.folder / "r").iterdir()] == ["precious"]


@pytest.mark.parametrize(("then", "words"), [("hang", "sent nothing"), ("fail", "every request")])
def test_a_server_that_stops_answering_ends_the_run(
    bench: Bench, small_replica: Start, then: str, words: str
) -> None:
    scenario = bench.folder / "patient.toml"
    scenario.write_text("[timeouts]\ngive_up = 1.0\n[load]\nduration = 60.0\nwarmup = 0.5\n")
    replica = small_replica("--answer-until", "60", "--then", then)
    arguments = [a for a in QUICK if a not in ("--duration", "3", "--warmup", "0.5")]
    began = time.monotonic()
    done = bench("run", "--url", replica.url, "--scenario", "patient.toml", *arguments,
                 "--out", "r")  # fmt: skip
    assert time.monotonic() - began < 30
    assert done.returncode == 6
    assert words in done.stderr
    run = read_run(bench.folder / "r")
    assert run.manifest.status is RunStatus.FAILED
    frame = run.requests.frame
    assert (frame["outcome"] == "ok").sum() == 52  # 60 less the priming of 4 prefixes, twice
    assert len(frame) < len(run.manifest.plan.arrivals) / 4
    assert "recovery.png" in done.stdout


def test_a_server_that_dies_leaves_named_failures(bench: Bench, small_replica: Start) -> None:
    scenario = bench.folder / "patient.toml"
    scenario.write_text("[timeouts]\ngive_up = 1.0\n")
    replica = small_replica()
    process = bench.start("run", "--url", replica.url, "--scenario", "patient.toml", *QUICK,
                          "--duration", "60", "--out", "r")  # fmt: skip
    wait_until(lambda: lines(bench.folder / "r" / "requests.jsonl") > 30)
    replica.process.kill()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 6
    assert "every request has failed" in err
    outcomes = set(read_run(bench.folder / "r").requests.frame["outcome"])
    assert "connect_failed" in outcomes
    assert outcomes <= {"ok", "connect_failed", "disconnected"}


def test_ctrl_c_once_drains_and_reports(bench: Bench, small_replica: Start) -> None:
    process = bench.start("run", "--url", small_replica().url, *QUICK, "--duration", "60",
                          "--out", "r")  # fmt: skip
    wait_until(lambda: lines(bench.folder / "r" / "requests.jsonl") > 30)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    run = read_run(bench.folder / "r")
    assert run.manifest.status is RunStatus.INTERRUPTED
    assert (run.requests.frame["outcome"] == "ok").all()
    assert "recovery.png" in out


@pytest.mark.parametrize("signals", [[signal.SIGINT, signal.SIGINT], [signal.SIGTERM]])
def test_twice_or_sigterm_stops_at_once(
    bench: Bench, small_replica: Start, signals: list[signal.Signals]
) -> None:
    # 400 tokens take 2 s: there are always requests in flight, and a drain would take as long.
    process = bench.start("run", "--url", small_replica().url, *QUICK, "--duration", "60",
                          "--output-tokens", "400", "--out", "r")  # fmt: skip
    wait_until(lambda: lines(bench.folder / "r" / "client.jsonl") > 1)
    for one in signals:
        process.send_signal(one)
        time.sleep(0.3)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    run = read_run(bench.folder / "r")
    assert run.manifest.status is RunStatus.INTERRUPTED
    abandoned = run.requests.frame["outcome"] == "abandoned"
    assert abandoned.any()
    assert (run.requests.frame.loc[abandoned, "sent"] > 0).all()
    assert run.requests.frame.loc[abandoned, "first_token"].notna().any()


def test_a_killed_run_still_reports(bench: Bench, small_replica: Start) -> None:
    process = bench.start("run", "--url", small_replica().url, *QUICK, "--duration", "60",
                          "--reset-mode", "keep", "--out", "r")  # fmt: skip
    wait_until(lambda: lines(bench.folder / "r" / "resets.jsonl") > 1)
    process.kill()
    process.communicate(timeout=60)
    run = read_run(bench.folder / "r")
    assert run.manifest.status is RunStatus.RUNNING
    assert len(run.requests) > 30
    done = bench("report", "r")
    assert done.returncode == 0, done.stderr
    assert "no record" in done.stdout


def test_a_full_disk_stops_the_run_and_says_so(bench: Bench, small_replica: Start) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (250_000, hard))
    try:
        process = bench.start("run", "--url", small_replica().url, *QUICK, "--duration", "10",
                              "--rate", "100", "--output-tokens", "30", "--out", "r")  # fmt: skip
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 7
    assert "requests.jsonl" in err
    assert "Traceback" not in err
    assert len(read_run(bench.folder / "r").requests) > 30


def test_a_deleted_folder_stops_the_run_and_says_so(bench: Bench, small_replica: Start) -> None:
    process = bench.start("run", "--url", small_replica().url, *QUICK, "--duration", "60",
                          "--out", "r")  # fmt: skip
    wait_until(lambda: lines(bench.folder / "r" / "requests.jsonl") > 30)
    shutil.rmtree(bench.folder / "r")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 7
    assert "Traceback" not in err


def test_a_key_reaches_the_server_and_no_artefact(bench: Bench, small_replica: Start) -> None:
    secret = "sk-very-secret-93b1"
    done = bench("run", "--url", small_replica().url, *QUICK, "--header", f"X-Extra: {secret}",
                 "--out", "r", VLLM_API_KEY=secret)  # fmt: skip
    assert done.returncode == 0, done.stderr
    texts = [done.stdout.encode(), done.stderr.encode()]
    texts += [file.read_bytes() for file in (bench.folder / "r").iterdir()]
    assert all(secret.encode() not in text for text in texts)


def test_version_and_help_need_no_server(bench: Bench) -> None:
    assert bench("--version").stdout.startswith("bench 0.")
    for command in ("run", "serve", "report", "doctor"):
        assert bench(command, "--help").returncode == 0
