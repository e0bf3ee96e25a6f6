"""Plans: purity, what one draw leaves alone, and what a run without options is."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.plan import make_plan
from harness.records import ResetMode
from harness.scenario import Scenario
from harness.settings import read_scenario


def test_a_run_with_only_rate_and_mode_is_a_short_look() -> None:
    scenario = read_scenario(None, {"load.rate": 4.0, "resets.mode": "keep"})
    plan = make_plan(scenario)
    assert plan.end <= 180
    assert len(plan.resets) >= 3
    assert all(reset.mode is ResetMode.KEEP for reset in plan.resets)
    assert plan.resets[0].scheduled > scenario.load.warmup


def test_shipped_scenarios_can_be_planned() -> None:
    files = sorted((Path(__file__).parents[1] / "scenarios").glob("*.toml"))
    assert files
    for file in files:
        assert make_plan(read_scenario(file, {})).arrivals


@given(seed=st.integers(0, 2**40), mode=st.sampled_from(ResetMode))
def test_a_plan_is_a_pure_function_and_the_mode_changes_resets_only(
    seed: int, mode: ResetMode
) -> None:
    flags = {"seed": seed, "load.duration": 20.0, "load.warmup": 1.0}
    control = make_plan(read_scenario(None, flags))
    again = make_plan(read_scenario(None, {**flags, "resets.mode": mode}))
    assert again.arrivals == control.arrivals
    assert again.digest == control.digest
    other = make_plan(read_scenario(None, {**flags, "seed": seed + 1}))
    assert other.digest != control.digest


def test_changing_one_draw_leaves_the_others_as_they_are() -> None:
    plain = make_plan(Scenario())
    drawn = make_plan(read_scenario(None, {"output.law": "geometric", "load.duration": 600.0}))
    assert [a.scheduled for a in plain.arrivals] == [a.scheduled for a in drawn.arrivals]
    assert [a.prefix for a in plain.arrivals] == [a.prefix for a in drawn.arrivals]
    assert len({a.output_tokens for a in drawn.arrivals}) > 10


@pytest.mark.parametrize("law", ["uniform", "geometric"])
def test_drawn_output_lengths_have_the_mean_asked_for(law: str) -> None:
    flags = {"output.law": law, "output.tokens": 50, "load.rate": 100.0}
    lengths = [a.output_tokens for a in make_plan(read_scenario(None, flags)).arrivals]
    assert min(lengths) >= 1
    assert sum(lengths) / len(lengths) == pytest.approx(50, rel=0.03)
