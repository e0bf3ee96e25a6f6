from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis import idle
from harness.analysis.in_flight import InFlight
from harness.analysis.period import Period

instant = st.integers(0, 400).map(lambda tenths: tenths / 10)
stays = st.lists(st.tuples(instant, st.integers(0, 60).map(lambda t: t / 10)), max_size=12)


def in_flight(stamps: list[tuple[float, float]]) -> InFlight:
    return InFlight.from_stamps([a for a, _ in stamps], [a + b for a, b in stamps])


@given(stays)
def test_the_integral_of_n_is_the_sum_of_residences(stamps):
    total = in_flight(stamps).integral(-1.0, 100.0)
    assert total == pytest.approx(sum(stay for _, stay in stamps))


@given(stays, instant, instant)
def test_windows_are_just_the_time_in_which_nobody_is_there(stamps, one, other):
    period = Period(*sorted((one, other + 0.1)))
    begins, ends = idle.windows(in_flight(stamps), period)
    # Every edge lies on a tenth, so the middles of the tenths are a complete sample.
    middles = np.arange(round(period.start * 10), round(period.end * 10)) / 10 + 0.05
    empty = np.array([not any(a <= t < a + b for a, b in stamps) for t in middles], bool)
    inside = np.array([np.any((begins <= t) & (t < ends)) for t in middles], bool)
    assert (empty == inside).all()


@given(stays, instant, instant)
def test_windows_are_maximal_and_apart(stamps, one, other):
    period = Period(*sorted((one, other)))
    begins, ends = idle.windows(in_flight(stamps), period)
    assert (begins < ends).all()
    assert (ends[:-1] < begins[1:]).all()
    assert ((begins >= period.start) & (ends <= period.end)).all()


def test_a_request_that_took_no_time_does_not_split_a_window():
    begins, ends = idle.windows(in_flight([(1.0, 0.0)]), Period(0.0, 2.0))
    assert (begins.tolist(), ends.tolist()) == ([0.0], [2.0])


def test_windows_are_clipped_to_the_period():
    found = idle.measure(in_flight([(10.0, 5.0), (20.0, 30.0)]), Period(5.0, 30.0), rate=2.0)
    assert found.count == 2
    assert found.longest == 5.0
    assert found.share == pytest.approx(10 / 25)
    assert found.per_minute == pytest.approx(60 * 2 / 25)
    assert found.expected_per_minute == pytest.approx(60 * 2.0 * 10 / 25)


def test_a_period_without_requests_is_one_window():
    found = idle.measure(in_flight([]), Period(0.0, 60.0), rate=1.0)
    assert (found.count, found.longest, found.share) == (1, 60.0, 1.0)


def test_without_a_period_nothing_is_claimed():
    found = idle.measure(in_flight([]), Period(30.0, 30.0), rate=1.0)
    assert (found.share, found.per_minute, found.expected_per_minute) == (None, None, None)


def test_poisson_arrivals_make_windows_at_rate_times_idle_share():
    """λ·P₀, whatever the service: here stays that are far from exponential."""
    rng = np.random.default_rng(5)
    rate, length = 2.0, 20_000.0
    sent = np.sort(rng.uniform(0, length, rng.poisson(rate * length)))
    finished = sent + rng.choice([0.1, 1.2], len(sent))
    found = idle.measure(InFlight.from_stamps(sent, finished), Period(0.0, length), rate)
    expected = found.expected_per_minute * length / 60
    assert found.count == pytest.approx(expected, abs=4 * np.sqrt(expected))


def test_nothing_is_expected_of_arrivals_that_are_not_poisson() -> None:
    found = idle.measure(in_flight([(1.0, 1.0)]), Period(0.0, 10.0), rate=None)
    assert (found.count, found.expected_per_minute) == (2, None)
