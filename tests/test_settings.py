"""Settings: ranges, unknown keys, what goes together, and what options add to a file."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.settings import read_scenario

TRACES = Path(__file__).parent / "load" / "traces"


def test_naming_any_timing_leaves_the_look_for_the_rules() -> None:
    scenario = read_scenario(None, {"load.duration": 480.0, "resets.mode": "keep"})
    assert scenario.load.warmup == 60
    assert scenario.reset_instants == (180, 300, 420)


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


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"load.process": "gama"}, "Invalid enum value 'gama'"),
        ({"load.burstiness": 2.0}, 'load.burstiness goes with load.process = "gamma", not "pois'),
        ({"load.process": "gamma", "load.burstiness": 0.0}, "allowed is 0.01 to 1,000"),
        ({"load.levels": [1.0, 2.0]}, 'load.levels goes with load.process = "ramp" or "steps"'),
        ({"load.process": "ramp"}, "a ramp needs two or more, not all 0"),
        ({"load.process": "steps", "load.levels": [0.0, 0.0]}, "a steps needs two or more"),
        ({"load.process": "ramp", "load.levels": [1.0, -1.0]}, "load.levels is -1.0; allowed"),
        ({"load.on": 5.0}, 'load.on goes with load.process = "on_off"'),
        ({"load.process": "replay"}, "need trace.file"),
        ({"prompts.family": "trace"}, "need trace.file"),
        ({"trace.file": "x"}, "is read by load.process"),
        ({"prompts.tree": [[1, 10]]}, 'prompts.tree goes with prompts.family = "tree"'),
        ({"prompts.family": "tree", "prompts.tree": []}, "needs one level or more"),
        ({"prompts.family": "tree", "prompts.tree": [[0, 10]]}, "each over 0"),
        ({"prompts.family": "tree", "prompts.tree": [[400, 1], [400, 1]]}, "over 100,000 leaves"),
        ({"prompts.family": "tree", "prompts.prefixes": 5}, 'prompts.prefixes .* goes with'),
        ({"prompts.family": "unique", "prompts.zipf": 2.0}, 'prompts.zipf .* goes with'),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_a_usage_error(flags, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_scenario(None, flags)


def test_the_path_of_a_trace_counts_from_the_scenario(tmp_path: Path) -> None:
    shutil.copy(TRACES / "mooncake.jsonl", tmp_path / "here.jsonl")
    file = tmp_path / "mine.toml"
    file.write_text(
        '[load]\nprocess = "replay"\nwarmup = 1.0\nduration = 20.0\n'
        '[prompts]\nfamily = "trace"\n[trace]\nfile = "here.jsonl"\n'
    )
    assert read_scenario(file, {}).trace.file == str(tmp_path / "here.jsonl")
