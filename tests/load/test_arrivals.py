"""Arrivals: Poisson by the right test, never rescaled; Zipf by its weights."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from harness.load.arrivals import Stream, stream, zipf_choice
from harness.load.processes import poisson


def test_given_their_count_instants_are_uniform() -> None:
    # Conditional uniformity (Kim & Whitt 2014): given n arrivals in [0, T], t/T is uniform.
    instants = poisson(20.0, 500.0, stream(3, Stream.GAPS))
    assert stats.kstest(instants / 500.0, "uniform").pvalue > 0.01


def test_counts_are_as_variable_as_poisson_counts() -> None:
    counts = [len(poisson(5.0, 10.0, stream(seed, Stream.GAPS))) for seed in range(2000)]
    assert np.mean(counts) == pytest.approx(50, rel=0.01)
    assert np.var(counts) / np.mean(counts) == pytest.approx(1.0, abs=0.1)


def test_fault_07_seeds_superpose_to_poisson_counts() -> None:
    # Workers that share one seed and one offset made variance/mean 8 where Poisson has 1.
    workers = [poisson(4.0, 200.0, stream(seed, Stream.GAPS)) for seed in range(8)]
    counts = np.histogram(np.concatenate(workers), bins=400, range=(0, 200))[0]
    assert 0.8 < counts.var() / counts.mean() < 1.25


@given(rate=st.floats(0.01, 500), end=st.floats(0.1, 50), seed=st.integers(0, 2**32))
def test_instants_ascend_inside_the_period(rate: float, end: float, seed: int) -> None:
    instants = poisson(rate, end, stream(seed, Stream.GAPS))
    assert (np.diff(instants) > 0).all()
    assert ((instants > 0) & (instants < end)).all()


def test_a_longer_period_continues_the_same_instants() -> None:
    short = poisson(4.0, 50.0, stream(1, Stream.GAPS))
    long = poisson(4.0, 500.0, stream(1, Stream.GAPS))
    assert (long[: len(short)] == short).all()


def test_prefixes_follow_the_zipf_law() -> None:
    drawn = zipf_choice(24, 1.0, 50_000, stream(1, Stream.PREFIXES))
    weights = 1 / np.arange(1, 25)
    expected = 50_000 * weights / weights.sum()
    assert stats.chisquare(np.bincount(drawn, minlength=24), expected).pvalue > 0.01
