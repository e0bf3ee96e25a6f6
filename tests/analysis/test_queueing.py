from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from harness.analysis import queueing
from harness.analysis.in_flight import InFlight

Floats = NDArray[np.float64]
A, B = 0.878, 0.199


def run(rate: float, duration: float, seed: int, spread: float = 0.1) -> tuple[Floats, Floats]:
    """Stamps of a processor-sharing server, stepped from event to event."""
    rng = np.random.default_rng(seed)
    sent = np.sort(rng.uniform(0, duration, rng.poisson(rate * duration)))
    work = np.maximum(rng.normal(1, spread, len(sent)), 0.1)
    finished = np.empty(len(sent))
    left: dict[int, float] = {}
    now, following = 0.0, 0
    while following < len(sent) or left:
        arrival = sent[following] if following < len(sent) else math.inf
        slowness = A + B * len(left)
        first = min(left, key=left.__getitem__) if left else -1
        departure = now + left[first] * slowness if left else math.inf
        then = min(arrival, departure)
        left = {key: work - (then - now) / slowness for key, work in left.items()}
        now = then
        if departure <= arrival:
            del left[first]
            finished[first] = now
        else:
            left[following] = work[following]
            following += 1
    return sent, finished


@pytest.mark.parametrize("rate", [2.0, 3.0, 4.0])
def test_fit_finds_the_law_that_made_the_run(rate: float) -> None:
    sent, finished = run(rate, 900, seed=5)
    found = queueing.fit(sent, finished)
    assert found is not None
    low, high = found.b_interval
    assert low < B < high
    assert found.law.b == pytest.approx(B, rel=0.15)
    assert found.law.a == pytest.approx(A, rel=0.15)
    assert found.departures == len(sent)
    assert found.law.latency(rate) == pytest.approx(float(np.mean(finished - sent)), rel=0.15)


def test_fit_reads_only_its_windows() -> None:
    sent, finished = run(3.0, 900, seed=6)
    slow = sent > 450
    finished = np.where(slow, sent + 20.0, finished)
    whole = queueing.fit(sent, finished)
    clean = queueing.fit(sent, finished, [(0.0, 200.0), (200.0, 440.0)])
    assert clean is not None
    assert clean.law.b == pytest.approx(B, rel=0.2)
    assert whole is None or abs(whole.law.b - B) > 2 * abs(clean.law.b - B)


def test_a_server_that_shares_nothing_has_no_capacity() -> None:
    sent, _ = run(3.0, 600, seed=7)
    rng = np.random.default_rng(8)
    assert queueing.fit(sent, sent + rng.exponential(1.5, len(sent))) is None


@pytest.mark.parametrize("count", [0, 1, 20])
def test_too_few_departures_cannot_tell(count: int) -> None:
    sent, finished = run(4.0, 60, seed=9)
    assert queueing.fit(sent[:count], finished[:count]) is None


def test_littles_law_closes_with_its_boundary_term() -> None:
    sent, finished = run(3.0, 300, seed=10)
    law = queueing.littles_law(sent, finished, (50.0, 250.0))
    assert law.rate * law.latency - law.in_flight == pytest.approx(law.boundary)
    count = InFlight.from_stamps(sent, finished)
    assert abs(law.boundary) * 200 < 10 * count.level.max()
    assert law.gap is None


def test_gauges_are_compared_at_their_own_instants() -> None:
    sent, finished = run(3.0, 300, seed=11)
    count = InFlight.from_stamps(sent, finished)
    scrapes = np.arange(0.0, 300.0, 0.5)
    same = queueing.littles_law(sent, finished, (50.0, 250.0), scrapes, count.at(scrapes))
    assert same.gap == pytest.approx(0.0)
    half = queueing.littles_law(sent, finished, (50.0, 250.0), scrapes, count.at(scrapes) / 2)
    assert half.gap == pytest.approx(-0.5)


def test_poisson_p_values_are_uniform_for_poisson_arrivals() -> None:
    rng = np.random.default_rng(12)
    checks = [
        queueing.poisson(rng.uniform(0, 100, rng.poisson(300)), (0.0, 100.0)) for _ in range(400)
    ]
    for name in ("uniform", "lewis"):
        p = np.array([getattr(check, name) for check in checks])
        assert 0.02 < np.mean(p < 0.05) < 0.09
        assert 0.4 < p.mean() < 0.6


@pytest.mark.parametrize(
    ("case", "culprit"),
    [("even", "lewis"), ("bunched", "lewis"), ("ramp", "uniform")],
)
def test_poisson_sees_what_is_not(case: str, culprit: str) -> None:
    rng = np.random.default_rng(13)
    gaps = {
        "even": rng.gamma(4, 1 / 4, 600),
        "bunched": rng.gamma(0.3, 1 / 0.3, 600),
        "ramp": rng.exponential(np.linspace(0.6, 1.4, 600)),
    }[case]
    times = np.cumsum(gaps)
    check = queueing.poisson(times, (0.0, float(times[-1])))
    assert check is not None
    assert getattr(check, culprit) < 0.01
    assert check.p_value < 0.02


def test_few_arrivals_cannot_tell() -> None:
    assert queueing.poisson([1.0, 2.0], (0.0, 10.0)) is None


stamps = st.lists(
    st.tuples(st.floats(0, 100), st.floats(0, 30)).map(lambda pair: (pair[0], sum(pair))),
    max_size=40,
)


@settings(deadline=None)
@given(stamps, st.floats(-10, 140), st.floats(0, 60))
def test_integral_is_the_sum_of_the_overlaps(
    pairs: list[tuple[float, float]], start: float, length: float
) -> None:
    sent, finished = np.array(pairs, np.float64).reshape(-1, 2).T
    count = InFlight.from_stamps(sent, finished)
    end = start + length
    overlaps = np.clip(finished, start, end) - np.clip(sent, start, end)
    assert float(count.integral(start, end)) == pytest.approx(overlaps.sum(), abs=1e-9)
    assert count.at(start) == np.sum((sent <= start) & (start < finished))
    levels, held = count.segments(start, end)
    assert held.sum() == pytest.approx(length)
    assert float(levels @ held) == pytest.approx(overlaps.sum(), abs=1e-9)
    assert count.level.min() == 0


def test_requests_never_sent_are_not_in_flight() -> None:
    count = InFlight.from_stamps([1.0, math.nan, 2.0], [4.0, 3.0, math.nan])
    assert count.at([0.5, 1.5, 3.5, 4.5]).tolist() == [0, 1, 1, 0]
    with pytest.raises(ValueError, match="1 requests finish before"):
        InFlight.from_stamps([2.0], [1.0])


def test_mser_cuts_what_a_start_left_and_nothing_of_a_steady_series() -> None:
    rng = np.random.default_rng(3)
    steady = rng.normal(1.0, 0.1, 400)
    ramp = np.concatenate([np.linspace(5.0, 1.0, 60), steady])
    assert queueing.mser(steady) in range(0, 60, 5)
    assert 40 <= queueing.mser(ramp) <= 90
    assert queueing.mser(steady[:19]) is None
