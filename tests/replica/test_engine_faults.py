"""The engine of a run's own vLLM is stopped, goes on, and is killed: how the run ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.journals import RunStatus
from harness.store import read_run

from .test_managed import descendants


class OwnRun:
    """``bench run`` with a vLLM of its own, under way."""

    def __init__(self, folder: Path) -> None:
        (folder / "quick.toml").write_text("[timeouts]\ngive_up = 6.0\n")
        self.folder = folder / "r"
        command = (
            *(sys.executable, "-m", "harness", "run", "--rate", "4", "--duration", "300"),
            *("--warmup", "1", "--prefixes", "4", "--output-tokens", "20", "--out", "r"),
            *("--scenario", "quick.toml"),
        )
        self.process = subprocess.Popen(command, cwd=folder, text=True, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE)  # fmt: skip
        until(lambda: self.requests > 8, 240)
        self.processes = descendants(self.process.pid)

    @property
    def requests(self) -> int:
        """How many are in the journal."""
        file = self.folder / "requests.jsonl"
        assert self.process.poll() is None, self.process.communicate()
        return file.read_bytes().count(b"\n") if file.exists() else 0

    def engine(self) -> int:
        titles = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in self.processes}
        (engine,) = [pid for pid, title in titles.items() if b"EngineCore" in title]
        return engine

    def ended(self, code: int, seconds: float) -> str:
        """What it said at its end: exit ``code``, no traceback, and no process left behind."""
        out, err = self.process.communicate(timeout=seconds)
        assert self.process.returncode == code, out + err
        assert "Traceback" not in err
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in self.processes), 20)
        return err


def until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


@pytest.fixture
def own_run(tmp_path: Path) -> Iterator[OwnRun]:
    run = OwnRun(tmp_path)
    yield run
    run.process.kill()
    run.process.communicate()


def test_an_engine_that_pauses_is_waited_for_and_one_that_dies_ends_the_run(own_run) -> None:
    os.kill(own_run.engine(), signal.SIGSTOP)
    time.sleep(2)
    os.kill(own_run.engine(), signal.SIGCONT)
    seen = own_run.requests
    until(lambda: own_run.requests > seen + 10, 60)
    os.kill(own_run.engine(), signal.SIGKILL)
    assert "the replica ended with status" in " ".join(own_run.ended(5, 90).split())
    run = read_run(own_run.folder)
    assert run.manifest.status is RunStatus.FAILED
    frame = run.requests.frame
    assert (frame["outcome"] == "ok").sum() > 15
    waited = frame.loc[frame["outcome"] == "ok", "finished"] - frame["scheduled"]
    assert waited.max() > 1.5


def test_an_engine_stopped_for_good_ends_the_run_and_is_ended(own_run) -> None:
    os.kill(own_run.engine(), signal.SIGSTOP)
    assert "sent nothing for" in own_run.ended(6, 90)
    run = read_run(own_run.folder)
    assert run.manifest.status is RunStatus.FAILED
    assert (run.requests.frame["outcome"] == "abandoned").any()
