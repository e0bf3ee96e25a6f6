"""Whole runs of ``bench`` as a process, against small replicas that are processes too."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

SMALL_REPLICA = Path(__file__).with_name("small_replica.py")
FAULT_SERVER = Path(__file__).with_name("fault_server.py")
QUICK = (
    *("--rate", "40", "--warmup", "0.5", "--duration", "3", "--reset-every", "0.75"),
    *("--prefixes", "4", "--prefix-tokens", "64", "--unique-tokens", "8", "--output-tokens", "5"),
)
"""About 140 requests and 3 resets in 3.5 s."""
EXPERIMENT = """
modes = ["sham", "keep"]
rates = [40.0]
[load]
warmup = 0.4
duration = 2.0
[prompts]
prefixes = 2
prefix_tokens = 64
unique_tokens = 8
[output]
tokens = 5
[resets]
every = 0.5
"""


@dataclass
class SmallReplica:
    url: str
    process: subprocess.Popen[str]


class Bench:
    """``bench`` as a user starts it, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.through: tuple[str, ...] = ()
        """A command that starts ``bench``, if not this process."""

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.through, sys.executable, "-m", "harness", *arguments],
            cwd=self.folder, text=True, env={**os.environ, "COLUMNS": "120", **environment},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def __call__(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, **environment)
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def small_replica() -> Iterator[Callable[..., SmallReplica]]:
    """Start small replicas that live until the test ends."""
    with _servers(SMALL_REPLICA) as start:
        yield start


@pytest.fixture
def fault_server() -> Iterator[Callable[..., SmallReplica]]:
    """Start fault servers that live until the test ends."""
    with _servers(FAULT_SERVER) as start:
        yield start


@contextmanager
def _servers(script: Path) -> Iterator[Callable[..., SmallReplica]]:
    with ExitStack() as stack:

        def start(*arguments: str) -> SmallReplica:
            command = [sys.executable, str(script), *arguments]
            process = stack.enter_context(
                subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            )
            stack.callback(process.kill)
            assert process.stdout is not None
            return SmallReplica(f"http://127.0.0.1:{process.stdout.readline().strip()}", process)

        yield start
