"""Arrival processes: each by the statistical test that its law allows, with a fixed seed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from harness.load.arrivals import Stream, stream
from harness.load.processes import (
    Stretch,
    constant,
    gamma,
    on_off,
    poisson,
    ramp,
    replay,
    steps,
    varying,
)


def rng(seed: int = 1) -> np.random.Generator:
    return stream(seed, Stream.GAPS)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gamma_gaps_follow_their_law(burstiness: float) -> None:
    # Its parameters are given and not fitted, so Kolmogorov-Smirnov holds as it stands.
    gaps = np.diff(gamma(5.0, burstiness, 2000.0, rng()))
    law = stats.gamma(burstiness, scale=1 / (5.0 * burstiness))
    assert stats.kstest(gaps, law.cdf).pvalue > 0.01
    assert stats.kstest(gaps, stats.gamma(2 * burstiness, scale=0.1 / burstiness).cdf).pvalue < 1e-6


@pytest.mark.parametrize("burstiness", [0.25, 4.0])
def test_counts_of_gamma_arrivals_are_dispersed_as_a_renewal_process(burstiness: float) -> None:
    # Var N(t) / E N(t) tends to the squared coefficient of variation of a gap, 1/burstiness.
    counts = [len(gamma(5.0, burstiness, 100.0, rng(seed))) for seed in range(1000)]
    assert np.mean(counts) == pytest.approx(500, rel=0.02)
    assert np.var(counts) / np.mean(counts) == pytest.approx(1 / burstiness, rel=0.2)


def test_constant_gaps_are_equal_and_the_phase_is_drawn() -> None:
    instants = constant(8.0, 10.0, rng())
    assert len(instants) == 80
    assert np.diff(instants) == pytest.approx(1 / 8)
    phases = [constant(8.0, 1.0, rng(seed))[0] * 8 for seed in range(500)]
    assert stats.kstest(phases, "uniform").pvalue > 0.01


def law_of(profile: list[Stretch], instants: np.ndarray) -> np.ndarray:
    """Λ(t)/Λ(end) at each instant, by the trapezoid over a fine grid: not how they were drawn."""
    edges = np.cumsum([0.0, *(one.seconds for one in profile)])
    grid = np.linspace(0, edges[-1], 200_001)
    middle = (grid[1:] + grid[:-1]) / 2
    which = np.searchsorted(edges, middle, side="right") - 1
    share = (middle - edges[which]) / np.array([one.seconds for one in profile])[which]
    first, last = np.array([one.first for one in profile]), np.array([one.last for one in profile])
    reached = np.concatenate([[0], np.cumsum(first[which] + share * (last - first)[which])])
    return np.interp(instants, grid, reached / reached[-1])


PROFILES = {
    "ramp": ramp(20.0, [1, 3], 20.0, 80.0),
    "down and up": ramp(20.0, [2, 0, 2], 10.0, 90.0),
    "steps": steps(20.0, [1, 5, 0, 2], 10.0, 90.0),
    "on_off": on_off(20.0, 3.0, 7.0, 100.0),
}


@pytest.mark.parametrize("name", PROFILES)
def test_given_their_count_instants_follow_the_rate(name: str) -> None:
    # Conditional uniformity after the change of time: Λ(t)/Λ(T) of the arrivals is uniform.
    profile = PROFILES[name]
    instants = varying(profile, 100.0, rng(5))
    assert stats.kstest(law_of(profile, instants), "uniform").pvalue > 0.01
    assert stats.kstest(instants / 100, "uniform").pvalue < 0.01


@pytest.mark.parametrize("name", PROFILES)
def test_counts_of_varying_arrivals_are_poisson_about_the_mean_rate(name: str) -> None:
    profile = PROFILES[name]
    end = sum(one.seconds for one in profile)
    expected = sum(one.seconds * (one.first + one.last) / 2 for one in profile)
    counts = np.array([len(varying(profile, end, rng(seed))) for seed in range(1000)])
    assert counts.mean() == pytest.approx(expected, rel=0.01)
    assert counts.var() / counts.mean() == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize("shape", [ramp, steps])
@settings(deadline=None)
@given(
    levels=st.lists(st.floats(0, 10), min_size=2, max_size=6).filter(lambda one: sum(one) > 0.1),
    warmup=st.floats(0, 50),
)
def test_rate_is_the_mean_over_the_measured_period(shape, levels, warmup: float) -> None:
    if shape is ramp and sum(levels[:-1]) + sum(levels[1:]) < 0.1:
        return
    before, *measured = shape(3.0, levels, warmup, 60.0)
    assert before.seconds == warmup
    assert before.first == before.last == measured[0].first
    mass = sum(one.seconds * (one.first + one.last) / 2 for one in measured)
    assert mass == pytest.approx(3.0 * 60)


def test_nothing_comes_while_off() -> None:
    instants = varying(on_off(4.0, 2.0, 8.0, 95.0), 95.0, rng())
    assert len(instants) > 200
    assert (instants % 10 < 2).all()
    assert instants.max() < 95


def test_replay_keeps_the_shape_and_takes_the_rate() -> None:
    recorded = [0.0, 1.0, 1.5, 8.0]
    as_it_was = replay(recorded, 10.0, 0.4, 100.0)
    assert as_it_was == pytest.approx(recorded)
    assert replay(recorded, 10.0, 0.8, 100.0) == pytest.approx([0.0, 0.5, 0.75, 4.0])
    assert replay(recorded, 10.0, 0.4, 1.5) == pytest.approx([0.0, 1.0])


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32), rate=st.floats(0.05, 200), end=st.floats(0.5, 30),
    burstiness=st.floats(0.2, 50),
)  # fmt: skip
def test_instants_ascend_inside_the_period_and_are_pure(
    seed: int, rate: float, end: float, burstiness: float
) -> None:
    profiles = [on_off(rate, 1.0, 2.0, end), ramp(rate, [0, 1], 0.0, end)]
    made = [
        lambda: poisson(rate, end, rng(seed)),
        lambda: gamma(rate, burstiness, end, rng(seed)),
        lambda: constant(rate, end, rng(seed)),
        *(lambda profile=profile: varying(profile, end, rng(seed)) for profile in profiles),
    ]
    for make in made:
        instants = make()
        assert (np.diff(instants) >= 0).all()
        assert ((instants >= 0) & (instants < end)).all()
        assert (instants == make()).all()
