from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from harness.analysis import queueing
from harness.analysis.experiment import at_idle, checks, crossover, stats
from harness.analysis.experiment.excess import Stays
from harness.analysis.experiment.pairs import Run, pairs
from harness.analysis.resets import settle
from harness.records import ResetMode
from harness.settling import ProcessorSharing
from tests.analysis.simulation import scenario, simulate


def test_gauges_must_count_what_the_journal_counts() -> None:
    sent = np.arange(0.0, 100.0)
    scrapes = np.arange(0.25, 100.0)
    for gauge, passed in ((np.full(100, 2.0), True), (np.full(100, 3.0), False)):
        law = queueing.littles_law(sent, sent + 2.0, (5.0, 95.0), scrapes, gauge)
        assert checks.gauges(law).passed is passed
    assert checks.gauges(queueing.littles_law(sent, sent + 2.0, (5.0, 95.0))).passed is None


def test_arrivals_that_came_in_step_fail() -> None:
    rng = np.random.default_rng(1)
    for times, passed in ((rng.uniform(0, 100, 300), True), (np.arange(0.5, 100, 0.3), False)):
        assert checks.arrivals(queueing.poisson(times, (0.0, 100.0))).passed is passed
    assert checks.arrivals(None).passed is None


@pytest.mark.parametrize(
    ("counts", "passed"),
    [([8, 5, 11, 8], True), ([1, 0, 2, 1], False), ([8], None), ([math.nan] * 3, None)],
)
def test_preemptions_a_reset_are_what_is_in_flight(
    counts: list[float], passed: bool | None
) -> None:
    check = checks.preemptions(counts, rate=3.0, latency=2.7)
    assert check.passed is passed
    assert check.expected == pytest.approx(8.1)


def test_idle_windows_follow_the_fit_or_break_it() -> None:
    law = ProcessorSharing(0.878, 0.199)
    expected = law.idle_starts(3.0) * 3600
    for seen, passed in ((round(expected), True), (round(2 * expected), False), (0, False)):
        assert checks.idle_starts(law, 3.0, seen, 3600.0).passed is passed
    assert checks.idle_starts(None, 3.0, 5, 60.0).passed is None


def test_warm_up_must_suit_the_load_it_was_for() -> None:
    assert checks.warmup(60.0, 1.0, 0.5).passed is True
    assert checks.warmup(60.0, 5.0, 0.8).passed is False
    assert checks.warmup(60.0, 5.0, None).passed is None


DEFAULT, NONE = ResetMode.DEFAULT, ResetMode.NONE


def run(mode: ResetMode, seed: int = 1, rate: float = 4.0) -> Run:
    journals = simulate(scenario(mode, rate=rate, duration=600.0, every=60.0, seed=seed))
    return Run.of(journals, settle(journals), "run", spacing=60.0)


def test_shams_show_nothing_and_wipes_would_not_pass_as_shams() -> None:
    quiet = run(ResetMode.SHAM)
    assert checks.shams([quiet]).passed is True
    start, at = quiet.stays.start, quiet.resets["instant"].to_numpy()
    soon = np.any((start[:, None] > at) & (start[:, None] < at + 10), axis=1)
    hit = replace(quiet, stays=replace(quiet.stays, end=quiet.stays.end + 3.0 * soon))
    assert checks.shams([hit]).passed is False
    wiped = replace(hit, resets=hit.resets.assign(mode=ResetMode.KEEP))
    assert checks.shams([wiped]).passed is None


def test_control_drift_is_the_change_between_two_runs() -> None:
    sent = np.arange(0.0, 200.0, 0.5)
    steady, slowing = (
        Run(
            "",
            "",
            Stays.capped(
                np.arange(len(sent)), sent, sent + 1 + grows * sent, np.zeros(len(sent), bool), 60
            ),
            pd.DataFrame({"mode": [], "instant": []}),
            0.0,
            200.0,
        )
        for grows in (0.0, 0.01)
    )
    assert checks.control_drift(steady, steady, 20.0) == 0
    assert checks.control_drift(slowing, steady, 20.0) == pytest.approx(65, rel=0.2)


def test_a_run_is_read_with_the_resets_that_took_effect_and_have_a_window() -> None:
    journals = simulate(scenario(ResetMode.DEFAULT, rate=1.0, duration=600.0, every=60.0))
    resets = settle(journals)
    cleared = [each.record.id for each in resets if each.record.cleared_at is not None]
    assert 0 < len(cleared) < len(resets)
    read = Run.of(journals, resets, "run", spacing=60.0)
    assert read.resets.index.tolist() == cleared
    assert set(read.resets["mode"]) == {ResetMode.DEFAULT}
    assert read.count.at(read.resets["instant"]).max() == 0
    assert Run.of(journals, resets, "run", 60.0, horizon=1e6).resets.empty
    assert read.mode() is ResetMode.DEFAULT


def test_runs_of_one_plan_share_a_block() -> None:
    kept, sham, other = run(ResetMode.KEEP), run(ResetMode.SHAM), run(ResetMode.SHAM, seed=2)
    turned = [ResetMode.SHAM if place % 2 else ResetMode.KEEP for place in range(9)]
    mixed = replace(kept, resets=kept.resets.assign(mode=turned))
    strata = pairs([mixed, kept, sham, other], ResetMode.KEEP, ResetMode.SHAM)
    assert strata == []  # kept and sham differ everywhere one way round: nothing was drawn
    found = stats.compare(crossover.trials(strata, crossover.integral(60.0)))
    assert found.reason == "the two modes were never compared"
    mirrored = replace(sham, resets=sham.resets.assign(mode=turned[1:] + turned[:1]))
    assert [len(pair.ids) for pair in pairs([mixed, mirrored, other], *turned[:2])] == [8]


def test_default_and_keep_at_the_same_idle_instants_agree() -> None:
    runs = []
    for seed in range(8):
        default, control = (run(mode, seed, rate=1.0) for mode in (DEFAULT, NONE))
        # Keep at an idle instant wipes the same cache of the same idle replica.
        keep = replace(default, resets=default.resets.assign(mode=ResetMode.KEEP))
        runs += [default, keep, control]
    found = at_idle.at_idle(runs, horizon=60.0)
    assert found.wipes > 0
    assert found.default == found.keep
    assert found.default is not None
    assert found.default > 0
    assert found.default_in_flight == 0
    assert found.agree is True
    slow = [
        replace(one, stays=replace(one.stays, end=one.stays.end + 0.2))
        if one.mode() is ResetMode.KEEP
        else one
        for one in runs
    ]
    apart = at_idle.at_idle(slow, horizon=60.0)
    assert apart.default == found.default
    assert apart.keep is not None
    assert apart.keep > found.default + 5
    assert apart.agree is False
    alone = at_idle.at_idle(runs[:3], horizon=60.0)
    assert alone.agree is None
    assert alone.default is not None
