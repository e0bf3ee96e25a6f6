"""A keep reset that preempts fails the gate: from vLLM's scheduler to the verdict that names it."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from harness.analysis.experiment.recorded import Recorded
from harness.analysis.gate.judgement import Decision, Verdict, gate
from harness.analysis.gate.readings import Candidate
from harness.gate import read_policy
from harness.records import ResetMode, ResetRecord
from harness.replica.reset import judge
from tests.analysis.simulation import journals, request

if TYPE_CHECKING:
    from collections.abc import Callable

RESETS = 10
KEPT = 'preemptions_per_reset{mode="keep"} == 0'


def gated(one: Any) -> Decision:
    """Ten keep resets of a scheduler with four running requests, as the gate sees a run of them."""
    from vllm_keep_reset.report import ResetMode as PluginMode
    from vllm_keep_reset.scheduler import report_reset

    for number in range(4):
        one.add([*range(1, 49), 100 + number], max_tokens=400)
    one.step(3)
    resets = []
    for number in range(RESETS):
        report = report_reset(one.scheduler, PluginMode.KEEP, reset_connector=False)
        at = 10.0 * (number + 1)
        body = json.dumps(report.reply()).encode()
        attempt = judge(ResetMode.KEEP, at, at, 200, body)
        record = ResetRecord(
            number, ResetMode.KEEP, at, attempt.outcome, 4, cleared_at=at, attempts=(attempt,)
        )
        resets.append(record)
        one.step(3)
    records = [request(row, 5.0 * row, 5.0 * row + 1) for row in range(30)]
    run = Recorded.of("run", journals(*records, resets=tuple(resets), duration=200.0))
    return gate(Candidate("candidate", (run,)), read_policy(None))


def verdict_of(decision: Decision) -> Verdict:
    return next(one.verdict for one in decision.assertions if one.assertion == KEPT)


def test_the_plugin_keeps_the_gate(replica: Callable[..., Any]) -> None:
    assert verdict_of(gated(replica(blocks=256))) is Verdict.PASS


def test_one_request_preempted_by_one_keep_reset_fails_it_by_name(
    replica: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.v1.core.sched.scheduler import Scheduler

    keep, calls = Scheduler.reset_prefix_cache, 0

    def preempting(self: Any, *arguments: bool, **named: bool) -> bool:
        nonlocal calls
        calls += 1
        if calls == 7:
            self._preempt_request(self.running.pop(), time.monotonic())
        return keep(self, *arguments, **named)

    monkeypatch.setattr(Scheduler, "reset_prefix_cache", preempting)
    decision = gated(replica(blocks=256))
    assert decision.verdict is Verdict.FAIL
    assert verdict_of(decision) is Verdict.FAIL
    [failed] = [one for one in decision.assertions if one.verdict is Verdict.FAIL]
    assert failed.culprits == ("run, reset 6 (keep at 70 s): 1",)
