"""A run's journals, made up: three requests around a keep reset, and one that came later."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.journals import SCHEMA_VERSION, Journals, Manifest, RequestTable, RunStatus
from harness.plan import make_plan
from harness.records import (
    AttemptOutcome,
    Outcome,
    RequestRecord,
    ResetAttempt,
    ResetMode,
    ResetRecord,
)
from harness.scenario import Scenario

MANIFEST = Manifest(
    SCHEMA_VERSION, RunStatus.COMPLETE, make_plan(Scenario()), "0", "2026-01-01T00:00:00Z",
    server={}, host={}, preparation={},
)  # fmt: skip


def request(
    number: int,
    sent: float | None,
    times: tuple[float, ...] = (),
    finished: float = 12.0,
    cached: int | None = None,
    outcome: Outcome = Outcome.OK,
) -> RequestRecord:
    return RequestRecord(
        id=number, scheduled=sent or 9.0, started=sent or 9.0, sent=sent, prefix=0,
        outcome=outcome, finished=finished, first_token=times[0] if times else None,
        token_times=times, prompt_tokens=2060, cached_tokens=cached,
    )  # fmt: skip


STREAMING = request(0, 9.0, tuple(9.5 + 0.02 * n for n in range(60)), 10.7, cached=2048)
WAITING = request(1, 9.99, (10.4, 10.42, 10.44), 10.44, cached=2048)
FAILING = request(2, 9.8, (9.9, 9.92), 10.1, outcome=Outcome.STREAM_ERROR)
LATER = request(3, 10.6, (10.9, 10.92), 10.92, cached=0)
BEFORE = request(4, 8.0, (8.2,), 8.5)
NEVER_SENT = request(5, None, outcome=Outcome.CONNECT_FAILED)

KEEP = ResetRecord(
    7, ResetMode.KEEP, 10.0, AttemptOutcome.CLEARED, in_flight=3, cleared_at=10.002,
    preemptions=0,
    attempts=(
        ResetAttempt(
            10.001, 10.004, AttemptOutcome.CLEARED, http_status=200, preemptions=0,
            reply={"success": True, "note": "</script><b>not markup</b>"},
        ),
    ),
)  # fmt: skip
FAILED = ResetRecord(
    8, ResetMode.DEFAULT, 11.0, AttemptOutcome.FAILED, in_flight=0,
    attempts=(
        ResetAttempt(11.0, 11.1, AttemptOutcome.REFUSED, 200, reply={"success": False}),
        ResetAttempt(11.2, None, AttemptOutcome.FAILED, error="connection reset"),
    ),
)  # fmt: skip
SHAM = ResetRecord(9, ResetMode.SHAM, 10.0, AttemptOutcome.MARKED, in_flight=3, cleared_at=10.0)


@pytest.fixture
def journals() -> Callable[..., Journals]:
    def make(
        requests: tuple[RequestRecord, ...] = (
            STREAMING, WAITING, FAILING, LATER, BEFORE, NEVER_SENT,
        ),
        resets: tuple[ResetRecord, ...] = (KEEP, FAILED, SHAM),
    ) -> Journals:  # fmt: skip
        return Journals(MANIFEST, RequestTable.from_records(requests), resets, (), ())

    return make
