"""``scripts/endurance``, much smaller: what it measures, and that it can fail."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from harness.store import read_run

SCRIPT = Path(__file__).parents[2] / "scripts" / "endurance"
SMALL = (
    *("--hours", "0.5", "--rate", "0.2", "--compress", "300", "--burst-seconds", "2"),
    *("--most-lag", "5000", "--most-growth", "100"),
)
"""360 requests in 6 s and 600 in 2 s, on a machine that others use."""


def endurance(*options: str, descriptors: str = "1024") -> subprocess.CompletedProcess[str]:
    shell = ("sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh")
    command = [*shell, sys.executable, str(SCRIPT), *SMALL, *options]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)


def verdicts(done: subprocess.CompletedProcess[str]) -> dict[str, tuple[float, str]]:
    """Value and verdict of each figure."""
    found = re.findall(r"^(\w+: .*): ([\d.,-]+) of at most .*: (\w+)$", done.stdout, re.M)
    return {name: (float(value.replace(",", "")), verdict) for name, value, verdict in found}


def test_memory_is_watched_while_load_is_sent_and_the_burst_is_judged(tmp_path: Path) -> None:
    done = endurance("--out", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    found = verdicts(done)
    assert list(found) == [
        "memory: growth of RSS",
        "memory: requests lost",
        "burst: lag p99",
        "burst: requests lost",
    ]
    assert {verdict for _, verdict in found.values()} == {"met"}
    assert found["burst: lag p99"][0] > 0
    assert found["burst: requests lost"][0] == 0

    lines = re.findall(r"^ +(\d+) min +(\d+) s +([\d.]+) MiB +([+-][\d.]+)%$", done.stdout, re.M)
    assert [int(minutes) for minutes, *_ in lines] == [10, 20, 30]
    assert [int(seconds) <= int(minutes) / 5 for minutes, seconds, *_ in lines] == [True] * 3
    assert all(20 < float(size) < 1000 for _, _, size, _ in lines)
    assert lines[0][-1] == "+0.0"
    assert found["memory: growth of RSS"][0] >= max(float(grown) for *_, grown in lines[1:])

    run = read_run(tmp_path / "memory")
    assert len(run.resets) == 9
    assert 250 < len(run.requests) < 470
    assert set(run.requests.frame["completion_tokens"]) == {100}
    assert 500 < len(read_run(tmp_path / "burst").requests) < 700


def test_each_figure_beyond_its_limit_is_named() -> None:
    done = endurance("--most-growth", "-50", "--most-lag", "0")
    assert done.returncode == 1
    assert [verdict for _, verdict in verdicts(done).values()] == ["MISSED", "met"] * 2


def test_a_lost_request_is_missed() -> None:
    done = endurance("--only", "burst", descriptors="32")
    assert done.returncode == 1, done.stdout + done.stderr
    lost, verdict = verdicts(done)["burst: requests lost"]
    assert lost > 0
    assert verdict == "MISSED"


def test_a_run_that_fails_says_why() -> None:
    done = endurance("--only", "memory", "--rate", "0")
    assert done.returncode == 1
    assert "--rate" in done.stderr
