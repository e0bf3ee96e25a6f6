"""A whole experiment: carried out, interrupted, gone on with, and never mixed."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable

from harness.journals import RunStatus
from harness.records import AttemptOutcome
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
    assert "the rule asks for 120 s" in done.stdout
    assert "preempt and keep cost at 40 req/s" in done.stdout  # the report, at its end
    assert "at least 8 are needed" in done.stdout
    summary = json.loads((bench.folder / "x" / "summary.json").read_bytes())
    assert summary["kind"] == "experiment"
    assert summary["experiment"]["verdict"] in (bench.folder / "x" / "report.html").read_text()
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


def test_keep_is_replayed_where_default_cleared_and_the_arms_compare(
    bench: Bench, small_replica: Callable[..., SmallReplica]
) -> None:
    spec = SPEC.replace('modes = ["preempt", "keep"]', 'modes = ["default", "keep"]')
    spec = 'design = "at_idle"\n' + spec.replace("rates = [40.0]", "rates = [5.0]")
    (bench.folder / "idle.toml").write_text(spec)
    done = bench("experiment", "idle.toml", "--url", small_replica().url, "--out", "idle")
    assert done.returncode == 0, done.stderr
    default, keep = (
        read_run(bench.folder / "idle" / f"5-1-{mode}") for mode in ("default", "keep")
    )
    cleared = [r for r in default.resets if r.outcome is AttemptOutcome.CLEARED]
    assert cleared
    assert [reset.outcome for reset in keep.resets] == [AttemptOutcome.CLEARED] * len(cleared)
    for one, other in zip(cleared, keep.resets, strict=True):
        assert abs(one.attempts[-1].called - other.scheduled) < 1e-6
    assert f"default cleared {len(cleared)} of 4 times" in done.stdout

    arms = [f"idle/5-1-{mode}" for mode in ("none", "keep")]
    compared = bench("compare", *arms, "--out", "both")
    assert compared.returncode == 0, compared.stderr
    assert "what a keep wipe costs" in compared.stdout
    assert (bench.folder / "both" / "report.html").exists()
    printed = bench("schema")
    assert "ExperimentReport" in json.loads(printed.stdout)["$defs"]
