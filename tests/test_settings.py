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


@pytest.mark.parametrize("flags", [{}, {"load.rate": 3.0, "trace.file": "other.jsonl"}])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[load]\nrat = 4.0\n", "unknown key 'rat'; the nearest known one is 'rate'"),
        ("[laod]\nrate = 4.0\n", "unknown key 'laod'; the nearest known one is 'load'"),
        ("load = 4\n", r"'load' is a table, not 4; write \[load\]"),
        ("load = [\n", "not valid TOML"),
        ("trace = 'x.jsonl'\n", r"'trace' is a table, not 'x.jsonl'; write \[trace\]"),
    ],
)
def test_a_wrong_scenario_file_says_what_is_wrong(
    tmp_path: Path, text: str, message: str, flags: dict[str, object]
) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_scenario(file, flags)


def test_a_missing_scenario_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_scenario(tmp_path / "none.toml", {})


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"load.process": "gama"}, "Invalid enum value 'gama'"),
        ({"load.burstiness": 2.0}, "--burstiness .* goes with --arrivals gamma, not poisson"),
        ({"load.process": "gamma", "load.burstiness": 0.0}, "allowed is 0.01 to 1,000"),
        ({"load.levels": [1.0, 2.0]}, "load.levels goes with --arrivals ramp or steps"),
        ({"load.process": "ramp"}, "a ramp needs two or more, not all 0"),
        ({"load.process": "steps", "load.levels": [0.0, 0.0]}, "a steps needs two or more"),
        ({"load.process": "ramp", "load.levels": [1.0, -1.0]}, "load.levels is -1.0; allowed"),
        ({"load.on": 5.0}, "load.on goes with --arrivals on_off, not poisson"),
        ({"load.process": "replay"}, "--arrivals replay, .* need --trace"),
        ({"prompts.family": "trace"}, "--family trace .* need --trace"),
        ({"trace.format": "azure"}, "need --trace"),
        ({"trace.window": [0.0, 9.0]}, "need --trace"),
        ({"trace.file": "x", "load.process": "poisson", "prompts.family": "zipf"},
         "--trace .* is read by --arrivals replay and by --family trace"),
        ({"load.process": "replay", "prompts.family": "sessions"},
         "a session's later turns come after answers"),
        ({"prompts.turns": 2}, "--turns .* goes with --family sessions, not zipf"),
        ({"prompts.think": 1.0}, "--think .* goes with --family sessions, not zipf"),
        ({"prompts.family": "sessions", "prompts.turns": 0}, "--turns .* allowed is 1 to 1,000"),
        ({"prompts.family": "sessions", "prompts.think": 0.0}, "--think .* allowed is 0.001 to"),
        ({"prompts.tree": [[1, 10]]}, "prompts.tree goes with --family tree, not zipf"),
        ({"prompts.family": "tree", "prompts.tree": []}, "needs one level or more"),
        ({"prompts.family": "tree", "prompts.tree": [[0, 10]]}, "each over 0"),
        ({"prompts.family": "tree", "prompts.tree": [[400, 1], [400, 1]]}, "over 100,000 leaves"),
        ({"prompts.family": "tree", "prompts.prefixes": 5}, "--prefixes .* zipf or sessions, not"),
        ({"prompts.family": "unique", "prompts.zipf": 2.0}, "--zipf .* goes with"),
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


MOONCAKE = {"trace.file": str(TRACES / "mooncake.jsonl")}
RECORDED = 48 / 29.176
"""Mean requests a second of that trace."""
SHAREGPT = {
    "trace.file": str(TRACES / "sharegpt.json"),
    "trace.format": "sharegpt",
    "prompts.form": "chat",
}


@pytest.mark.parametrize(
    ("flags", "process", "rate", "family"),
    [
        (MOONCAKE, "replay", RECORDED, "trace"),
        (MOONCAKE | {"load.rate": 2.0}, "replay", 2.0, "trace"),
        (MOONCAKE | {"load.process": "replay"}, "replay", RECORDED, "trace"),
        (MOONCAKE | {"load.process": "poisson"}, "poisson", 4.0, "trace"),
        (MOONCAKE | {"prompts.family": "trace"}, "replay", RECORDED, "trace"),
        (MOONCAKE | {"prompts.family": "zipf"}, "replay", RECORDED, "zipf"),
        (MOONCAKE | {"prompts.family": "unique"}, "replay", RECORDED, "unique"),
        (SHAREGPT, "poisson", 4.0, "trace"),
        (SHAREGPT | {"load.process": "constant"}, "constant", 4.0, "trace"),
    ],
)
def test_a_trace_decides_what_its_format_holds_and_no_option_names(
    flags: dict[str, object], process: str, rate: float, family: str
) -> None:
    scenario = read_scenario(None, flags)
    assert (scenario.load.process, scenario.prompts.family) == (process, family)
    assert scenario.load.rate == pytest.approx(rate)
    assert scenario.load.duration == 100  # a trace is no timing: still a look


def test_a_trace_of_instants_leaves_prompts_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "instants"
    file.write_text("0\n1\n4\n")
    scenario = read_scenario(None, {"trace.file": str(file), "trace.format": "instants"})
    assert (scenario.load.process, scenario.prompts.family) == ("replay", "zipf")
    assert scenario.load.rate == 0.75


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (SHAREGPT | {"prompts.form": "token_ids"}, "ShareGPT is text: set --form .* to chat or"),
        (SHAREGPT | {"load.process": "replay"}, "ShareGPT has no instants: take another"),
        (MOONCAKE | {"trace.format": "azure"}, "no column 'TIMESTAMP'.* Correct --trace-format"),
        (MOONCAKE | {"trace.format": "instants"}, "do not parse .* correct --trace-format"),
        (MOONCAKE | {"trace.format": "mooncak"}, "Invalid enum value 'mooncak'"),
        (MOONCAKE | {"prompts.prefixes": 3}, "--prefixes .* zipf or sessions, not trace"),
        (MOONCAKE | {"output.tokens": 7}, "--output-tokens .* goes with --family .*, not trace"),
        (MOONCAKE | {"prompts.family": "sessions"}, "take another --arrivals or --family"),
        ({"trace.file": "nowhere.jsonl"}, "trace nowhere.jsonl: No such file"),
    ],
)
def test_a_trace_that_cannot_be_taken_is_a_usage_error(
    flags: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        read_scenario(None, flags)


@pytest.mark.parametrize(
    ("text", "process", "rate", "family"),
    [
        ("", "replay", RECORDED, "trace"),
        ("[load]\nrate = 2.0\n", "replay", 2.0, "trace"),
        ("[load]\nprocess = 'poisson'\n", "poisson", 4.0, "trace"),
        ("[prompts]\nfamily = 'tree'\n", "replay", RECORDED, "tree"),
        ("[trace]\nwindow = [0.0, 99.0]\n", "replay", 48 / 99, "trace"),
        ("[load]\nprocess = 'replay'\n[trace]\nfile = 'old'\n", "replay", RECORDED, "zipf"),
        ("[prompts]\nfamily = 'trace'\n[trace]\nfile = 'old'\n", "poisson", 4.0, "trace"),
    ],
)
def test_a_scenario_with_a_trace_of_its_own_only_gets_another_file(
    tmp_path: Path, text: str, process: str, rate: float, family: str
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    scenario = read_scenario(file, MOONCAKE)
    assert scenario.trace.file == MOONCAKE["trace.file"]
    assert (scenario.load.process, scenario.prompts.family) == (process, family)
    assert scenario.load.rate == pytest.approx(rate)
