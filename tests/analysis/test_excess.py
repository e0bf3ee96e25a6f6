from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from harness.analysis.experiment.excess import Stays, windows
from harness.analysis.in_flight import InFlight

Floats = NDArray[np.float64]

requests = st.lists(
    st.tuples(st.floats(0, 100), st.floats(0.01, 40), st.booleans()), min_size=1, max_size=40
)


def stays(rows: list[tuple[float, float, bool]], cap: float = math.inf) -> Stays:
    start, stay, failed = (np.array(column) for column in zip(*rows, strict=True))
    if math.isinf(cap):
        failed = np.zeros(len(rows), bool)
    return Stays.capped(np.arange(len(rows)), start, start + stay, failed, cap)


@settings(deadline=None)
@given(requests, st.lists(st.floats(0, 120), min_size=1, max_size=6), st.floats(0.1, 50))
def test_latency_is_the_integral_and_its_two_boundary_terms(
    rows: list[tuple[float, float, bool]], at: list[float], horizon: float
) -> None:
    table = windows(stays(rows), at, horizon)
    np.testing.assert_allclose(
        table["latency"], table["integral"] + table["after"] - table["before"], atol=1e-9
    )
    np.testing.assert_allclose(table["victims"] + table["later"], table["integral"], atol=1e-9)


@settings(deadline=None)
@given(requests, st.floats(0, 20))
def test_after_a_full_drain_added_latency_is_the_excess(
    rows: list[tuple[float, float, bool]], slower: float
) -> None:
    """With nothing in flight at either end, Σ ΔL = ∫ ΔN with no boundary term."""
    control = stays(rows)
    hit = stays([(start, stay + slower * (stay > 10), failed) for start, stay, failed in rows])
    tables = [windows(each, [-1.0], 200.0) for each in (hit, control)]
    assert all(table[["before", "after"]].to_numpy().sum() == 0 for table in tables)
    added = float(np.sum(hit.end - hit.start) - np.sum(control.end - control.start))
    excess = float(tables[0]["integral"].iloc[0] - tables[1]["integral"].iloc[0])
    assert excess == pytest.approx(added, abs=1e-9)


@settings(deadline=None)
@given(requests, st.lists(st.floats(0, 120), max_size=8))
def test_present_is_every_pair_in_flight(
    rows: list[tuple[float, float, bool]], at: list[float]
) -> None:
    each = stays(rows)
    instants = np.array(at, np.float64)
    row, which = each.present(instants)
    inside = (each.start[:, None] <= instants) & (instants < each.end[:, None])
    assert sorted(zip(row.tolist(), which.tolist(), strict=True)) == list(
        zip(*(part.tolist() for part in np.nonzero(inside)), strict=True)
    )
    assert np.bincount(which, minlength=len(at)).tolist() == (
        InFlight.from_stamps(each.start, each.end).at(instants).tolist()
    )


def test_a_request_is_in_flight_from_its_first_instant_and_not_at_its_last() -> None:
    row, which = stays([(1.0, 2.0, False)]).present(np.array([3.0, 1.0, 2.0]))
    assert row.tolist() == [0, 0]
    assert which.tolist() == [1, 2]


def test_a_victim_belongs_to_the_reset_that_hit_it() -> None:
    each = stays([(0.0, 15.0, False), (12.0, 4.0, False)])
    table = windows(each, [10.0, 20.0], 10.0)
    assert table["in_flight"].tolist() == [1, 0]
    assert table["victims"].tolist() == [5.0, 0.0]
    assert table["later"].tolist() == [4.0, 0.0]


def test_failures_count_as_the_cap_and_nothing_counts_as_more() -> None:
    rows = [(0.0, 0.5, True), (1.0, 50.0, False), (2.0, 3.0, False)]
    capped = stays(rows, cap=20.0)
    assert (capped.end - capped.start).tolist() == [20.0, 20.0, 3.0]
    assert windows(capped, [-1.0], 100.0)["failed"].tolist() == [1.0]


def test_a_request_that_was_never_sent_counts_from_when_it_was_due() -> None:
    frame = pd.DataFrame(
        {
            "id": [0, 1],
            "scheduled": [1.0, 2.0],
            "sent": [math.nan, 2.1],
            "finished": [1.5, 4.1],
            "outcome": ["connect_failed", "ok"],
        }
    )
    each = Stays.of(frame, cap=10.0)
    np.testing.assert_allclose(each.start, [1.0, 2.1])
    np.testing.assert_allclose(each.end, [11.0, 4.1])


def test_a_million_requests_and_a_straggler_take_no_quadratic_step() -> None:
    rng = np.random.default_rng(3)
    start = np.sort(rng.uniform(0, 250_000, 1_000_000))
    finished = start + rng.exponential(5.0, len(start))
    finished[0] = 250_000.0
    each = Stays.capped(
        np.arange(len(start)), start, finished, np.zeros(len(start), bool), math.inf
    )
    table = windows(each, np.arange(100.0, 249_000.0, 120.0), 120.0)
    np.testing.assert_allclose(
        table["latency"], table["integral"] + table["after"] - table["before"], atol=1e-4
    )
