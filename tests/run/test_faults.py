"""What servers and machines do to a run: how it ends, what it keeps, what the user is told."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.journals import Journals, RunStatus
from harness.records import AttemptOutcome
from harness.store import read_run

from .conftest import Bench, SmallReplica
from .test_run import lines, wait_until

Start = Callable[..., SmallReplica]

SHORT = (
    *("--rate", "40", "--warmup", "0.4", "--duration", "2", "--reset-every", "0.5"),
    *("--prefixes", "2", "--prefix-tokens", "64", "--unique-tokens", "8", "--output-tokens", "5"),
    *("--scenario", "quick.toml", "--out", "r"),
)
"""About 95 requests and 3 resets in 2.4 s, after 4 to prime the cache."""
QUICK_TIMEOUTS = "[timeouts]\nconnect = 1.0\nidle = 2.0\nreset = 0.4\nscrape = 1.0\ndrain = 3.0\n"
PRIMING = 4


@pytest.fixture
def quick(bench: Bench) -> Bench:
    (bench.folder / "quick.toml").write_text(f"{QUICK_TIMEOUTS}give_up = 5.0\n")
    return bench


def complete(bench: Bench, done: subprocess.CompletedProcess[str]) -> Journals:
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    run = read_run(bench.folder / "r")
    assert run.manifest.status is RunStatus.COMPLETE
    assert len(run.requests) == len(run.manifest.plan.arrivals)
    return run


# --- the control side --------------------------------------------------------------------------

RESETS = {
    "hang": (AttemptOutcome.FAILED, "Timeout"),
    "late": (AttemptOutcome.CLEARED, ""),
    "twice": (AttemptOutcome.CLEARED, ""),
    "fail": (AttemptOutcome.REJECTED, "HTTP 500: "),
    "trickle": (AttemptOutcome.FAILED, "no whole answer within 0.4 s"),
}
METRICS = {
    "hang": "Timeout",
    "vanish": "404",
    "large": None,
    "rename": "none of vLLM's metrics",
    "trickle": "no whole answer within 1 s",
}


@pytest.mark.parametrize(("metrics", "reset"), list(zip(METRICS, RESETS, strict=True)))
def test_a_broken_control_side_leaves_the_load_alone(
    quick: Bench, fault_server: Start, metrics: str, reset: str
) -> None:
    server = fault_server("--after", str(PRIMING + 10), "--at", "/metrics", metrics,
                          "--at", "/reset_prefix_cache", reset)  # fmt: skip
    done = quick("run", "--url", server.url, "--reset-mode", "keep", *SHORT)
    run = complete(quick, done)
    assert (run.requests.frame["outcome"] == "ok").all()

    outcome, words = RESETS[reset]
    assert [record.outcome for record in run.resets] == [outcome] * 3
    attempts = [record.attempts[0] for record in run.resets]
    assert all(words in (attempt.error or "") for attempt in attempts)
    if reset == "late":
        assert all(attempt.replied - attempt.called > 0.19 for attempt in attempts)
    if reset == "twice":  # the one before the load, then each reset and its unasked repetition
        assert [attempt.reply["wipes"] for attempt in attempts] == [2, 4, 6]
    if outcome is not AttemptOutcome.CLEARED:
        assert f" {outcome} " in done.stdout

    warnings = [text for text in run.manifest.warnings if "are missing" in text]
    last = max(sample.t for sample in run.server)
    if METRICS[metrics] is None:
        assert warnings == []
        assert last > 1.9
    else:
        assert METRICS[metrics] in " ".join(warnings)
        assert " ".join(warnings[0].split())[:40] in " ".join(done.stdout.split())
        assert last < 1.5


# --- the load side -----------------------------------------------------------------------------


def test_a_server_that_is_slow_for_a_while_shows_in_the_latencies(
    quick: Bench, fault_server: Start
) -> None:
    server = fault_server("--after", str(PRIMING + 30), "--for", "0.4",
                          "--at", "/v1/completions", "slow")  # fmt: skip
    frame = complete(quick, quick("run", "--url", server.url, *SHORT)).requests.frame
    assert (frame["outcome"] == "ok").all()
    latency = frame["finished"] - frame["scheduled"]
    assert latency.max() > 0.15
    assert latency.iloc[-10:].max() < latency.max() / 2


def test_a_replica_stopped_for_a_moment_is_waited_for(quick: Bench, fault_server: Start) -> None:
    server = fault_server()
    process = quick.start("run", "--url", server.url, *SHORT)
    wait_until(lambda: lines(quick.folder / "r" / "requests.jsonl") > 10)
    server.process.send_signal(signal.SIGSTOP)
    time.sleep(0.7)
    server.process.send_signal(signal.SIGCONT)
    out, err = process.communicate(timeout=60)
    done = subprocess.CompletedProcess((), process.returncode, out, err)
    frame = complete(quick, done).requests.frame
    assert (frame["outcome"] == "ok").all()
    assert (frame["finished"] - frame["scheduled"]).max() > 0.5


def test_a_replica_stopped_for_good_ends_the_run(quick: Bench, fault_server: Start) -> None:
    (quick.folder / "quick.toml").write_text(f"{QUICK_TIMEOUTS}give_up = 1.0\n")
    server = fault_server()
    process = quick.start("run", "--url", server.url, *SHORT, "--duration", "30")
    wait_until(lambda: lines(quick.folder / "r" / "requests.jsonl") > 10)
    server.process.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 6
    assert "sent nothing for" in err
    assert "Traceback" not in err
    assert time.monotonic() - began < 25
    run = read_run(quick.folder / "r")
    assert run.manifest.status is RunStatus.FAILED
    assert set(run.requests.frame["outcome"]) <= {"ok", "abandoned", "timeout", "connect_failed"}
    assert (run.requests.frame["outcome"] == "abandoned").any()


# --- this machine ------------------------------------------------------------------------------


def test_out_of_file_descriptors_requests_fail_by_name(quick: Bench, fault_server: Start) -> None:
    quick.through = ("sh", "-c", 'ulimit -n 32; exec "$@"', "sh")
    slow = ("--rate", "80", "--output-tokens", "60")
    run = complete(quick, quick("run", "--url", fault_server().url, *SHORT, *slow))
    frame = run.requests.frame
    assert set(frame["outcome"]) == {"ok", "connect_failed"}
    reasons = set(frame.loc[frame["outcome"] == "connect_failed", "error"])
    assert all("Too many open files" in reason for reason in reasons)


def test_a_low_soft_limit_on_files_is_raised(quick: Bench, fault_server: Start) -> None:
    quick.through = ("sh", "-c", 'ulimit -S -n 32; exec "$@"', "sh")
    slow = ("--rate", "80", "--output-tokens", "60")
    run = complete(quick, quick("run", "--url", fault_server().url, *SHORT, *slow))
    assert (run.requests.frame["outcome"] == "ok").all()


CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static int (*real)(clockid_t, struct timespec *);
static time_t began;

int clock_gettime(clockid_t clock, struct timespec *now)
{
    struct timespec since;
    if (!real)
        real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (clock != CLOCK_REALTIME)
        return result;
    real(CLOCK_MONOTONIC, &since);
    if (!began)
        began = since.tv_sec;
    if (since.tv_sec - began >= atoi(getenv("BACK_AFTER")))
        now->tv_sec -= 3600;
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out)
{
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (out)
        *out = exact.tv_sec;
    return exact.tv_sec;
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler, to bend the clock")
def test_a_wall_clock_set_back_an_hour_changes_nothing(quick: Bench, fault_server: Start) -> None:
    (quick.folder / "clock.c").write_text(CLOCK)
    library = quick.folder / "clock.so"
    command = ["cc", "-shared", "-fPIC", "-o", str(library), "clock.c", "-ldl"]
    subprocess.run(command, cwd=quick.folder, check=True)
    bent = "import time; a = time.time(); time.sleep(2.1); print(time.time() - a)"
    bending = {"LD_PRELOAD": str(library), "BACK_AFTER": "1"}
    python = subprocess.run([sys.executable, "-c", bent], env=bending, capture_output=True,
                            check=True)  # fmt: skip
    assert float(python.stdout) < -3500
    longer = ("--duration", "4", "--reset-every", "1", "--reset-mode", "keep")
    bending["BACK_AFTER"] = "4"
    done = quick("run", "--url", fault_server().url, *SHORT, *longer, **bending)
    run = complete(quick, done)
    frame = run.requests.frame
    assert (frame["outcome"] == "ok").all()
    assert (frame["sent"] >= frame["scheduled"]).all()
    assert (frame["finished"] - frame["scheduled"]).max() < 3
    assert [reset.outcome for reset in run.resets] == [AttemptOutcome.CLEARED] * 3
    times = [sample.t for sample in run.client]
    assert times == sorted(times)


def test_a_report_that_cannot_be_written_says_so(quick: Bench, fault_server: Start) -> None:
    complete(quick, quick("run", "--url", fault_server().url, *SHORT))
    size = (quick.folder / "r" / "recovery.png").stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size - 1000, limits[1]))
    try:
        done = quick("report", "r")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert done.returncode == 7
    assert "recovery.png" in done.stderr
    assert "Traceback" not in done.stderr


# --- a replica of our own ----------------------------------------------------------------------

OWN = Path(__file__).with_name("stand_in")
SOURCE = Path(__file__).parents[2]


def test_killing_our_own_replica_ends_the_run(quick: Bench) -> None:
    process = quick.start("run", *SHORT, "--duration", "30", PYTHONPATH=f"{OWN}:{SOURCE}")
    log = quick.folder / "r" / "vllm.log"
    wait_until(lambda: lines(quick.folder / "r" / "requests.jsonl") > 10)
    pids = {name: int(pid) for name, pid in map(str.split, log.read_text().splitlines()[:2])}
    os.kill(pids["server"], signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 5
    assert "the replica ended with status 137" in " ".join(err.split())
    assert "Traceback" not in err
    assert read_run(quick.folder / "r").manifest.status is RunStatus.FAILED
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids.values())
