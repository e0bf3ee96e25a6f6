from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from harness.analysis.experiment import contrast, crossover, stats
from harness.analysis.experiment.contrast import Recovery
from harness.analysis.experiment.excess import Stays
from harness.analysis.experiment.pairs import Run, pairs
from harness.load.assignment import assign
from harness.records import ResetMode

KEEP, PREEMPT, SHAM, NONE = ResetMode.KEEP, ResetMode.PREEMPT, ResetMode.SHAM, ResetMode.NONE
SPACING, RATE, STAY = 60.0, 5.0, 2.0
LATER = {KEEP: 1.0, PREEMPT: 0.5, SHAM: 0.0}
"""Seconds that each mode adds to the requests sent in the 10 s after a reset."""
VICTIMS = {KEEP: 0.0, PREEMPT: 3.0, SHAM: 0.0}
"""Seconds that each mode adds to the requests in flight at a reset."""


def block(
    seed: int,
    modes: tuple[ResetMode, ...],
    resets: int = 12,
    speeds: tuple[float, ...] = (1.0, 1.0, 1.0),
    lasting: float = 0.0,
) -> list[Run]:
    """Runs whose requests take exactly what the modes say; ``lasting`` is added up to the end."""
    rng = np.random.default_rng(seed)
    end = SPACING * (resets + 1)
    sent = np.sort(rng.uniform(0, end, rng.poisson(RATE * end)))
    jitter = rng.exponential(0.5, len(sent))
    instants = SPACING * np.arange(1, resets + 1)
    runs = []
    for row, speed in zip(assign(modes, resets, rng), speeds, strict=False):
        stay = STAY + jitter
        for at, mode in zip(instants, row, strict=True):
            stay = stay + VICTIMS.get(mode, 0.0) * ((sent < at) & (at < sent + stay))
            stay = stay + LATER.get(mode, 0.0) * ((sent >= at) & (sent < at + 10))
            if mode is not SHAM:
                stay = stay + lasting * ((sent >= at) & (sent < at + SPACING - 10))
        ids, failed = np.arange(len(sent)), np.zeros(len(sent), bool)
        stays = Stays.capped(ids, sent, sent + stay * speed, failed, SPACING)
        table = pd.DataFrame({"mode": row, "instant": instants})
        runs.append(Run(f"{seed}", f"{seed}", stays, table, 0.0, end))
    return runs


def test_price_splits_into_victims_and_later_arrivals() -> None:
    runs = block(1, (KEEP, SHAM), resets=20)
    found = contrast.price(runs, KEEP, SPACING, relaxation=5.0)
    expected = LATER[KEEP] * RATE * 10
    assert found.total.low is not None
    assert found.total.high is not None
    assert found.total.low < expected < found.total.high
    assert found.total.estimate == pytest.approx(expected, rel=0.15)
    assert found.victims.estimate == pytest.approx(0.0, abs=2.0)
    assert found.later.estimate == pytest.approx(expected, rel=0.15)
    assert found.half_life is not None
    assert 4 < found.half_life < 10
    assert found.recovery is Recovery.RECOVERED


def test_victims_pay_for_a_preempt_that_later_arrivals_gain_from() -> None:
    runs = block(2, (PREEMPT, KEEP), resets=20)
    found = contrast.contrast(runs, PREEMPT, KEEP, SPACING)
    in_flight = RATE * (STAY + 0.5)
    assert found.victims.estimate == pytest.approx(VICTIMS[PREEMPT] * in_flight, rel=0.15)
    assert found.victims.excludes_zero
    whole = contrast.price(runs, PREEMPT, SPACING, 5.0, control=KEEP)
    assert whole.victims.estimate == pytest.approx(VICTIMS[PREEMPT] * in_flight, rel=0.15)
    assert whole.later.estimate == pytest.approx(-0.5 * RATE * 10, rel=0.2)
    assert found.void is None


def test_three_modes_compare_in_pairs_within_a_latin_square() -> None:
    runs = [run for seed in (3, 4) for run in block(seed, (KEEP, PREEMPT, SHAM))]
    strata = pairs(runs, KEEP, SHAM)
    assert len(strata) == 6  # three pairs of runs in each of two blocks
    assert sum(len(pair.ids) for pair in strata) == 24
    told = stats.compare(crossover.trials(strata, crossover.integral(SPACING)))
    assert told.units == 24
    assert told.estimate == pytest.approx(LATER[KEEP] * RATE * 10, rel=0.2)
    assert told.excludes_zero


def test_a_slower_run_changes_neither_sign_nor_size() -> None:
    even = contrast.contrast(block(5, (PREEMPT, KEEP), 20), PREEMPT, KEEP, SPACING)
    uneven = contrast.contrast(
        block(5, (PREEMPT, KEEP), 20, speeds=(1.15, 1 / 1.15)), PREEMPT, KEEP, SPACING
    )
    assert even.short.estimate is not None
    assert uneven.short.estimate == pytest.approx(even.short.estimate, rel=0.1)
    assert even.short.half_width is not None
    assert uneven.short.half_width is not None
    assert uneven.short.half_width < 1.5 * even.short.half_width


def test_shams_show_nothing() -> None:
    runs = block(6, (KEEP, SHAM), 20)
    nothing = [replace(run, stays=block(6, (SHAM, NONE), 20)[0].stays) for run in runs]
    found = contrast.price(nothing, KEEP, SPACING, 5.0)
    assert found.total.estimate == pytest.approx(0.0, abs=1e-9)
    assert found.half_life is None


def test_a_plateau_is_not_recovery_and_a_short_horizon_cannot_tell() -> None:
    runs = block(7, (KEEP, SHAM), 20, lasting=2.0)
    assert contrast.price(runs, KEEP, SPACING, 5.0).recovery is Recovery.NOT_RECOVERED
    assert contrast.price(runs, KEEP, SPACING, 7.0).recovery is Recovery.CANNOT_TELL
    assert contrast.price(runs, KEEP, SPACING, None).recovery is Recovery.CANNOT_TELL
    assert contrast.price(runs[:0], KEEP, SPACING, 5.0).recovery is Recovery.CANNOT_TELL


def test_a_queue_that_still_grows_is_diverging() -> None:
    runs = block(8, (KEEP, SHAM), 20)
    growing = []
    for run in runs:
        start, stay = run.stays.start, run.stays.end - run.stays.start
        for at, mode in run.resets[["instant", "mode"]].itertuples(index=False):
            since = start - at
            stay = stay + 0.1 * since * ((mode == KEEP) & (since > 0) & (since < SPACING - 8))
        failed = np.zeros(len(start), bool)
        stays = Stays.capped(run.stays.id, start, start + stay, failed, SPACING)
        growing.append(replace(run, stays=stays))
    assert contrast.price(growing, KEEP, SPACING, 5.0).recovery is Recovery.DIVERGING


def test_failed_shares_apart_void_a_contrast() -> None:
    runs = block(9, (PREEMPT, KEEP), 10)
    broken = []
    for run in runs:
        at = run.resets.loc[run.resets["mode"] == PREEMPT, "instant"].to_numpy()
        hit = np.any((run.stays.start[:, None] > at) & (run.stays.start[:, None] < at + 2), axis=1)
        finished = np.where(hit, run.stays.start + 0.1, run.stays.end)
        stays = Stays.capped(run.stays.id, run.stays.start, finished, hit, SPACING)
        broken.append(replace(run, stays=stays))
    found = contrast.contrast(broken, PREEMPT, KEEP, SPACING)
    assert found.failed[0] > 0.02
    assert found.failed[1] == 0
    assert found.void is not None
    assert "after preempt" in found.void
    assert found.short.estimate is not None
    assert found.short.estimate > 0  # a quick failure is no gain: it counts as the cap


def test_one_run_alone_sets_its_own_resets_against_each_other() -> None:
    run = block(10, (PREEMPT, KEEP), 20)[:1]
    found = contrast.contrast(run, PREEMPT, KEEP, SPACING)
    assert found.victims.units == 20
    assert found.victims.estimate == pytest.approx(VICTIMS[PREEMPT] * RATE * 2.5, rel=0.4)


def test_a_reset_that_failed_in_one_run_leaves_its_partner_out() -> None:
    runs = block(11, (PREEMPT, KEEP), 12)
    lost = [runs[0], replace(runs[1], resets=runs[1].resets.drop(index=[3, 7]))]
    assert contrast.contrast(lost, PREEMPT, KEEP, SPACING).short.units == 10


def arm(seed: int, mode: ResetMode, speed: float = 1.0) -> Run:
    run = block(seed, (SHAM, KEEP), 6)[0]
    start, stay = run.stays.start, run.stays.end - run.stays.start
    for at in run.resets["instant"]:
        stay = stay + LATER.get(mode, 0.0) * ((start >= at) & (start < at + 10))
    resets = run.resets.assign(mode=mode) if mode is not NONE else run.resets.iloc[:0]
    stays = Stays.capped(
        run.stays.id, start, start + stay * speed, np.zeros(len(start), bool), math.inf
    )
    return replace(run, stays=stays, resets=resets)


def test_arms_are_compared_run_by_run() -> None:
    rng = np.random.default_rng(12)
    runs = [
        arm(seed, mode, float(np.exp(0.01 * rng.normal())))
        for seed in range(8)
        for mode in (KEEP, PREEMPT, NONE)
    ]
    plain = crossover.arms(runs, KEEP, NONE, crossover.integral(SPACING))
    assert len(plain.outcome) == 16
    told = stats.compare(plain)
    assert told.estimate == pytest.approx(LATER[KEEP] * RATE * 10, rel=0.2)
    assert told.excludes_zero
    few = stats.compare(crossover.arms(runs[:9], KEEP, PREEMPT, crossover.integral(SPACING)))
    assert few.reason == "6 runs; at least 8 are needed"


def test_an_arm_has_one_mode() -> None:
    with pytest.raises(ValueError, match="mixes"):
        crossover.arms(block(13, (KEEP, SHAM)), KEEP, NONE, crossover.integral(20.0))
