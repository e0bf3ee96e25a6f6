"""Experiments: what they run, in which order, and that two settings never mix."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from harness.design import Design
from harness.errors import UsageError
from harness.experiment.folder import digest, read_experiment_manifest
from harness.experiment.plan import ExperimentSpec, beforehand, plan_runs, read_experiment
from harness.records import ResetMode
from harness.scenario import Scenario
from harness.settings import read_scenario
from harness.settling import ProcessorSharing

SCENARIO: Scenario = read_scenario(
    None, {"load.warmup": 5.0, "load.duration": 90.0, "resets.every": 10.0}
)
MODES = (ResetMode.SHAM, ResetMode.PREEMPT, ResetMode.KEEP)


def known(spec: ExperimentSpec) -> tuple[str, ...]:
    return beforehand(spec, plan_runs(spec))


def test_a_crossover_mirrors_one_draw_over_as_many_runs_as_modes() -> None:
    runs = plan_runs(ExperimentSpec("x", SCENARIO, modes=MODES))
    assert len(runs) == 3
    assert len({run.plan.digest for run in runs}) == 1
    for resets in zip(*(run.plan.resets for run in runs), strict=True):
        assert {reset.mode for reset in resets} == set(MODES)
        assert len({reset.scheduled for reset in resets}) == 1
    for run in runs:
        counts = Counter(reset.mode for reset in run.plan.resets)
        assert max(counts.values()) - min(counts.values()) <= 1


def test_arms_share_a_plan_with_their_control_in_an_order_of_their_own() -> None:
    spec = ExperimentSpec(
        "x", SCENARIO, Design.ARMS, (ResetMode.PREEMPT, ResetMode.KEEP), seeds=tuple(range(8))
    )
    runs = plan_runs(spec)
    assert len(runs) == 24
    blocks = [runs[first : first + 3] for first in range(0, 24, 3)]
    for block in blocks:
        assert len({run.plan.digest for run in block}) == 1
        modes = {run.plan.scenario.resets.mode for run in block}
        assert modes == {ResetMode.NONE, ResetMode.PREEMPT, ResetMode.KEEP}
    assert len({run.plan.digest for run in runs}) == 8
    orders = {tuple(run.plan.scenario.resets.mode for run in block) for block in blocks}
    assert len(orders) > 2


def test_three_modes_with_eight_resets_say_beforehand_that_they_cannot_tell() -> None:
    lines = known(ExperimentSpec("x", SCENARIO, modes=MODES))
    assert sum("18 possible draws" in line for line in lines) == 3
    assert not any(
        "draws" in line for line in known(ExperimentSpec("x", SCENARIO, modes=MODES, seeds=(1, 2)))
    )
    two = ExperimentSpec("x", SCENARIO, modes=(ResetMode.PREEMPT, ResetMode.KEEP))
    assert not any("draws" in line for line in known(two))


@pytest.mark.parametrize(
    "file",
    sorted((Path(__file__).parents[1] / "scenarios" / "experiments").glob("*.toml")),
    ids=lambda f: f.stem,
)
def test_every_experiment_that_is_shipped_can_tell_something(file: Path) -> None:
    assert not any("draws" in line for line in known(read_experiment(file)))


def test_every_combination_has_a_folder_of_its_own() -> None:
    spec = ExperimentSpec("x", SCENARIO, rates=(2.0, 4.0), seeds=(1, 2))
    assert len({run.name for run in plan_runs(spec)}) == len(plan_runs(spec)) == 12
    assert plan_runs(spec) == plan_runs(spec)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mode = ['keep']\n", "unknown key 'mode'"),
        ("modes = ['keep']\n[resets]\nevery = 20.0\n", "two or more"),
        ("modes = ['keep', 'none']\n[resets]\nevery = 20.0\n", "a control is 'sham'"),
        ("rates = []\n", "rates is"),
        ("seeds = [1, 1]\n", "seeds is"),
        ("rates = [-1.0]\n", "--rate"),
        ("design = 'latin'\n", "latin"),
    ],
)
def test_a_wrong_experiment_says_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_experiment(file)


def test_an_experiment_is_a_scenario_with_a_design(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        "design = 'arms'\nmodes = ['keep']\nseeds = [3]\n[load]\nduration = 50.0\n"
        "[resets]\nevery = 10.0\n"
    )
    spec = read_experiment(file)
    assert (spec.name, spec.design, spec.seeds) == ("mine", Design.ARMS, (3,))
    assert spec.scenario.load.duration == 50
    assert msgspec.json.decode(msgspec.json.encode(spec), type=ExperimentSpec) == spec


def test_shipped_experiments_can_be_planned() -> None:
    files = sorted((Path(__file__).parents[1] / "scenarios" / "experiments").glob("*.toml"))
    assert files
    for file in files:
        spec = read_experiment(file)
        assert f"bench experiment scenarios/experiments/{file.name}" in file.read_text()
        for run in plan_runs(spec):
            control = run.plan.scenario.resets.mode is ResetMode.NONE and not (
                run.plan.scenario.resets.modes
            )
            assert control or len(run.plan.resets) >= 8


def test_quick_takes_at_most_six_minutes() -> None:
    quick = Path(__file__).parents[1] / "scenarios" / "experiments" / "quick.toml"
    load = sum(run.plan.end for run in plan_runs(read_experiment(quick)))
    assert load <= 300  # leaves a minute for the replica's start, priming and draining


SERVICE = "[service]\na = 0.878\nb = 0.199\n"


def experiment_file(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "x.toml"
    file.write_text(text)
    return file


def test_service_gives_each_rate_the_warmup_and_the_spacing_of_the_rules(tmp_path: Path) -> None:
    text = "rates = [2.0, 4.0]\n[load]\nwarmup = 5.0\nduration = 90.0\n[resets]\nevery = 10.0\n"
    spec = read_experiment(experiment_file(tmp_path, text + SERVICE))
    assert spec.service == ProcessorSharing(0.878, 0.199)
    slow, fast = (
        next(run.plan for run in plan_runs(spec) if run.plan.scenario.load.rate == rate)
        for rate in (2.0, 4.0)
    )
    # At 2 req/s the rules' least; at 4, T/(1 − ρ) = 1.077/(1 − 0.796)² = 25.9 s.
    assert slow.scenario.load.warmup == 60
    assert [reset.scheduled for reset in slow.resets] == [60 + 120 * k for k in range(1, 9)]
    assert fast.scenario.load.warmup == 130
    assert [reset.scheduled for reset in fast.resets] == [130 + 259 * k for k in range(1, 9)]
    assert "at 4 req/s ρ is 0.80 by service: 130 s of warm-up, 2331 s measured" in known(spec)
    assert not any("the rule asks" in line for line in known(spec))


def test_service_shortens_nothing_and_moves_no_named_instant(tmp_path: Path) -> None:
    text = "[load]\nwarmup = 900.0\nduration = 90.0\n[resets]\nat = [5.0, 7.0]\n"
    spec = read_experiment(experiment_file(tmp_path, "rates = [4.0]\n" + text + SERVICE))
    for run in plan_runs(spec):
        assert run.plan.scenario.load.warmup == 900
        assert [reset.scheduled for reset in run.plan.resets] == [905, 907]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rates = [4.0, 6.0]\n", r"rates has 6, and the capacity by service is 1/b = 5.03 req/s"),
        ('design = "capacity"\nmodes = ["keep"]\n', "finds out its service; leave service out"),
    ],
)
def test_service_is_refused_where_it_cannot_help(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read_experiment(experiment_file(tmp_path, text + SERVICE))


def test_a_rate_just_below_capacity_is_refused_before_it_is_planned(tmp_path: Path) -> None:
    rates = "rates = [5.0251]\n"  # ρ 0.999995: the rules ask for a warm-up of thousands of years
    with pytest.raises(UsageError, match=r"5\.0251 req/s ρ is 1\.00 by service.*Lower the rate"):
        read_experiment(experiment_file(tmp_path, rates + SERVICE))


def test_a_service_that_is_none_is_named(tmp_path: Path) -> None:
    for a, b in (("0.9", "0"), ("inf", "0.1"), ("-1", "0.1"), ("0.9", "inf")):
        with pytest.raises(UsageError, match="service"):
            read_experiment(experiment_file(tmp_path, f"[service]\na = {a}\nb = {b}\n"))


def test_an_experiment_begun_before_services_existed_goes_on() -> None:
    """Its digest is the one that was written down then."""
    manifest = read_experiment_manifest(Path(__file__).parents[1] / "results" / "reference")
    assert digest(manifest.spec) == manifest.digest
