"""Each doubt is raised when it should be, and only then."""

from __future__ import annotations

import msgspec
import pytest

from harness.analysis.doubt import DoubtCode, Severity
from harness.analysis.summary import summarize
from harness.journals import RequestTable, RunStatus
from harness.records import AttemptOutcome, ClientSample, Outcome, ResetMode
from harness.scenario import LoadSpec
from tests.analysis.simulation import journals, request, scenario, simulate

QUIET = scenario(ResetMode.KEEP, warmup=60.0, duration=1200.0, every=130.0)


@pytest.fixture(scope="module")
def quiet():
    return simulate(QUIET)


def replaced(run, **fields):
    """``run`` with each request's record changed by ``fields``' functions of its row."""
    frame = run.requests.frame.copy()
    for name, change in fields.items():
        frame[name] = change(frame)
    table = RequestTable(frame, run.requests.token_times, run.requests.token_offsets)
    return with_(run, requests=table)


def with_(run, **parts):
    names = ("manifest", "requests", "resets", "server", "client", "torn")
    return type(run)(**{name: parts.get(name, getattr(run, name)) for name in names})


def with_scenario(run, **load):
    plan = run.manifest.plan
    changed = msgspec.structs.replace(
        plan.scenario, load=msgspec.structs.replace(plan.scenario.load, **load)
    )
    manifest = msgspec.structs.replace(
        run.manifest, plan=msgspec.structs.replace(plan, scenario=changed)
    )
    return with_(run, manifest=manifest)


def with_status(run, status, reason=None):
    manifest = msgspec.structs.replace(run.manifest, status=status, reason=reason)
    return with_(run, manifest=manifest)


def with_outcome(run, outcome):
    resets = tuple(
        msgspec.structs.replace(one, outcome=outcome, cleared_at=None) for one in run.resets
    )
    return with_(run, resets=resets)


def codes(run):
    return {doubt.code for doubt in summarize(run).doubts}


def test_a_quiet_run_by_the_rules_raises_none(quiet):
    assert summarize(quiet).doubts == ()


CODE = DoubtCode
SPOILED = {
    CODE.TICKER_LATE: lambda run: with_(
        run, client=tuple(ClientSample(float(t), 0.3 * t, (0.011,) * 50) for t in range(1200))
    ),
    CODE.CLIENT_SATURATED: lambda run: with_(
        run, client=tuple(ClientSample(float(t), 0.9 * t, (0.001,) * 50) for t in range(1200))
    ),
    CODE.CLIENT_UNWATCHED: lambda run: with_(run, client=()),
    CODE.LAG: lambda run: replaced(run, sent=lambda f: f["scheduled"] + 0.006 * (f["id"] % 10 < 1)),
    CODE.CAP_BIT: lambda run: with_scenario(run, max_in_flight=5),
    CODE.RUN_KILLED: lambda run: with_status(run, RunStatus.RUNNING),
    CODE.RUN_INTERRUPTED: lambda run: with_status(run, RunStatus.INTERRUPTED),
    CODE.RUN_FAILED: lambda run: with_status(run, RunStatus.FAILED, "the replica died"),
    CODE.JOURNAL_TORN: lambda run: with_(run, torn=("requests.jsonl",)),
    CODE.REQUESTS_FAILED: lambda run: replaced(
        run, outcome=lambda f: f["outcome"].where(f["id"] % 50 != 0, Outcome.TIMEOUT.value)
    ),
    CODE.SERVER_UNSAMPLED: lambda run: with_(run, server=()),
    CODE.WARMUP_SHORT: lambda run: with_scenario(run, warmup=59.0, duration=1201.0),
    CODE.RESETS_REFUSED: lambda run: with_outcome(run, AttemptOutcome.REFUSED),
    CODE.RESETS_IGNORED: lambda run: with_outcome(run, AttemptOutcome.IGNORED),
    CODE.RESETS_REJECTED: lambda run: with_outcome(run, AttemptOutcome.REJECTED),
    CODE.RESETS_FAILED: lambda run: with_outcome(run, AttemptOutcome.FAILED),
    CODE.RESETS_UNVERIFIED: lambda run: replaced(run, cached_tokens=lambda f: float("nan")),
    CODE.TOKENS_UNTOLD: lambda run: replaced(run, completion_tokens=lambda f: float("nan")),
    CODE.FEW_RESETS: lambda run: with_(run, resets=run.resets[:5]),
    CODE.NOTHING_MEASURED: lambda run: with_(run, requests=RequestTable.from_records([])),
    CODE.WARMUP_UNSETTLED: lambda run: replaced(
        run, finished=lambda f: f["finished"].where(f["scheduled"] > 60, f["sent"] + 0.02)
    ),
    CODE.RESETS_PARTIAL: lambda run: simulate(QUIET, wipes_work=False),
    CODE.SPACING_SHORT: lambda run: simulate(
        scenario(ResetMode.KEEP, warmup=60.0, duration=1200.0, every=100.0)
    ),
    CODE.OVERLOADED: lambda run: simulate(
        scenario(ResetMode.KEEP, rate=14.0, warmup=60.0, duration=240.0, every=60.0)
    ),
    CODE.BACKLOG: lambda run: simulate(
        scenario(ResetMode.NONE, rate=14.0, warmup=5.0, duration=240.0)
    ),
}


@pytest.mark.parametrize("code", DoubtCode)
def test_each_doubt_is_raised_by_what_deserves_it(quiet, code):
    doubts = {doubt.code: doubt for doubt in summarize(SPOILED[code](quiet)).doubts}
    assert code in doubts
    assert doubts[code].remedy
    assert doubts[code].text.endswith(".")


def test_a_late_ticker_voids_the_times(quiet):
    first = summarize(SPOILED[CODE.TICKER_LATE](quiet)).doubts[0]
    assert (first.code, first.severity) == (CODE.TICKER_LATE, Severity.VOID)
    assert (first.value, first.limit) == (pytest.approx(0.011), 0.010)


def test_a_few_stalls_of_the_ticker_do_not(quiet):
    rare = tuple(
        ClientSample(float(t), 0.3 * t, (*(0.001,) * 49, 0.05 if t % 3 == 0 else 0.001))
        for t in range(1200)
    )
    assert CODE.TICKER_LATE not in codes(with_(quiet, client=rare))


def test_waiting_at_a_cap_is_not_blamed_on_the_machine(quiet):
    run = with_scenario(SPOILED[CODE.LAG](quiet), max_in_flight=5)
    assert CODE.CAP_BIT in codes(run)
    assert CODE.LAG not in codes(run)


def test_a_cap_that_did_not_bite_is_fine(quiet):
    assert CODE.CAP_BIT not in codes(with_scenario(quiet, max_in_flight=500))


def test_lag_spent_in_connecting_has_its_own_remedy(quiet):
    late = {"sent": lambda f: f["scheduled"] + 0.05}
    connecting = summarize(replaced(quiet, **late)).doubts
    starved = summarize(replaced(quiet, **late, started=lambda f: f["scheduled"] + 0.049)).doubts
    (one,), (other,) = (
        [doubt for doubt in doubts if doubt.code is CODE.LAG] for doubts in (connecting, starved)
    )
    assert "connecting" in one.text
    assert one.remedy != other.remedy


def test_a_killed_run_says_what_is_missing(quiet):
    frame = quiet.requests.frame.iloc[:400]
    offsets = quiet.requests.token_offsets[:401]
    cut = RequestTable(frame, quiet.requests.token_times[: offsets[-1]], offsets)
    run = with_status(with_(quiet, requests=cut, resets=quiet.resets[:1]), RunStatus.RUNNING)
    (doubt,) = [one for one in summarize(run).doubts if one.code is CODE.RUN_KILLED]
    planned = len(quiet.manifest.plan.arrivals)
    assert f"{planned - 400:,} of {planned:,} planned requests" in doubt.text
    assert "7 of 8 planned resets" in doubt.text


def test_a_control_is_not_told_that_it_has_few_resets():
    run = simulate(scenario(ResetMode.NONE, warmup=60.0, duration=600.0))
    assert codes(run) == set()


def test_marks_are_no_resets_and_may_lie_close():
    run = simulate(scenario(ResetMode.SHAM, warmup=60.0, duration=600.0, every=40.0))
    assert codes(run) == set()


def test_near_capacity_the_rules_ask_for_more_than_their_floors():
    run = simulate(scenario(ResetMode.NONE, rate=11.0, warmup=60.0, duration=900.0))
    (doubt,) = [one for one in summarize(run).doubts if one.code is CODE.WARMUP_SHORT]
    assert doubt.limit > 80


def test_every_reset_failed_is_a_result():
    found = summarize(
        journals(
            request(0, 1.0, finished=2.0, outcome=Outcome.HTTP_ERROR),
            of=msgspec.structs.replace(QUIET, load=LoadSpec()),
        )
    )
    assert {one.code for one in found.doubts} >= {CODE.REQUESTS_FAILED}
