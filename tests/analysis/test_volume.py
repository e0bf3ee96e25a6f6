from __future__ import annotations

import math

import msgspec
import pytest

from harness.analysis import volume
from harness.analysis.period import Period, measured
from harness.journals import RunStatus
from harness.records import Arrival, Outcome
from harness.scenario import PromptForm, PromptSpec, Scenario
from tests.analysis.simulation import journals, request

ALWAYS = Period(0.0, 100.0)


def test_tokens_are_the_servers_count_and_not_the_chunks():
    one = msgspec.structs.replace(request(0, 0.0, 1.0, 2.0, 3.0), completion_tokens=12)
    found = volume.measure(journals(one), ALWAYS)
    assert found.tokens == 12
    assert found.tokens_per_second == pytest.approx(0.12)
    assert found.without_usage == 0


def test_without_usage_each_chunk_counts_and_is_said_to():
    one = msgspec.structs.replace(request(0, 0.0, 1.0, 2.0, 3.0), completion_tokens=None)
    found = volume.measure(journals(one), ALWAYS)
    assert (found.tokens, found.without_usage) == (3, 1)


def test_tokens_count_where_they_arrived():
    one = msgspec.structs.replace(request(0, 8.0, 9.0, 10.0, 11.0, 12.0), completion_tokens=8)
    found = volume.measure(journals(one), Period(10.0, 12.0))
    assert found.tokens == pytest.approx(4)


def test_requests_across_the_warm_up_count_by_event():
    found = volume.measure(
        journals(
            request(0, 8.0, 9.0, 11.0),  # sent before, ended inside
            request(1, 18.0, 19.0, 21.0, outcome=Outcome.TRUNCATED),  # sent inside, ended after
            request(2, 12.0, finished=13.0, outcome=Outcome.TIMEOUT),
            request(3, 1.0, finished=2.0, outcome=Outcome.HTTP_ERROR),
        ),
        Period(10.0, 20.0),
    )
    assert (found.sent, found.ended) == (2, 2)
    assert found.failures == {Outcome.TIMEOUT: 1}
    assert found.failed_share == 0.5


def test_an_empty_period_claims_no_rate():
    found = volume.measure(journals(), Period(10.0, 10.0))
    assert (found.rate, found.tokens_per_second, found.failed_share) == (None, None, None)


def test_sizes_of_text_prompts_are_those_the_server_counted():
    asked = [msgspec.structs.replace(request(n, 5.0, 6.0), prompt_tokens=100 * n) for n in (1, 2)]
    assert volume.measure(journals(*asked), ALWAYS).prompt_tokens is None
    of = Scenario(prompts=PromptSpec(form=PromptForm.TEXT))
    assert volume.measure(journals(*asked, of=of), ALWAYS).prompt_tokens == 150
    untold = [msgspec.structs.replace(one, prompt_tokens=None) for one in asked]
    assert volume.measure(journals(*untold, of=of), ALWAYS).prompt_tokens is None


def test_later_turns_do_not_hide_an_arrival_that_was_lost():
    turn = msgspec.structs.replace(request(7, 50.0, 51.0), closed_loop=True)
    planned = (Arrival(0, 5.0, 0, 1), Arrival(1, 60.0, 0, 1))
    run = journals(request(0, 5.0, 6.0), turn, planned=planned)
    assert volume.measure(run, ALWAYS).unrecorded == 1
    assert measured(run).end == 60.0


def test_the_measured_period_ends_where_the_journal_has_a_gap():
    planned = tuple(Arrival(k, 10.0 * k, 0, 20) for k in range(8))
    records = [request(k, 10.0 * k, 10.0 * k + 1) for k in (0, 1, 2, 3, 5)]
    run = journals(*records, planned=planned, warmup=10.0, duration=80.0, status=RunStatus.RUNNING)
    assert measured(run) == Period(10.0, 40.0)
    assert volume.measure(run, measured(run)).unrecorded == 3


def test_a_run_killed_in_its_warm_up_measured_nothing():
    planned = tuple(Arrival(k, 10.0 * k, 0, 20) for k in range(8))
    run = journals(request(0, 0.0, 1.0), planned=planned, warmup=60.0, duration=80.0)
    assert measured(run).length == 0
    assert not measured(run).holds(run.requests.frame["finished"].to_numpy()).any()


def test_the_period_is_half_open_and_never_holds_nan():
    table = journals(request(0, 0.0, 1.0)).requests.frame
    period = Period(1.0, 2.0)
    assert period.holds(table["finished"].to_numpy()).tolist() == [True]
    assert period.holds(table["finished"].to_numpy() + 1).tolist() == [False]
    assert period.holds(table["http_status"].to_numpy() * math.nan).tolist() == [False]
