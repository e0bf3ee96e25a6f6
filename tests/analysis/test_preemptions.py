"""Preemptions per reset: from the reply, else from a counter that moves late."""

from __future__ import annotations

import pytest

from harness.analysis.preemptions import MemoryPressure, ResetPreemptions, attribute
from harness.records import (
    Arrival,
    AttemptOutcome,
    Outcome,
    PreemptionSource,
    ResetAttempt,
    ResetMode,
    ResetRecord,
    ServerSample,
)
from tests.analysis.simulation import journals, request, scenario, simulate, wipe

REPLY, COUNTER = PreemptionSource.REPLY, PreemptionSource.COUNTER


def counted(**readings):
    """Samples of the counter every half second; ``t12=2`` says it read 2 from 12.0 on."""
    steps = sorted((int(at[1:]), value) for at, value in readings.items())
    return tuple(
        ServerSample(
            t / 2,
            "0",
            {"num_preemptions_total": float(([0] + [v for at, v in steps if at <= t / 2])[-1])},
        )
        for t in range(80)
    )


def preempt(number, at, **rest):
    return wipe(number, at, mode=ResetMode.PREEMPT, **rest)


def only(found):
    (reset,) = found.resets
    return reset


def test_a_reply_that_tells_is_exact():
    records = [request(i, 9.0, 9.5, 15.0) for i in range(3)]
    found = attribute(
        journals(*records, resets=(preempt(0, 10.0, preemptions=3),), server=counted(t15=3))
    )
    assert only(found) == ResetPreemptions(3, 0, REPLY)
    assert found.memory_pressure == MemoryPressure(0, 0)


def test_every_attempt_counts_whatever_its_outcome():
    attempts = tuple(
        ResetAttempt(at, at + 0.1, outcome, http_status=status, preemptions=count)
        for at, outcome, status, count in (
            (10.0, AttemptOutcome.REJECTED, 500, 4),
            (11.0, AttemptOutcome.CLEARED, 200, 2),
        )
    )
    reset = ResetRecord(
        0, ResetMode.PREEMPT, 10.0, AttemptOutcome.CLEARED, 4, 11.1, attempts=attempts
    )
    assert only(attribute(journals(resets=(reset,)))) == ResetPreemptions(6, 0, REPLY)


def test_the_counter_is_followed_until_every_victim_has_emitted_again():
    """The first two emit at 10.4 and 13.9; a scrape at 10.5 would have seen one of three."""
    records = [
        request(0, 9.0, 9.5, 10.4, 12.0),
        request(1, 9.0, 9.5, 13.9, 15.0),
        request(2, 9.0, 9.5, 12.2, 15.0),
    ]
    server = counted(t11=1, t13=2, t14=3)
    found = attribute(journals(*records, resets=(preempt(0, 10.0),), server=server))
    assert only(found) == ResetPreemptions(3, 0, COUNTER)
    assert found.memory_pressure == MemoryPressure(0, 0)


def test_what_grows_after_the_victims_have_emitted_is_memory_pressure():
    records = [request(k, 9.0, 9.5, 11.0, 12.0) for k in range(4)]
    server = counted(t11=1, t20=3)
    found = attribute(journals(*records, resets=(preempt(0, 10.0),), server=server))
    assert only(found) == ResetPreemptions(1, 0, COUNTER)
    assert found.memory_pressure == MemoryPressure(2, 2)


def test_no_more_than_were_in_flight_are_charged_to_the_reset():
    records = [request(0, 9.0, 9.5, 11.0, 12.0)]
    found = attribute(journals(*records, resets=(preempt(0, 10.0),), server=counted(t11=5)))
    assert only(found) == ResetPreemptions(1, 0, COUNTER)
    assert found.memory_pressure == MemoryPressure(4, 4)


def test_a_victim_that_failed_before_its_next_token_stays_unresolved():
    records = [
        request(0, 9.0, 9.5, 11.0, 12.0),
        request(1, 9.0, 9.5, finished=10.5, outcome=Outcome.DISCONNECTED),
        request(2, 9.9, finished=11.5, outcome=Outcome.TIMEOUT),
    ]
    found = attribute(journals(*records, resets=(preempt(0, 10.0),), server=counted(t11=1)))
    assert only(found) == ResetPreemptions(1, 2, COUNTER)


def test_a_victim_that_failed_after_its_next_token_is_resolved():
    record = request(0, 9.0, 9.5, 11.0, finished=20.0, outcome=Outcome.TRUNCATED)
    found = attribute(journals(record, resets=(preempt(0, 10.0),), server=counted(t11=1)))
    assert only(found) == ResetPreemptions(1, 0, COUNTER)


def test_a_victim_that_ended_while_the_reset_was_under_way_is_resolved():
    record = request(0, 9.0, 9.5, 10.05)
    reset = preempt(0, 10.0, replied=10.1)
    found = attribute(journals(record, resets=(reset,), server=counted(t20=1)))
    assert only(found) == ResetPreemptions(0, 0, COUNTER)


def test_samples_that_end_too_early_leave_the_late_ones_unresolved():
    records = [request(0, 9.0, 9.5, 10.4, 12.0), request(1, 9.0, 9.5, 13.9, 15.0)]
    early = tuple(sample for sample in counted(t11=1, t14=2) if sample.t <= 12.0)
    found = attribute(journals(*records, resets=(preempt(0, 10.0),), server=early))
    assert only(found) == ResetPreemptions(1, 1, COUNTER)


def test_requests_lost_in_a_kill_are_unresolved():
    records = [request(0, 9.0, 9.5, 11.0, 12.0)]
    planned = (Arrival(0, 9.0, 0, 20), Arrival(1, 9.5, 0, 20), Arrival(2, 13.0, 0, 20))
    found = attribute(
        journals(*records, resets=(preempt(0, 10.0),), server=counted(t11=1), planned=planned)
    )
    assert only(found) == ResetPreemptions(1, 1, COUNTER)


def test_a_victim_that_emits_only_after_the_next_reset_may_be_either_ones():
    records = [
        request(0, 9.0, 9.5, 11.0, 20.0),
        request(1, 9.0, 9.5, 13.0, 20.0),  # stalled by the first reset, emits after the second
    ]
    resets = (preempt(0, 10.0), preempt(1, 12.0))
    # Request 0: once by each reset; request 1: by the first, counted after the second.
    server = counted(t11=1, t13=2, t20=3)
    first, second = attribute(journals(*records, resets=resets, server=server)).resets
    assert first == ResetPreemptions(1, 1, COUNTER)
    assert second == ResetPreemptions(1, 1, COUNTER)


@pytest.mark.parametrize("mode", [ResetMode.DEFAULT, ResetMode.SHAM])
def test_modes_that_touch_no_request_are_charged_with_none(mode):
    records = [request(0, 9.0, 9.5, 11.0, 12.0)]
    found = attribute(journals(*records, resets=(wipe(0, 10.0, mode=mode),), server=counted(t11=1)))
    assert only(found).count == 0
    assert found.memory_pressure == MemoryPressure(1, 1)


def test_keep_is_watched_like_preempt_where_the_reply_is_silent():
    records = [request(0, 9.0, 9.5, 11.0, 12.0)]
    found = attribute(journals(*records, resets=(wipe(0, 10.0),), server=counted(t11=1)))
    assert only(found) == ResetPreemptions(1, 0, COUNTER)


def test_without_reply_and_counter_it_is_unknown_and_not_zero():
    records = [request(0, 9.0, 9.5, 11.0, 12.0)]
    found = attribute(journals(*records, resets=(preempt(0, 10.0),)))
    assert only(found) == ResetPreemptions(None, None, None)
    assert found.memory_pressure is None


def test_told_preemptions_that_no_token_ever_confirmed_are_not_subtracted_twice():
    """Two told; one failed unseen by the counter, whose growth of 2 then holds one of pressure."""
    records = [
        request(0, 9.0, 9.5, 11.0, 12.0),
        request(1, 9.0, 9.5, finished=10.5, outcome=Outcome.DISCONNECTED),
    ]
    found = attribute(
        journals(*records, resets=(preempt(0, 10.0, preemptions=2),), server=counted(t11=2))
    )
    assert found.memory_pressure == MemoryPressure(0, 1)


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_the_counter_finds_what_a_reply_would_have_told(seed):
    told = attribute(simulate(scenario(ResetMode.PREEMPT, seed=seed)))
    counted_ = attribute(simulate(scenario(ResetMode.PREEMPT, seed=seed), told=False))
    assert [one.source for one in told.resets] == [REPLY] * 3
    assert [one.source for one in counted_.resets] == [COUNTER] * 3
    for exact, bound in zip(told.resets, counted_.resets, strict=True):
        assert bound.count <= exact.count <= bound.count + bound.unresolved
    assert sum(one.count for one in told.resets) > 0
    assert told.memory_pressure == MemoryPressure(0, 0)
