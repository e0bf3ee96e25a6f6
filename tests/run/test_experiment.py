"""A whole experiment: carried out, interrupted, gone on with, and never mixed."""

from __future__ import annotations

import signal
from collections.abc import Callable

from harness.journals import RunStatus
from harness.store import read_manifest, read_run

from .conftest import Bench, SmallReplica
from .test_run import wait_until

SPEC = """
modes = ["preempt", "keep"]
rates = [40.0]
[load]
warmup = 0.5
duration = 4.0
[prompts]
prefixes = 4
prefix_tokens = 64
unique_tokens = 8
[output]
tokens = 5
[resets]
every = 0.8
"""


def test_an_interrupted_experiment_goes_on_where_it_ended(
    bench: Bench, small_replica: Callable[..., SmallReplica]
) -> None:
    (bench.folder / "x.toml").write_text(SPEC)
    arguments = ("experiment", "x.toml", "--url", small_replica().url, "--out", "x")
    process = bench.start(*arguments)
    first, second = bench.folder / "x" / "40-1-turn0", bench.folder / "x" / "40-1-turn1"
    wait_until((second / "client.jsonl").exists)
    wait_until(lambda: (second / "client.jsonl").stat().st_size > 0)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert read_manifest(second).status is RunStatus.INTERRUPTED
    untouched = (first / "requests.jsonl").stat().st_mtime_ns

    done = bench(*arguments)
    assert done.returncode == 0, done.stderr
    assert (first / "requests.jsonl").stat().st_mtime_ns == untouched
    assert (bench.folder / "x" / "40-1-turn1-cut-short" / "run.json").exists()
    runs = [read_run(path) for path in (first, second)]
    assert [run.manifest.status for run in runs] == [RunStatus.COMPLETE] * 2
    modes = [[reset.mode for reset in run.resets] for run in runs]
    assert all(a != b for a, b in zip(*modes, strict=True))

    (bench.folder / "x.toml").write_text(SPEC.replace("tokens = 5", "tokens = 6"))
    changed = bench(*arguments)
    assert changed.returncode == 2
    assert "other settings" in changed.stderr
