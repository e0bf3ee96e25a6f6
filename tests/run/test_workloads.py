"""Whole runs of each kind of workload: what is sent, in which order, and what the user is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.journals import Journals, RunStatus
from harness.store import read_run

from .conftest import QUICK, Bench, SmallReplica

Start = Callable[..., SmallReplica]
TRACES = Path(__file__).parents[1] / "load" / "traces"
RESETS = '[resets]\nmode = "keep"\nevery = 0.5\n'


@pytest.fixture
def carried_out(bench: Bench, small_replica: Start) -> Callable[[str], tuple[Journals, str]]:
    def carry_out(scenario: str) -> tuple[Journals, str]:
        (bench.folder / "mine.toml").write_text(scenario + RESETS)
        url = small_replica().url
        done = bench("run", "--scenario", "mine.toml", "--url", url, "--out", "r")
        assert done.returncode == 0, done.stderr
        run = read_run(bench.folder / "r")
        assert run.manifest.status is RunStatus.COMPLETE
        assert (run.requests.frame["outcome"] == "ok").all()
        assert run.manifest.preparation["cold_cached_share"] == 0
        return run, done.stdout

    return carry_out


def test_a_tree_primes_every_leaf_and_finds_none_cached(carried_out) -> None:
    run, out = carried_out(
        "[load]\nrate = 40.0\nwarmup = 0.3\nduration = 2.0\n"
        "[prompts]\nfamily = 'tree'\ntree = [[2, 40], [3, 20]]\nunique_tokens = 8\n"
        "[output]\ntokens = 5\n"
    )
    assert "priming 6 prefixes" in out
    frame = run.requests.frame
    assert len(frame) == len(run.manifest.plan.arrivals)
    assert (frame["prompt_tokens"] == 68).all()
    assert set(frame["prefix"]) == {0, 1}
    assert not frame["closed_loop"].any()


def test_a_run_is_exported(bench: Bench, small_replica: Start) -> None:
    assert bench("run", "--url", small_replica().url, *QUICK, "--out", "r").returncode == 0
    done = bench("export", "r", "--to", "vllm-bench")
    assert done.returncode == 0, done.stderr
    told = json.loads((bench.folder / "r" / "vllm-bench.json").read_bytes())
    assert told["completed"] == told["num_prompts"] > 50
    assert set(told["output_lens"]) == {5}
    assert bench("export", "r", "--to", "csv", "--out", "all.csv").returncode == 0
    rows = (bench.folder / "all.csv").read_text().splitlines()
    assert len(rows) == 1 + len(read_run(bench.folder / "r").requests)
    assert bench("export", "nowhere", "--to", "csv").returncode == 7


def test_a_trace_is_sent_with_its_sizes_and_its_reuse_is_told(carried_out) -> None:
    run, out = carried_out(
        "[load]\nprocess = 'replay'\nrate = 20.0\nwarmup = 0.3\nduration = 2.0\n"
        "[prompts]\nfamily = 'trace'\nprefix_tokens = 64\nunique_tokens = 8\n"
        f"[trace]\nfile = '{TRACES / 'mooncake.jsonl'}'\n"
    )
    assert "best possible hit rate of its requests: " in out
    frame, arrivals = run.requests.frame, run.manifest.plan.arrivals
    assert frame["prompt_tokens"].tolist() == [one.prompt_tokens for one in arrivals]
    assert frame["completion_tokens"].tolist() == [one.output_tokens for one in arrivals]
    assert frame["scheduled"].tolist() == [one.scheduled for one in arrivals]


def test_a_trace_is_taken_by_its_option_alone(bench: Bench, small_replica: Start) -> None:
    done = bench(
        *(
            "run",
            "--url",
            small_replica().url,
            "--out",
            "r",
            "--trace",
            str(TRACES / "mooncake.jsonl"),
        ),
        *("--rate", "20", "--warmup", "0.3", "--duration", "2", "--prefix-tokens", "64"),
        *("--unique-tokens", "8", "--reset-mode", "keep", "--reset-every", "0.5"),
    )
    assert done.returncode == 0, done.stderr
    assert "replayed 12.2 times as fast" in done.stdout
    assert "best possible hit rate of its requests: " in done.stdout
    run = read_run(bench.folder / "r")
    arrivals = run.manifest.plan.arrivals
    assert run.requests.frame["prompt_tokens"].tolist() == [one.prompt_tokens for one in arrivals]
    assert (run.requests.frame["outcome"] == "ok").all()


def test_the_texts_of_a_trace_are_sent(carried_out) -> None:
    run, _ = carried_out(
        "[load]\nprocess = 'constant'\nrate = 0.9\nwarmup = 0.1\nduration = 2.0\n"
        "[prompts]\nfamily = 'trace'\nform = 'text'\nprefix_tokens = 64\nunique_tokens = 8\n"
        f"[trace]\nfile = '{TRACES / 'sharegpt.json'}'\nformat = 'sharegpt'\n"
    )
    assert set(run.requests.frame["prompt_tokens"]) == {5}


@pytest.mark.parametrize("form", ["token_ids", "text"])
def test_a_session_goes_on_where_it_ended_and_says_so(carried_out, form: str) -> None:
    run, _ = carried_out(
        "[load]\nrate = 30.0\nwarmup = 0.5\nduration = 3.0\n"
        f"[prompts]\nform = '{form}'\nfamily = 'sessions'\nprefixes = 4\nprefix_tokens = 64\n"
        "unique_tokens = 8\nturns = 3\nthink = 0.2\n[output]\ntokens = 5\n"
    )
    plan, frame = run.manifest.plan, run.requests.frame.set_index("id")
    followed = 0
    for arrival in plan.arrivals:
        before, size = arrival.id, 72
        assert frame["prompt_tokens"][before] == size
        for turn in arrival.later:
            at = frame["finished"][before] + turn.think
            if at >= plan.end:
                assert turn.id not in frame.index
                break
            assert frame["scheduled"][turn.id] == pytest.approx(at)
            assert frame["started"][turn.id] >= at
            size += 5 + 8
            assert frame["prompt_tokens"][turn.id] == size
            followed, before = followed + 1, turn.id
    assert followed == frame["closed_loop"].sum() == len(frame) - len(plan.arrivals)
    assert followed > 20
