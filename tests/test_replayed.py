"""The at-idle design: a keep arm at exactly the instants at which default cleared."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from harness.design import Design
from harness.errors import TargetError, UsageError
from harness.experiment.folder import recorded_runs
from harness.experiment.plan import plan_runs, read_experiment, replayed
from harness.experiment.run import carry_out
from harness.journals import RunStatus
from harness.records import AttemptOutcome, ResetMode
from harness.run import Watcher
from harness.target import Endpoint, target
from tests.analysis.experiments import spec, write_run
from tests.analysis.simulation import simulate

NONE, DEFAULT, KEEP = ResetMode.NONE, ResetMode.DEFAULT, ResetMode.KEEP
SPEC = spec(Design.AT_IDLE, (DEFAULT, KEEP), rates=(1.0,), seeds=(1, 2))


def test_default_comes_first_and_keep_replays_it_on_the_same_plan():
    runs = plan_runs(SPEC)
    for block in (runs[:3], runs[3:]):
        assert block[0].plan.scenario.resets.mode is DEFAULT
        assert len({run.plan.digest for run in block}) == 1
        (keep,) = (run for run in block if run.replays)
        assert keep.replays == block[0].name
        default = simulate(block[0].plan.scenario)
        plan = replayed(keep.plan, default)
        cleared = [r for r in default.resets if r.outcome is AttemptOutcome.CLEARED]
        assert cleared
        assert [reset.mode for reset in plan.resets] == [KEEP] * len(cleared)
        assert [reset.scheduled for reset in plan.resets] == pytest.approx(
            [reset.attempts[-1].called for reset in cleared]
        )
        assert plan.digest == keep.plan.digest == block[0].plan.digest


def test_a_default_that_never_cleared_leaves_nothing_to_replay():
    run = plan_runs(spec(Design.AT_IDLE, (DEFAULT, KEEP), rates=(8.0,), duration=90.0))
    default = simulate(run[0].plan.scenario)
    assert all(reset.outcome is AttemptOutcome.REFUSED for reset in default.resets)
    assert replayed(run[0].plan, default) is None


def test_going_on_starts_no_server_for_a_keep_arm_with_nothing_to_replay(tmp_path: Path) -> None:
    never = spec(Design.AT_IDLE, (DEFAULT, KEEP), rates=(8.0,), duration=90.0)
    nowhere = target(Endpoint("http://127.0.0.1:9"), [], [], None)
    watcher = Watcher(lambda _: None, lambda _: None)
    assert isinstance(carry_out(never, nowhere, tmp_path, watcher).error, TargetError)
    shutil.rmtree(tmp_path / "8-1-default")
    for run in plan_runs(never):
        if run.replays is None:
            write_run(simulate(run.plan.scenario), tmp_path / run.name)
    assert carry_out(never, nowhere, tmp_path, watcher).status is RunStatus.COMPLETE
    assert recorded_runs(tmp_path)[1] == (), "a report asks for no run that has nothing to do"


def test_the_design_takes_no_other_modes(tmp_path: Path):
    file = tmp_path / "x.toml"
    file.write_text("design = 'at_idle'\nmodes = ['keep', 'preempt']\n")
    with pytest.raises(UsageError, match="at_idle design has modes"):
        read_experiment(file)
