"""Workloads in plans: what is fixed stays fixed, what is drawn is drawn right, traces decide."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from scipy import stats

from harness.analysis.gate.baseline import another_plan
from harness.errors import UsageError
from harness.experiment.plan import read_experiment
from harness.gate import read_baseline
from harness.load.traces import read_trace
from harness.plan import Plan, make_plan
from harness.scenario import Scenario, identity
from harness.settings import read_scenario
from harness.workload import offers, prompts_of, texts_of

ROOT = Path(__file__).parents[1]
TRACES = Path(__file__).parent / "load" / "traces"


def planned(**flags: object) -> Plan:
    quick = {"load.warmup": 1.0, "load.duration": 20.0}
    named = {key.replace("__", "."): value for key, value in flags.items()}
    return make_plan(read_scenario(None, quick | named))


def traced(name: str, kind: str, **flags: object) -> Plan:
    file = {"trace__file": str(TRACES / name), "trace__format": kind}
    return planned(**file, load__process="replay", **flags)


def test_digests_of_what_uses_no_later_field_are_as_they_were() -> None:
    """Written down before these fields existed: baselines and begun experiments rest on them."""
    assert make_plan(Scenario()).digest.startswith("d53ab9f69d128dcd")
    look = make_plan(read_scenario(ROOT / "scenarios" / "look.toml", {}))
    assert look.digest.startswith("d968a3b814d18ce7")
    gate = read_experiment(ROOT / "scenarios" / "experiments" / "gate.toml")
    digest = hashlib.sha256(msgspec.json.encode(identity(gate))).hexdigest()
    baseline = msgspec.json.decode((ROOT / "results" / "baseline.json").read_bytes())
    assert digest == baseline["made_from"]["experiment"]


def test_a_baseline_of_before_is_another_plan_only_where_a_later_knob_is_used() -> None:
    old = read_baseline(ROOT / "results" / "baseline.json")
    setting = dict(old.made_from.setting)
    gate = read_experiment(ROOT / "scenarios" / "experiments" / "gate.toml").scenario
    assert {key for key in setting if key.startswith("load.")} == {
        f"load.{key}" for key in identity(gate)["load"]
    }
    assert another_plan(old, old) is None
    made_from = msgspec.structs.replace(old.made_from, setting=setting | {"load.process": "gamma"})
    runs = tuple(msgspec.structs.replace(run, plan="other") for run in old.runs)
    new = msgspec.structs.replace(old, made_from=made_from, runs=runs)
    assert another_plan(new, old) == "another plan: only the candidate sets load.process, to gamma"


def test_an_arrival_of_the_default_workload_is_written_as_it_was() -> None:
    arrival = make_plan(Scenario()).arrivals[0]
    assert list(msgspec.to_builtins(arrival)) == ["id", "scheduled", "prefix", "output_tokens"]


PROCESSES = {
    "gamma": {"load__burstiness": 0.5},
    "constant": {},
    "ramp": {"load__levels": [1.0, 3.0]},
    "steps": {"load__levels": [1.0, 3.0, 0.0]},
    "on_off": {"load__on": 1.0, "load__off": 2.0},
}


@pytest.mark.parametrize("process", PROCESSES)
def test_a_process_moves_instants_and_nothing_else(process: str) -> None:
    plain = planned(load__rate=50.0)
    moved = planned(load__rate=50.0, load__process=process, **PROCESSES[process])
    assert moved.digest != plain.digest
    assert moved == planned(load__rate=50.0, load__process=process, **PROCESSES[process])
    assert len(moved.arrivals) == pytest.approx(50 * 21, rel=0.15)
    both = zip(plain.arrivals, moved.arrivals, strict=False)
    assert sum(a.scheduled == b.scheduled for a, b in both) == 0
    assert moved.resets == plain.resets


def test_ways_down_a_tree_are_drawn_level_by_level() -> None:
    plan = planned(load__rate=200.0, prompts__family="tree",
                   prompts__tree=[[2, 30], [3, 20], [4, 10]])  # fmt: skip
    assert all(arrival.prefix == arrival.path[0] for arrival in plan.arrivals)
    assert {len(arrival.path) for arrival in plan.arrivals} == {3}
    assert plan.prefixes == 2
    first = Counter(arrival.path[1] for arrival in plan.arrivals)
    share = first[0] / len(plan.arrivals)
    assert share == pytest.approx(6 / 11, abs=0.03)  # Zipf over three children
    prompts = prompts_of(plan.scenario)
    assert {len(prompts.token_ids(arrival)) for arrival in plan.arrivals[:50]} == {120}


def test_unique_prompts_have_no_prefix() -> None:
    plan = planned(prompts__family="unique", prompts__prefix_tokens=50, prompts__unique_tokens=7)
    prompts = prompts_of(plan.scenario)
    made = [prompts.token_ids(arrival) for arrival in plan.arrivals]
    assert {len(ids) for ids in made} == {57}
    assert len({tuple(ids[:16]) for ids in made}) == len(made)
    assert (plan.prefixes, plan.arrivals[0].path) == (1, ())


def test_a_replay_without_a_rate_is_as_recorded() -> None:
    plan = traced("mooncake.jsonl", "mooncake", prompts__family="trace")
    rows = read_trace(plan.scenario.trace).rows
    expected = [row.at for row in rows if row.at < 21]
    assert [one.scheduled for one in plan.arrivals] == pytest.approx(expected)
    assert plan.scenario.load.rate == pytest.approx(48 / rows[-1].at)
    assert [one.path for one in plan.arrivals] == [row.blocks for row in rows[: len(expected)]]
    assert [one.output_tokens for one in plan.arrivals] == [
        row.output_tokens for row in rows[: len(expected)]
    ]
    prompts = prompts_of(plan.scenario)
    for arrival in plan.arrivals[:5]:
        assert len(prompts.token_ids(arrival)) == arrival.prompt_tokens


def test_a_replay_with_a_rate_is_stretched_to_it() -> None:
    plan = traced("mooncake.jsonl", "mooncake", load__rate=2.0, prompts__family="zipf")
    whole = read_trace(plan.scenario.trace)
    stretch = whole.rate / 2.0
    assert plan.arrivals[7].scheduled == pytest.approx(whole.rows[7].at * stretch)
    assert plan.arrivals[7].path == ()


def test_prefixes_of_a_trace_are_its_first_blocks_in_order() -> None:
    plan = traced("mooncake.jsonl", "mooncake", prompts__family="trace")
    firsts: dict[int, int] = {}
    for arrival in plan.arrivals:
        assert arrival.prefix == firsts.setdefault(arrival.path[0], len(firsts))
    assert plan.prefixes == len(firsts) > 1


def test_rows_in_order_go_with_any_process() -> None:
    flags = {"trace__file": str(TRACES / "azure.csv"), "trace__format": "azure"}
    plan = planned(**flags, prompts__family="trace", load__process="constant", load__rate=0.15)
    assert [(one.prompt_tokens, one.output_tokens) for one in plan.arrivals] == [
        (374, 44), (396, 109), (879, 55),
    ]  # fmt: skip


def test_the_digest_includes_what_the_trace_decides(tmp_path: Path) -> None:
    def digest_of(text: str) -> str:
        file = tmp_path / f"{hashlib.sha256(text.encode()).hexdigest()}.json"
        file.write_text(text)
        flags = {"trace__file": str(file), "trace__format": "sharegpt", "prompts__form": "text"}
        return planned(
            **flags, prompts__family="trace", load__process="constant", load__rate=0.09
        ).digest

    text = (TRACES / "sharegpt.json").read_text()
    assert digest_of(text) == digest_of(text + " ")
    assert digest_of(text) != digest_of(text.replace("Europe", "Oceania"))


def test_sharegpt_sends_its_own_words() -> None:
    flags = {"trace__file": str(TRACES / "sharegpt.json"), "trace__format": "sharegpt"}
    plan = planned(
        **flags,
        prompts__family="trace",
        prompts__form="chat",
        load__process="constant",
        load__rate=0.09,
    )
    assert [texts_of(plan.scenario)[one.row] for one in plan.arrivals] == [
        "Name three rivers of Europe.", "Name three rivers of Africa.",
    ][: len(plan.arrivals)]  # fmt: skip
    assert plan.arrivals
    with pytest.raises(UsageError, match="ShareGPT is text"):
        planned(**flags, prompts__family="trace")
    with pytest.raises(UsageError, match="ShareGPT has no instants"):
        planned(**flags, load__process="replay")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"load__duration": 100.0}, "the trace lasts .* Shorten the load"),
        ({"load__process": "poisson", "load__rate": 9.0, "prompts__family": "trace"},
         "the load has .* requests and the trace 48 rows"),
        ({"prompts__family": "trace", "output__tokens": 7}, "--output-tokens .* goes with"),
        ({"trace__window": [5.0, 5.0]}, "its begin must lie before its end"),
    ],
)  # fmt: skip
def test_a_trace_too_short_or_contradicted_is_a_usage_error(flags, message: str) -> None:
    file = {"trace__file": str(TRACES / "mooncake.jsonl"), "load__process": "replay"}
    with pytest.raises(UsageError, match=message):
        planned(**(file | flags))


def test_instants_have_no_prompts(tmp_path: Path) -> None:
    file = tmp_path / "instants"
    file.write_text("".join(f"{n / 4}\n" for n in range(100)))
    flags = {"trace__file": str(file), "trace__format": "instants", "load__process": "replay"}
    assert [one.scheduled for one in planned(**flags).arrivals[:3]] == pytest.approx([0, 0.25, 0.5])
    with pytest.raises(UsageError, match="instants has no prompts"):
        planned(**flags, prompts__family="trace")


def test_what_a_trace_offers_is_told(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text((TRACES / "mooncake.jsonl").read_text() + "torn\n")
    plan = planned(trace__file=str(file), trace__bad_share=0.1, load__process="replay",
                   prompts__family="trace")  # fmt: skip
    told = offers(plan.scenario, plan.arrivals)
    assert "48 rows" in told[0]
    assert "replayed 1 times as fast" in told[0]
    assert "do not parse: 1 (line 49" in told[1]
    asked = found = 0
    seen: set[tuple[int, ...]] = set()
    for one in plan.arrivals:
        asked += one.prompt_tokens
        known = [n for n in range(len(one.path) + 1) if one.path[:n] in seen]
        found += min(512 * max(known, default=0), one.prompt_tokens)
        seen |= {one.path[: n + 1] for n in range(len(one.path))}
    assert told[2].startswith("best possible hit rate")
    share = float(told[2].split(": ")[1].split("%")[0]) / 100
    assert share == pytest.approx(found / asked, abs=0.02)
    assert share > 0.2
    assert offers(Scenario(), ()) == []
    sizes = [one.prompt_tokens + one.output_tokens for one in plan.arrivals]
    assert not any("exceed" in line for line in offers(plan.scenario, plan.arrivals, max(sizes)))
    over = offers(plan.scenario, plan.arrivals, max(sizes) - 1)
    assert any(f"1 of {len(sizes)} requests exceed" in line for line in over)


def test_sessions_plan_their_turns() -> None:
    plan = planned(load__rate=40.0, load__duration=100.0, prompts__family="sessions",
                   prompts__turns=4, prompts__think=2.0, output__law="geometric")  # fmt: skip
    assert len(plan.arrivals) == pytest.approx(40 * 101 / 4, rel=0.1)
    assert {len(one.later) for one in plan.arrivals} == {3}
    ids = [one.id for one in plan.arrivals]
    ids += [turn.id for one in plan.arrivals for turn in one.later]
    assert sorted(ids) == list(range(4 * len(plan.arrivals)))
    thinks = [turn.think for one in plan.arrivals for turn in one.later]
    assert stats.kstest(thinks, stats.expon(scale=2.0).cdf).pvalue > 0.01
    assert len({turn.output_tokens for one in plan.arrivals for turn in one.later}) > 20
    assert not any(one.closed_loop for one in plan.arrivals)
    assert plan.scenario.poisson_rate is None
    other = planned(load__rate=40.0, load__duration=100.0, prompts__family="sessions",
                    prompts__turns=4, prompts__think=3.0, output__law="geometric")  # fmt: skip
    assert other.digest != plan.digest
