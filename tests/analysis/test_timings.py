from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis import timings
from harness.analysis.period import Period
from harness.journals import RequestTable
from harness.records import Outcome
from tests.analysis.simulation import request

ALWAYS = Period(-math.inf, math.inf)


def measure(*records, period=ALWAYS):
    return timings.measure(RequestTable.from_records(records), period)


def test_a_long_stall_in_mid_stream_is_the_largest_itl():
    found = measure(request(0, 0.0, 0.1, 0.2, 7.2, 7.3))
    assert found.itl.count == 3
    assert found.itl.max == pytest.approx(7.0)


def test_gaps_never_run_from_one_request_to_the_next():
    found = measure(
        request(0, 0.0, finished=0.5, outcome=Outcome.NO_TOKENS),
        request(1, 0.0, 1.0, 1.5),
        request(2, 0.0, finished=9.0, outcome=Outcome.HTTP_ERROR),
        request(3, 0.0, 100.0, 100.25),
        request(4, 0.0, finished=0.5, outcome=Outcome.NO_TOKENS),
    )
    assert found.itl.count == 2
    assert found.itl.max == pytest.approx(0.5)


def test_a_request_across_the_warm_up_counts_by_its_events():
    """Scheduled and first answered in the warm-up, ended after it."""
    early = request(0, 8.0, 9.0, 11.0, 12.0)
    late = request(1, 9.5, 10.5, 21.0)
    found = measure(early, late, period=Period(10.0, 20.0))
    assert found.ttft.count == 1  # only the late one's first token came in the period
    assert found.ttft.max == pytest.approx(1.0)
    assert found.latency.count == 1  # only the early one ended in it
    assert found.latency.max == pytest.approx(4.0)
    assert found.itl.count == 2  # 9 to 11 and 11 to 12; 10.5 to 21 ends too late
    assert found.itl.max == pytest.approx(2.0)
    assert found.lag.count == 0  # both were sent before it


def test_waiting_before_the_request_was_sent_is_in_ttft_and_latency():
    found = measure(request(0, 5.0, 5.5, 6.0, scheduled=1.0))
    assert (found.ttft.max, found.ttft_from_sent.max) == pytest.approx((4.5, 0.5))
    assert (found.latency.max, found.latency_from_sent.max) == pytest.approx((5.0, 1.0))
    assert found.lag.max == pytest.approx(4.0)


def test_a_request_without_tokens_has_no_ttft_and_a_failed_one_no_latency():
    found = measure(
        request(0, 0.0, finished=3.0, outcome=Outcome.NO_TOKENS),
        request(1, 0.0, 1.0, 2.0, finished=4.0, outcome=Outcome.TRUNCATED),
    )
    assert found.ttft.count == 1
    assert found.ttft.max == pytest.approx(1.0)
    assert found.latency.count == 0
    assert found.itl.count == 1


def test_a_request_never_sent_has_ttft_of_none_kind():
    record = request(0, 0.0, finished=1.0, outcome=Outcome.CONNECT_FAILED)
    found = measure(record)
    assert found.ttft.count == found.latency.count == found.ttft_from_sent.count == 0


def test_nothing_observed_is_none_and_not_zero():
    assert measure().ttft == timings.Distribution(0)


@given(st.lists(st.floats(0.001, 1000), min_size=1, max_size=50))
def test_percentiles_are_ordered_and_the_maximum_is_seen(values):
    found = timings.describe(np.array(values))
    shown = [found.p50, found.p90, found.p95, found.p99, found.max]
    assert shown == sorted(shown)
    assert found.max == max(values)
    assert found.mean == pytest.approx(np.mean(values))


def test_percentiles_are_numpys():
    found = timings.describe(np.arange(101.0))
    assert (found.p50, found.p90, found.p95, found.p99, found.max) == (50, 90, 95, 99, 100)


@given(
    st.lists(st.lists(st.integers(0, 20), max_size=5), max_size=6),
    st.integers(0, 20),
    st.integers(0, 20),
)
def test_gaps_and_chunks_agree_with_counting_by_hand(streams, one, other):
    period = Period(*sorted((float(one), float(other))))
    sorted_streams = [sorted(map(float, stream)) for stream in streams]
    table = RequestTable.from_records(
        request(number, 0.0, *stream, finished=30.0) for number, stream in enumerate(sorted_streams)
    )
    by_hand = [
        b - a
        for stream in sorted_streams
        for a, b in pairwise(stream)
        if period.start <= b < period.end
    ]
    assert timings.gaps(table, period).tolist() == by_hand
    assert timings.chunks(table, period).tolist() == [
        sum(period.start <= t < period.end for t in stream) for stream in sorted_streams
    ]
