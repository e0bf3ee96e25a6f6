from __future__ import annotations

import numpy as np
import pytest

from harness.analysis import curves
from harness.analysis.recovery import recoveries
from harness.analysis.resets import settle
from harness.records import AttemptOutcome, Outcome, ResetAttempt, ResetMode, ResetRecord
from tests.analysis.simulation import journals, request, scenario, simulate, wipe


def steady(start, end, ttft, *, latency=1.0, first_id=0, every=0.25):
    """Requests every quarter of a second with the same TTFT and latency."""
    times = np.arange(start, end, every)
    return [
        request(first_id + k, float(t), float(t) + ttft, float(t) + latency)
        for k, t in enumerate(times)
    ]


def recover(*records, resets, **rest):
    run = journals(*records, resets=resets, **rest)
    return recoveries(run, settle(run))


def test_ttft_that_is_slow_for_six_seconds_is_back_after_six():
    records = steady(0, 40, 0.01) + steady(40, 46, 0.3, first_id=200)
    records += steady(46, 100, 0.01, first_id=300)
    (found,) = recover(*records, resets=(wipe(0, 40.0),))
    # Three of twelve may be slow: those twelve have their middle 0.75 s after the change.
    assert found.time_to_recover == pytest.approx(6.0, abs=1.0)
    assert found.before.ttft == pytest.approx(0.01)
    assert found.after.ttft == pytest.approx(0.3)
    assert found.window == 60.0


def test_ttft_that_never_leaves_the_band_took_no_time():
    (found,) = recover(*steady(0, 100, 0.01), resets=(wipe(0, 40.0),))
    assert found.time_to_recover == 0.0


def test_ttft_that_is_still_slow_at_the_end_has_not_recovered():
    records = steady(0, 40, 0.01) + steady(40, 100, 0.3, first_id=200)
    (found,) = recover(*records, resets=(wipe(0, 40.0),))
    assert found.time_to_recover is None


def test_a_relapse_counts():
    records = steady(0, 40, 0.01) + steady(40, 45, 0.3, first_id=200)
    records += steady(45, 60, 0.01, first_id=300) + steady(60, 65, 0.3, first_id=400)
    records += steady(65, 100, 0.01, first_id=500)
    (found,) = recover(*records, resets=(wipe(0, 40.0),))
    assert found.time_to_recover == pytest.approx(25.0, abs=1.0)


def test_the_baseline_holds_only_what_the_wipe_cannot_have_touched():
    """One scheduled before the wipe and stalled by it is no part of "before"."""
    victim = request(900, 39.0, 39.01, 60.0)
    late = request(901, 39.9, 41.0, 60.0)
    (found,) = recover(*steady(0, 39, 0.01), victim, late, resets=(wipe(0, 40.0),))
    assert found.before.latency == pytest.approx(1.0)
    assert found.before.ttft == pytest.approx(0.01)


def test_before_counts_what_ended_in_it_however_long_ago_it_began():
    long = request(900, 20.0, 20.01, 35.0)
    (found,) = recover(*steady(0, 38, 0.01), long, resets=(wipe(0, 40.0),))
    ended = 9 / 0.25  # those that ended from 30 on, the last at 38.75
    assert found.before.latency == pytest.approx((ended * 1.0 + 15.0) / (ended + 1))


def test_after_begins_when_the_wipe_took_effect_and_not_when_it_was_called():
    records = steady(0, 40, 0.01) + steady(40, 42, 0.3, first_id=200)
    records += steady(42, 100, 0.02, first_id=300)
    (found,) = recover(*records, resets=(wipe(0, 40.0, replied=42.0),))
    assert found.after.ttft == pytest.approx(0.02)


def test_before_never_reaches_behind_the_previous_reset():
    records = steady(0, 40, 0.01) + steady(40, 44, 0.3, first_id=200)
    records += steady(44, 100, 0.01, first_id=300)
    found = recover(*records, resets=(wipe(0, 40.0), wipe(1, 44.0)))
    assert found[1].before.ttft == pytest.approx(0.3, rel=0.2)
    assert found[0].window == pytest.approx(4.0)


def test_victims_of_the_next_reset_do_not_undo_this_ones_recovery():
    """Sent at 59.x, answered only after the reset at 60: the second reset's doing."""
    records = steady(0, 40, 0.01) + steady(40, 42, 0.3, first_id=200)
    records += steady(42, 58, 0.01, first_id=300) + steady(58, 60, 3.0, latency=4.0, first_id=400)
    records += steady(60, 100, 0.01, first_id=500)
    found = recover(*records, resets=(wipe(0, 40.0), wipe(1, 60.0)))
    assert found[0].time_to_recover == pytest.approx(2.0, abs=1.0)


def test_a_refused_reset_has_no_recovery_and_does_not_cut_a_window():
    resets = (
        wipe(0, 40.0),
        wipe(1, 50.0, mode=ResetMode.DEFAULT, outcome=AttemptOutcome.REFUSED),
        wipe(2, 70.0),
    )
    found = recover(*steady(0, 100, 0.01), resets=resets)
    assert found[1] is None
    assert found[0].window == 30.0


def test_a_preempting_reset_that_answers_500_cuts_a_window():
    failed = ResetRecord(
        1,
        ResetMode.PREEMPT,
        50.0,
        AttemptOutcome.REJECTED,
        4,
        attempts=(ResetAttempt(50.0, 50.1, AttemptOutcome.REJECTED, 500),),
    )
    found = recover(*steady(0, 100, 0.01), resets=(wipe(0, 40.0), failed))
    assert found[0].window == 10.0
    assert found[1] is None


def test_a_window_without_requests_before_or_after_claims_nothing():
    (found,) = recover(resets=(wipe(0, 40.0),))
    assert (found.before.ttft, found.after.latency, found.time_to_recover) == (None, None, None)


def test_failed_requests_have_no_latency_but_are_counted_in_the_curve():
    records = steady(0, 40, 0.01)
    records += [
        request(200 + k, 40.0 + k / 4, finished=41.0 + k / 4, outcome=Outcome.HTTP_ERROR)
        for k in range(40)
    ]
    run = journals(*records, resets=(wipe(0, 40.0),), duration=50.0)
    (curve,) = curves.draw(run, settle(run))
    after = [one for one in curve.bins if one.start >= 0]
    assert sum(one.failed for one in after) == 40
    assert all(one.ttft is None and one.latency is None for one in after)


def test_a_curve_pools_its_resets_and_knows_how_many_reach_a_bin():
    run = journals(*steady(0, 100, 0.01), resets=(wipe(0, 40.0), wipe(1, 60.0)), duration=100.0)
    (curve,) = curves.draw(run, settle(run))
    assert (curve.mode, curve.resets) == (ResetMode.KEEP, 2)
    assert {one.resets for one in curve.bins if 0 <= one.start < 20} == {2}
    assert {one.resets for one in curve.bins if one.start >= 20} == {1}
    before, first = (next(one for one in curve.bins if one.start >= edge) for edge in (-10, 0))
    assert (before.start, first.start) == (-10.0, 0.0)
    # Bins tile the time; each request of the two windows and their run-ups is in one.
    assert sum(one.requests for one in curve.bins) == 4 * (20 + 40 + 10 + 10)
    assert first.ttft.median == pytest.approx(0.01)


def test_each_mode_has_its_own_curve():
    resets = (
        wipe(0, 30.0),
        wipe(1, 50.0, mode=ResetMode.PREEMPT),
        wipe(2, 70.0, mode=ResetMode.SHAM, outcome=AttemptOutcome.CLEARED),
    )
    run = journals(*steady(0, 100, 0.01), resets=resets)
    found = curves.draw(run, settle(run))
    assert [curve.mode for curve in found] == [ResetMode.PREEMPT, ResetMode.KEEP, ResetMode.SHAM]


@pytest.mark.parametrize("mode", [ResetMode.KEEP, ResetMode.PREEMPT])
def test_a_simulated_wipe_shows_and_passes(mode):
    run = simulate(scenario(mode, duration=480.0, every=120.0))
    settled = settle(run)
    for one in recoveries(run, settled):
        assert one.after.ttft > 4 * one.before.ttft
        assert one.after.cached_share < 0.8 < one.before.cached_share
    (curve,) = curves.draw(run, settled)
    late = [one for one in curve.bins if one.start > 60]
    assert np.median([one.ttft.q3 for one in late]) < 0.05
    coldest = min(curve.bins, key=lambda one: one.cached_share)
    assert 0 <= coldest.start < 15
