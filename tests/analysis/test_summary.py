"""One run, whole or cut short, becomes a summary that encodes; every edge case is a result."""

from __future__ import annotations

import msgspec
import pytest

from harness.analysis.summary import RunSummary, summarize
from harness.journals import RunStatus
from harness.records import (
    Arrival,
    AttemptOutcome,
    ClientSample,
    Outcome,
    ResetAttempt,
    ResetMode,
    ResetRecord,
)
from tests.analysis.simulation import journals, request, scenario, simulate, wipe

FAILED = [request(k, 20.0 + k, finished=21.0 + k, outcome=Outcome.HTTP_ERROR) for k in range(20)]
UNANSWERED = ResetRecord(
    0,
    ResetMode.KEEP,
    40.0,
    AttemptOutcome.FAILED,
    3,
    attempts=(ResetAttempt(40.0, None, AttemptOutcome.FAILED, error="no answer"),),
)
EDGES = {
    "nothing at all": journals,
    "no requests but a reset": lambda: journals(resets=(wipe(0, 40.0),)),
    "one request": lambda: journals(request(0, 1.0, 2.0)),
    "one request without a token": lambda: journals(
        request(0, 1.0, finished=2.0, outcome=Outcome.NO_TOKENS)
    ),
    "all failed": lambda: journals(*FAILED, resets=(wipe(0, 30.0),)),
    "none was ever sent": lambda: journals(
        *(
            msgspec.structs.replace(one, sent=None, outcome=Outcome.CONNECT_FAILED)
            for one in FAILED
        ),
        resets=(wipe(0, 30.0),),
    ),
    "a reset without an answer": lambda: journals(*FAILED, resets=(UNANSWERED,)),
    "one reset": lambda: simulate(scenario(ResetMode.KEEP, duration=60.0, every=30.0)),
    "no resets": lambda: simulate(scenario(ResetMode.NONE)),
    "every reset refused": lambda: simulate(scenario(ResetMode.DEFAULT)),
    "only marks": lambda: simulate(scenario(ResetMode.SHAM)),
    "killed in the warm-up": lambda: journals(
        request(0, 1.0, 2.0),
        planned=(Arrival(0, 1.0, 0, 20), Arrival(1, 3.0, 0, 20)),
        warmup=30.0,
        status=RunStatus.RUNNING,
        torn=("requests.jsonl", "server.jsonl"),
    ),
    "a reset at the very end": lambda: journals(request(0, 1.0, 2.0), resets=(wipe(0, 100.0),)),
    "a reset in the drain": lambda: journals(request(0, 1.0, 2.0), resets=(wipe(0, 130.0),)),
    "a reset right after the warm-up": lambda: journals(
        *(request(k, k / 4, k / 4 + 0.1) for k in range(400)),
        resets=(wipe(0, 30.0),),
        warmup=30.0,
        duration=70.0,
    ),
}


@pytest.mark.parametrize("edge", EDGES)
def test_every_edge_is_a_summary_that_survives_json(edge):
    summary = summarize(EDGES[edge]())
    encoded = msgspec.json.encode(summary)
    assert b"NaN" not in encoded
    assert msgspec.json.decode(encoded, type=RunSummary) == summary


def test_a_whole_run_in_figures():
    summary = summarize(simulate(scenario(ResetMode.PREEMPT)))
    assert summary.status is RunStatus.COMPLETE
    assert (summary.period.start, summary.period.end) == (30.0, 150.0)
    assert summary.outcomes == {AttemptOutcome.CLEARED: 3}
    assert [row.reset.record.preemptions for row in summary.resets] == [
        row.reset.record.in_flight for row in summary.resets
    ]
    assert summary.volume.rate == pytest.approx(4.0, rel=0.2)
    assert summary.timings.ttft.p50 < 0.03 < 0.2 < summary.timings.ttft.p99
    assert summary.client.cpu_share == pytest.approx(0.3)
    queue = summary.occupancy
    assert queue.mean + queue.boundary == pytest.approx(queue.rate * queue.residence)
    assert queue.server_gap == pytest.approx(0.0, abs=0.01)
    assert 0.2 < queue.utilisation < 0.7


def test_the_queue_before_measuring_is_that_of_the_last_half_of_the_warm_up():
    records = [request(k, 10.0, 11.0, 20.0) for k in range(2)]
    records += [request(2 + k, 20.0, 21.0, 50.0) for k in range(3)]
    queue = summarize(
        journals(*records, resets=(wipe(0, 40.0),), warmup=20.0, duration=80.0)
    ).occupancy
    assert (queue.warmup, queue.undisturbed, queue.most) == pytest.approx((2.0, 3.0, 3))
    assert queue.mean == pytest.approx(3 * 30 / 80)


def test_the_clients_share_is_of_the_time_measured():
    samples = tuple(ClientSample(float(t), 100.0 + 0.5 * t, ()) for t in range(20, 100))
    summary = summarize(journals(client=samples, warmup=30.0, duration=60.0))
    assert summary.client.cpu_share == pytest.approx(0.5)


def test_of_several_processes_the_worst_is_shown():
    samples = [ClientSample(float(t), 0.1 * t, (0.0,), 0) for t in range(20, 100)]
    samples += [ClientSample(float(t), 0.8 * t, (0.001,), 1) for t in range(20, 100)]
    samples += [ClientSample(float(t), 0.7 * t, (0.004,), 2) for t in range(20, 100)]
    health = summarize(journals(client=tuple(samples), warmup=30.0, duration=60.0)).client
    assert health.processes == 3
    assert health.cpu_share == pytest.approx(0.8)
    assert health.overshoot.p99 == pytest.approx(0.004)


def test_waiting_for_default_to_clear_is_measured_from_the_planned_instant():
    attempts = (
        ResetAttempt(40.0, 40.01, AttemptOutcome.REFUSED),
        ResetAttempt(43.0, 43.01, AttemptOutcome.CLEARED),
    )
    reset = ResetRecord(
        0, ResetMode.DEFAULT, 40.0, AttemptOutcome.CLEARED, 0, 43.01, attempts=attempts
    )
    (row,) = summarize(journals(resets=(reset,))).resets
    assert row.wait == pytest.approx(3.01)


def test_an_interrupted_run_measures_up_to_the_interruption():
    planned = tuple(Arrival(k, k / 4, 0, 20) for k in range(400))
    records = [request(k, k / 4, k / 4 + 0.1, k / 4 + 1.0) for k in range(200)]
    summary = summarize(
        journals(
            *records, planned=planned, warmup=10.0, duration=90.0, status=RunStatus.INTERRUPTED
        )
    )
    assert summary.period.end == 50.0
    assert summary.volume.unrecorded == 200
    assert summary.idle.count == 0  # the silence after it is no idle window
    assert summary.occupancy.mean == pytest.approx(4.0, rel=0.01)
