from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.analysis.experiment import stats
from harness.analysis.experiment.stats import Comparison, Trials

Floats = NDArray[np.float64]


def trials(
    outcome: Floats, first: NDArray[np.bool_], *, paired: bool = True, strata: int = 1
) -> Trials:
    return Trials(outcome, first, np.arange(len(outcome)) % strata, paired)


def balanced(units: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    return rng.permutation(np.arange(units) % 2 == 0)


def told(comparison: Comparison) -> tuple[float, float, float, float]:
    estimate, low, high, p = (
        comparison.estimate,
        comparison.low,
        comparison.high,
        comparison.p_value,
    )
    assert estimate is not None
    assert low is not None
    assert high is not None
    assert p is not None
    return estimate, low, high, p


def test_p_value_is_the_share_of_all_assignments() -> None:
    rng = np.random.default_rng(1)
    first = balanced(10, rng)
    outcome = rng.normal(0, 1, 10) + np.where(first, 0.8, -0.8)
    difference = [
        abs(outcome[list(pick)].mean() - np.delete(outcome, pick).mean())
        for pick in itertools.combinations(range(10), 5)
    ]
    actual = abs(outcome[first].mean() - outcome[~first].mean())
    estimate, _, _, p = told(stats.compare(trials(outcome, first)))
    assert abs(estimate) == pytest.approx(actual / 2)
    assert p == pytest.approx(np.mean(np.array(difference) >= actual - 1e-12))


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("strata", [1, 3])
@pytest.mark.parametrize("covariate", [True, False])
def test_the_interval_is_where_the_test_does_not_reject(
    paired: bool, strata: int, covariate: bool
) -> None:
    rng = np.random.default_rng(2)
    first = balanced(14, rng)
    case = trials(rng.normal(0, 1, 14) + 2.0 * first, first, paired=paired, strata=strata)
    if covariate:
        case = replace(case, covariates=rng.normal(0, 1, (14, 1)))
    _, low, high, _ = told(stats.compare(case))
    for end, inwards in ((low, 1e-6), (high, -1e-6)):
        inside, outside = (
            told(stats.compare(replace(case, outcome=case.outcome - at * case.dose(first))))[3]
            for at in (end + inwards, end - inwards)
        )
        assert inside > 0.05
        assert outside <= 0.05


def test_false_alarms_are_at_most_what_they_claim_whatever_the_dependence() -> None:
    """A random walk, which no test for independent values survives."""
    rng = np.random.default_rng(4)
    rejected = []
    for _ in range(400):
        walk = np.cumsum(rng.normal(0, 1, 10))
        rejected.append(told(stats.compare(trials(walk, balanced(10, rng))))[3] <= 0.05)
    assert 0.01 < np.mean(rejected) < 0.08


def test_what_a_run_adds_to_all_of_its_windows_cancels() -> None:
    rng = np.random.default_rng(5)
    first = balanced(12, rng)
    outcome = rng.normal(0, 1, 12) + np.where(first, 3.0, -3.0)
    strata = np.arange(12) % 2
    shifted = outcome + np.where(strata == 0, 1000.0, -50.0)
    before, after = (
        stats.compare(Trials(each, first, strata, paired=True)) for each in (outcome, shifted)
    )
    assert told(after) == pytest.approx(told(before))


def test_scaling_an_outcome_scales_its_interval() -> None:
    rng = np.random.default_rng(6)
    first = balanced(24, rng)
    outcome = rng.normal(0, 1, 24) + first
    one, ten = (stats.compare(trials(outcome * by, first)) for by in (1.0, 10.0))
    assert one.assignments == stats.DRAWS + 1
    certain = stats.compare(trials(1000.0 * first, first))
    assert told(certain)[3] >= 1 / one.assignments  # what happened is one of the draws
    assert np.array(told(ten)[:3]) == pytest.approx(10 * np.array(told(one)[:3]))


@pytest.mark.parametrize("units", [2, 5, 7])
def test_few_resets_cannot_tell_but_say_what_was_seen(units: int) -> None:
    first = np.arange(units) % 2 == 0
    comparison = stats.compare(trials(np.where(first, 5.0, -5.0), first))
    assert comparison.estimate == pytest.approx(5.0)
    assert comparison.low is None
    assert not comparison.excludes_zero
    assert comparison.reason == f"{units} resets; at least 8 are needed"


def test_modes_that_never_met_cannot_be_compared() -> None:
    alone = stats.compare(trials(np.arange(10.0), np.ones(10, bool)))
    assert alone.estimate is None
    assert alone.reason is not None
    nothing = stats.compare(trials(np.zeros(0), np.zeros(0, bool)))
    assert nothing.units == 0


def test_blocks_of_runs_need_six_to_reject() -> None:
    """Two runs a block flip together: 2 of 2**5 assignments are 6 %, 2 of 2**6 are 3 %."""
    for blocks, reason in ((5, "32 possible assignments cannot reject at 5%"), (6, None)):
        first = np.tile([True, False], blocks)
        outcome = np.where(first, 3.0, 0.0) + np.repeat(np.arange(blocks), 2)
        outcome[0] += 0.1
        runs = Trials(outcome, first, np.repeat(np.arange(blocks), 2), paired=False, unit="runs")
        assert stats.compare(runs).reason == reason


def test_outcomes_that_do_not_vary_are_no_evidence() -> None:
    first = np.arange(10) % 2 == 0
    comparison = stats.compare(trials(np.zeros(10), first))
    assert told(comparison) == (0.0, 0.0, 0.0, 1.0)
    assert not comparison.excludes_zero


def test_further_units_is_what_the_precision_takes() -> None:
    rng = np.random.default_rng(7)
    first = balanced(12, rng)
    pilot = stats.compare(trials(rng.normal(0, 10, 12) + first, first))
    further = stats.further_units(pilot, half_width=2.0)
    assert further is not None
    many = 12 + further
    widths = []
    for _ in range(20):
        first = balanced(many, rng)
        done = stats.compare(trials(rng.normal(0, 10, many), first))
        assert done.half_width is not None
        widths.append(done.half_width)
    assert pilot.standard_error is not None
    assert np.mean(widths) == pytest.approx(
        2.0 * 10 / (pilot.standard_error * np.sqrt(12)), rel=0.1
    )
    assert stats.further_units(pilot, half_width=1000.0) == 0


def test_half_life_only_of_a_total_that_is_told() -> None:
    grid = np.linspace(0, 100, 101)
    accrued = 40 * (1 - np.exp(-grid / 20))
    total = Comparison(40.0, 30.0, 50.0, 0.01, 5.0, 20, 5000)
    found = stats.half_life(grid, accrued, total)
    assert found == pytest.approx(20 * np.log(2), abs=0.2)
    assert stats.half_life(grid, -accrued, Comparison(-40.0, -50.0, -30.0, 0.01, 5.0, 20, 9)) == (
        found
    )
    unsure = Comparison(40.0, -1.0, 81.0, 0.06, 20.0, 20, 5000)
    assert stats.half_life(grid, accrued, unsure) is None


def test_the_band_holds_the_median_curve() -> None:
    rng = np.random.default_rng(8)
    curves = np.linspace(0, 5, 30) + rng.normal(0, 1, (25, 30))
    median, low, high = stats.median_band(curves, seed=1)
    assert median.shape == low.shape == high.shape == (30,)
    assert np.all((low <= median) & (median <= high))
    assert np.mean((low <= np.linspace(0, 5, 30)) & (np.linspace(0, 5, 30) <= high)) > 0.8


def test_trend_is_the_change_from_first_to_last() -> None:
    assert stats.trend(np.array([1.0, 2.0, 3.0, 4.0])) == pytest.approx(3.0)
    assert stats.trend(np.array([1.0])) == 0.0
