"""Plans: ranges, unknown keys, purity, and what a run without options is."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.plan import make_plan
from harness.records import ResetMode
from harness.scenario import Scenario, read_scenario, reset_instants


def test_a_run_with_only_rate_and_mode_is_a_short_look() -> None:
    scenario = read_scenario(None, {"load.rate": 4.0, "resets.mode": "keep"})
    plan = make_plan(scenario)
    assert plan.end <= 180
    assert len(plan.resets) >= 3
    assert all(reset.mode is ResetMode.KEEP for reset in plan.resets)
    assert plan.resets[0].scheduled > scenario.load.warmup


def test_naming_any_timing_leaves_the_look_for_the_rules() -> None:
    scenario = read_scenario(None, {"load.duration": 480.0, "resets.mode": "keep"})
    assert scenario.load.warmup == 60
    assert reset_instants(scenario) == (180, 300, 420)


def test_reset_at_counts_from_the_end_of_the_warmup() -> None:
    scenario = read_scenario(None, {"load.warmup": 10.0, "resets.at": [30.0, 5.0]})
    assert reset_instants(scenario) == (15, 40)


def test_every_reset_has_a_whole_window_behind_it() -> None:
    scenario = read_scenario(None, {"load.duration": 100.0, "resets.every": 25.0})
    assert [at - scenario.load.warmup for at in reset_instants(scenario)] == [25, 50, 75]


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, 1e9])
@pytest.mark.parametrize(
    ("key", "flag"),
    [
        ("load.rate", "--rate"),
        ("load.duration", "--duration"),
        ("resets.every", "--reset-every"),
    ],
)
def test_a_number_out_of_range_names_its_option_and_the_range(
    key: str, flag: str, bad: float
) -> None:
    with pytest.raises(UsageError, match=rf"{flag} .*allowed is .* to "):
        read_scenario(None, {key: bad, "resets.mode": "keep"})


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"resets.at": [700.0]}, "past the measured period"),
        ({"resets.at": [1.0, 1.0]}, "same instant twice"),
        ({"load.duration": 100.0, "resets.every": 60.0, "resets.mode": "keep"}, "leaves no room"),
        ({"load.rate": 9000.0, "load.duration": 500_000.0}, "plans over"),
        ({"prompts.vocabulary": [5, 5]}, "half-open range"),
        ({"resets.mode": "kepe"}, "Invalid enum value 'kepe'"),
        ({"load.rate": "four"}, "Expected `float`"),
    ],
)
def test_settings_that_cannot_be_planned_are_usage_errors(
    flags: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        read_scenario(None, flags)


def test_flags_override_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("seed = 7\n[load]\nrate = 2.0\nduration = 50.0\n[resets]\nat = [10.0]\n")
    scenario = read_scenario(file, {"load.rate": 3.0, "resets.every": 20.0})
    assert (scenario.name, scenario.seed) == ("mine", 7)
    assert (scenario.load.rate, scenario.load.duration) == (3.0, 50.0)
    assert (scenario.resets.at, scenario.resets.every) == ((), 20.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[load]\nrat = 4.0\n", "unknown key 'rat'; the nearest known one is 'rate'"),
        ("[laod]\nrate = 4.0\n", "unknown key 'laod'; the nearest known one is 'load'"),
        ("load = 4\n", r"'load' is a table, not 4; write \[load\]"),
        ("load = [\n", "not valid TOML"),
    ],
)
def test_a_wrong_scenario_file_says_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_scenario(file, {})


def test_a_missing_scenario_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_scenario(tmp_path / "none.toml", {})


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
