"""Counts of each mode, pooled over runs, against what a simulated replica did."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from harness.analysis.experiment.modes import ModeFigures, figures, of_run
from harness.analysis.experiment.recorded import Recorded
from harness.records import AttemptOutcome, ResetAttempt, ResetMode
from tests.analysis.simulation import journals, request, scenario, simulate, wipe
from tests.analysis.test_summary import EDGES

NONE, DEFAULT, PREEMPT, KEEP = (
    ResetMode.NONE, ResetMode.DEFAULT, ResetMode.PREEMPT, ResetMode.KEEP,
)  # fmt: skip


def of(*modes: ResetMode, **settings: float) -> dict[ResetMode, ModeFigures]:
    runs = [Recorded.of(str(mode), simulate(scenario(mode, **settings))) for mode in modes]
    return {one.mode: one for one in figures(runs)}


def test_preempt_preempts_what_is_in_flight_and_keep_nothing():
    found = of(NONE, PREEMPT, KEEP, duration=300.0)
    preempt, keep = found[PREEMPT], found[KEEP]
    assert preempt.preemptions == preempt.in_flight
    assert preempt.preemptions.mean > 1
    assert (keep.preemptions.count, keep.preemptions.most) == (9, 0.0)
    assert keep.outcomes == preempt.outcomes == {AttemptOutcome.CLEARED: 9}
    assert keep.pressure_per_minute == found[NONE].pressure_per_minute == 0
    assert found[NONE].planned == found[NONE].took_effect == 0
    assert found[NONE].minutes == pytest.approx(5.0)


def test_a_refused_default_is_counted_and_has_no_window():
    found = of(DEFAULT)[DEFAULT]
    assert found.outcomes[AttemptOutcome.REFUSED] == found.planned - found.took_effect
    assert found.in_flight.most in (None, 0.0)


def test_frequent_prefixes_are_cached_again_first():
    groups = of(KEEP, duration=600.0)[KEEP].cached_by_prefix
    assert (groups[0].first, groups[0].last, groups[1].first, groups[-1].last) == (0, 0, 1, 23)
    assert groups[0].cached[0] > groups[-1].cached[0]
    assert groups[-1].cached[-1] > groups[-1].cached[0]


def test_a_reply_is_believed_pod_by_pod():
    one = {"running": 3, "preempted": 3, "discarded_tokens": 700, "stall_seconds": 0.002}
    two = {"running": 1, "preempted": 1, "discarded_tokens": 50, "stall_seconds": 0.004}
    both = {"pods": [{"url": "a", "reply": one}, {"url": "b", "reply": two}]}
    half = {"pods": [{"url": "a", "reply": one}, {"url": "b", "reply": None}]}
    stock = {"success": True}
    found = []
    for reply in (one, both, half, stock):
        attempt = ResetAttempt(40.0, 40.1, AttemptOutcome.CLEARED, preemptions=4, reply=reply)
        reset = msgspec.structs.replace(wipe(0, 40.0, mode=PREEMPT), attempts=(attempt,))
        (row,) = of_run(Recorded.of("x", journals(request(0, 1.0, 2.0), resets=(reset,))))
        found.append((row.running, row.discarded_tokens, row.stall))
    assert found == [(3, 700, 0.002), (4, 750, 0.004), (None, None, None), (None, None, None)]


def test_other_preemptions_in_a_window_are_memory_pressure():
    base = simulate(scenario(PREEMPT))

    def pressed(sample):
        more = float(sample.t > 100.0) * 5
        metrics = sample.metrics | {
            "num_preemptions_total": sample.metrics["num_preemptions_total"] + more
        }
        return msgspec.structs.replace(sample, metrics=metrics)

    run = Recorded.of("x", replace(base, server=tuple(map(pressed, base.server))))
    assert [row.pressure for row in of_run(run)] == [0, 5, 0]
    (mode,) = figures([run])
    assert mode.pressure_per_minute == pytest.approx(5 / mode.minutes)


@pytest.mark.parametrize("edge", EDGES)
def test_every_edge_is_counted(edge):
    found = figures([Recorded.of(edge, EDGES[edge]())])
    encoded = msgspec.json.encode(found)
    assert b"NaN" not in encoded
    assert msgspec.json.decode(encoded, type=tuple[ModeFigures, ...]) == found
