"""``cleared`` is verified: a table of what requests after a wipe may and may not report."""

from __future__ import annotations

import msgspec
import pytest

from harness.analysis.resets import Tier, Verification, settle
from harness.records import Arrival, AttemptOutcome, Outcome, ResetMode, ServerSample
from harness.scenario import PromptForm, PromptSpec
from tests.analysis.simulation import journals, request, scenario, simulate, wipe

KEEP, PREEMPT, DEFAULT = ResetMode.KEEP, ResetMode.PREEMPT, ResetMode.DEFAULT
HIT = 1984

BEFORE_ANY = request(0, 1.0, 1.1, 2.0, cached=HIT)
"""Shows that prefixes do get cached on this server."""


def r(number, sent, first, last, cached, **rest):
    return request(number, sent, first, last, cached=cached, **rest)


def settle_one(*records, reset=None, **rest):
    reset = reset or wipe(0, 10.0, replied=10.2)
    return settle(journals(BEFORE_ANY, *records, resets=(reset,), **rest))[0]


CONFIRMED, CONTRADICTED = Verification.CONFIRMED, Verification.CONTRADICTED
NO_EVIDENCE = Verification.NO_EVIDENCE


@pytest.mark.parametrize(
    ("mode", "records", "verification"),
    [
        pytest.param(KEEP, [r(1, 11.0, 11.5, 12.0, 0)], CONFIRMED, id="a miss"),
        pytest.param(KEEP, [r(1, 11.0, 11.1, 12.0, HIT)], CONTRADICTED, id="a hit"),
        pytest.param(KEEP, [r(1, 11.0, 11.1, 12.0, 32)], CONTRADICTED, id="a hit of one block"),
        pytest.param(
            KEEP,
            [r(1, 11.0, 11.5, 12.0, 0), r(2, 11.6, 11.7, 12.0, HIT)],
            CONFIRMED,
            id="a hit on what a request after the wipe computed",
        ),
        pytest.param(
            KEEP,
            [r(1, 11.0, 11.5, 12.0, 0), r(2, 11.1, 11.6, 12.0, 960)],
            CONFIRMED,
            id="two at once: the second hits what the first has computed so far",
        ),
        pytest.param(
            KEEP,
            [r(2, 11.0, 11.6, 12.0, HIT), r(1, 11.1, 11.5, 12.0, 0)],
            CONFIRMED,
            id="two at once: the one sent later may be admitted first",
        ),
        pytest.param(
            KEEP,
            [r(1, 11.0, 11.1, 12.0, HIT), r(2, 11.05, 11.1, 12.0, HIT)],
            CONTRADICTED,
            id="two at once and neither computes",
        ),
        pytest.param(
            KEEP,
            [r(1, 11.0, 11.1, 12.0, HIT), r(2, 13.0, 13.5, 14.0, 0)],
            CONTRADICTED,
            id="a miss that comes too late to explain the hit",
        ),
        pytest.param(
            KEEP,
            [r(1, 11.0, 11.5, 12.0, 0, prefix=1), r(2, 13.0, 13.1, 14.0, HIT, prefix=2)],
            CONTRADICTED,
            id="different prefixes share nothing",
        ),
        pytest.param(
            KEEP,
            [r(1, 9.0, 10.6, 12.0, 0), r(2, 11.0, 11.1, 12.0, HIT)],
            NO_EVIDENCE,
            id="sent before the wipe, perhaps admitted and computed after it",
        ),
        pytest.param(
            KEEP,
            [r(1, 10.1, 10.6, 12.0, 0), r(2, 11.0, 11.1, 12.0, HIT)],
            NO_EVIDENCE,
            id="sent while the reset was under way",
        ),
        pytest.param(
            KEEP,
            [r(1, 9.0, 10.3, 12.0, HIT)],
            NO_EVIDENCE,
            id="sent before the wipe: its hit may lie before it",
        ),
        pytest.param(
            KEEP,
            [r(1, 9.0, 9.5, 20.0, 0), r(2, 11.0, 11.1, 12.0, HIT)],
            CONTRADICTED,
            id="a running request holds its prefix and does not cache it again",
        ),
        pytest.param(
            PREEMPT,
            [r(1, 9.0, 9.5, 20.0, 0), r(2, 11.0, 11.1, 12.0, HIT)],
            NO_EVIDENCE,
            id="a preempted request computes its prefix again",
        ),
        pytest.param(
            PREEMPT,
            [r(1, 9.0, 9.5, 9.9, 0), r(2, 11.0, 11.1, 12.0, HIT)],
            CONTRADICTED,
            id="one that had ended was not preempted",
        ),
        pytest.param(
            KEEP,
            [
                request(1, 10.5, finished=10.9, outcome=Outcome.STREAM_ERROR),
                r(2, 11.0, 11.1, 12.0, HIT),
            ],
            NO_EVIDENCE,
            id="a failed request may have computed",
        ),
        pytest.param(
            KEEP,
            [
                r(1, 10.5, 10.9, 11.0, None),
                r(2, 11.0, 11.1, 12.0, HIT),
                r(3, 12.0, 12.5, 13.0, 0, prefix=1),
            ],
            CONFIRMED,
            id="one that does not tell may have computed; another prefix proves the wipe",
        ),
        pytest.param(
            KEEP,
            [r(1, 9.0, 10.6, 12.0, HIT), r(2, 11.0, 11.1, 12.0, HIT)],
            CONTRADICTED,
            id="sent before the wipe and admitted with a hit, so it computed nothing",
        ),
        pytest.param(
            KEEP,
            [
                request(1, 9.0, finished=12.0, outcome=Outcome.TIMEOUT),
                r(2, 11.0, 11.1, 12.0, HIT),
            ],
            NO_EVIDENCE,
            id="sent before the wipe and failed without a token: it may have computed",
        ),
        pytest.param(KEEP, [], NO_EVIDENCE, id="nobody came"),
    ],
)
def test_what_requests_after_a_wipe_prove(mode, records, verification):
    settled = settle_one(*records, reset=wipe(0, 10.0, replied=10.2, mode=mode))
    assert settled.verification is verification
    partial = verification is CONTRADICTED
    expected = AttemptOutcome.PARTIAL if partial else AttemptOutcome.CLEARED
    assert settled.record.outcome is expected


def external(*readings):
    return tuple(
        ServerSample(t, "0", {"external_prefix_cache_hits_total": value}) for t, value in readings
    )


@pytest.mark.parametrize(
    ("server", "tier"),
    [
        pytest.param(external((9, 0.0), (11, 0.0), (13, 0.0)), Tier.LOCAL, id="no growth"),
        pytest.param(external((9, 0.0), (11, 0.0), (13, 1984.0)), Tier.EXTERNAL, id="growth"),
        pytest.param(external((9, 0.0), (10, 500.0)), Tier.UNKNOWN, id="samples end too early"),
        pytest.param((), Tier.UNKNOWN, id="no samples"),
    ],
)
def test_a_partial_reset_names_the_tier(server, tier):
    settled = settle_one(r(1, 11.0, 11.1, 12.0, HIT), server=server)
    assert (settled.record.outcome, settled.tier) == (AttemptOutcome.PARTIAL, tier)


def test_leftovers_and_checked_prefixes_are_counted():
    hits = [r(i, 11.0, 11.1, 12.0, HIT, prefix=i) for i in (1, 2, 3)]
    assert settle_one(*hits).leftovers == 3
    misses = [r(i, 11.0 + i, 11.5 + i, 20.0, 0, prefix=i // 2) for i in (1, 2, 3, 4)]
    assert settle_one(*misses).prefixes_checked == 3


def test_a_server_that_reports_no_cached_tokens_leaves_it_unverified():
    reset = wipe(0, 10.0)
    settled = settle(journals(request(0, 11.0, 11.5), resets=(reset,)))[0]
    assert settled.verification is Verification.NOT_REPORTED
    assert settled.record.outcome is AttemptOutcome.CLEARED


def test_where_no_reply_ended_the_server_is_not_blamed_for_saying_nothing():
    hanging = request(0, 11.0, 11.5, finished=40.0, outcome=Outcome.ABANDONED)
    settled = settle(journals(hanging, resets=(wipe(0, 10.0),)))[0]
    assert settled.verification is NO_EVIDENCE


def test_misses_on_a_server_that_never_hits_prove_nothing():
    settled = settle(journals(r(0, 11.0, 11.5, 12.0, 0), resets=(wipe(0, 10.0),)))[0]
    assert settled.verification is NO_EVIDENCE


def test_a_request_admitted_after_the_next_wipe_tells_nothing_of_this_one():
    records = [r(1, 11.0, 13.5, 14.0, HIT), r(2, 15.0, 15.5, 16.0, 0)]
    resets = (wipe(0, 10.0), wipe(1, 13.0))
    settled = settle(journals(BEFORE_ANY, *records, resets=resets))
    assert [one.verification for one in settled] == [NO_EVIDENCE, CONFIRMED]


def test_a_refused_attempt_in_between_does_not_end_the_audit():
    records = [r(1, 15.0, 15.1, 16.0, HIT)]
    resets = (wipe(0, 10.0), wipe(1, 13.0, mode=DEFAULT, outcome=AttemptOutcome.REFUSED))
    settled = settle(journals(BEFORE_ANY, *records, resets=resets))
    assert settled[0].verification is CONTRADICTED


def test_memory_pressure_may_have_made_a_running_request_compute_again():
    samples = tuple(
        ServerSample(t, "0", {"num_preemptions_total": n}) for t, n in ((9, 0), (11, 0), (13, 1))
    )
    holder, hit = r(1, 9.0, 9.5, 20.0, 0), r(2, 11.0, 11.1, 12.0, HIT)
    assert settle_one(holder, hit, server=samples[:2]).verification is CONTRADICTED
    assert settle_one(holder, hit, server=samples).verification is NO_EVIDENCE


def test_what_a_killed_run_lost_may_have_computed():
    hit = r(1, 13.0, 13.1, 14.0, HIT)
    lost = Arrival(2, 12.0, 0, 20)
    planned = (Arrival(0, 1.0, 0, 20), Arrival(1, 13.0, 0, 20))
    assert settle_one(hit, planned=planned).verification is CONTRADICTED
    assert settle_one(hit, planned=(*planned, lost)).verification is NO_EVIDENCE


def test_the_words_of_a_chat_template_are_no_leftover():
    of = msgspec.structs.replace(scenario(KEEP), prompts=PromptSpec(form=PromptForm.CHAT))
    header, prefix = r(1, 11.0, 11.5, 12.0, 32), r(2, 11.0, 11.1, 12.0, HIT, prefix=3)
    assert settle_one(header, of=of).verification is CONFIRMED
    assert settle_one(prefix, of=of).verification is CONTRADICTED


@pytest.mark.parametrize(
    "outcome",
    [one for one in AttemptOutcome if one is not AttemptOutcome.CLEARED],
)
def test_what_the_server_did_not_claim_is_not_verified(outcome):
    settled = settle_one(r(1, 11.0, 11.1, 12.0, HIT), reset=wipe(0, 10.0, outcome=outcome))
    assert settled.verification is Verification.NOT_CLEARED
    assert settled.record.outcome is outcome


@pytest.mark.parametrize("mode", [KEEP, PREEMPT])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_simulated_replica_that_wipes_is_confirmed_and_one_that_does_not_is_caught(mode, seed):
    good = settle(simulate(scenario(mode, seed=seed)))
    assert {one.verification for one in good} == {CONFIRMED}
    bad = settle(simulate(scenario(mode, seed=seed), wipes_work=False))
    assert {one.record.outcome for one in bad} == {AttemptOutcome.PARTIAL}
    assert all(one.leftovers for one in bad)
