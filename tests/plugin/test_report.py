"""What a reset says that it did."""

from __future__ import annotations

import pytest
from vllm_keep_reset.report import Counts, KeepRefused, ResetMode, ResetReport, combine


def report(**more):
    values = {
        "success": True,
        "mode": ResetMode.KEEP,
        "before": Counts(running=2, waiting=1, cached_blocks=7, held_blocks=5),
        "preempted": 0,
        "discarded_tokens": 0,
        "stall_seconds": 0.25,
    }
    return ResetReport(**{**values, **more})


@pytest.mark.parametrize(
    ("preempt", "keep", "mode"),
    [(False, False, "default"), (True, False, "preempt"), (False, True, "keep")],
)
def test_two_flags_name_a_mode(preempt, keep, mode):
    assert ResetMode.of(preempt, keep).value == mode


def test_both_flags_are_an_error():
    with pytest.raises(ValueError, match="exclude each other"):
        ResetMode.of(reset_running_requests=True, keep_running_requests=True)


def test_the_reply_is_the_contract():
    assert list(report().reply().items()) == [
        ("success", True),
        ("mode", "keep"),
        ("running", 2),
        ("waiting", 1),
        ("preempted", 0),
        ("discarded_tokens", 0),
        ("cached_blocks", 7),
        ("held_blocks", 5),
        ("stall_seconds", 0.25),
        ("engines", 1),
    ]


def test_the_reply_of_a_failure_adds_the_error():
    reply = report(success=False, mode=ResetMode.PREEMPT, preempted=2, error="held").reply()
    assert (reply["success"], reply["preempted"], reply["error"]) == (False, 2, "held")


def test_a_scheduler_that_cannot_be_looked_into_gets_vllms_own_reply():
    assert report(before=None).reply() == {"success": True}


def test_a_report_crosses_the_wire():
    for original in (report(), report(before=None, refused="no", error="held")):
        assert ResetReport.from_wire(original.to_wire()) == original


def test_data_parallel_reports_add_up():
    both = combine([report(), report(stall_seconds=0.5, preempted=3, discarded_tokens=40)])
    assert both == report(
        before=Counts(running=4, waiting=2, cached_blocks=14, held_blocks=10),
        preempted=3,
        discarded_tokens=40,
        stall_seconds=0.5,
        engines=2,
    )


def test_one_engine_that_failed_is_a_failure_of_all():
    # vLLM takes all(...) over the replies, and any non-empty dict is true.
    assert combine([report(), report(success=False)]).success is False


def test_a_reason_is_given_once_however_many_engines_give_it():
    refused = combine([report(refused="a connector"), report(refused="a connector")])
    assert refused.refused == "a connector"
    with pytest.raises(KeepRefused, match=r"^a connector$"):
        refused.raise_if_refused()


def test_one_engine_without_counts_leaves_the_sum_without_them():
    assert combine([report(), report(before=None)]).before is None


@pytest.mark.parametrize("reports", [[], [report(), report(mode=ResetMode.PREEMPT)]])
def test_what_does_not_add_up_is_an_error(reports):
    with pytest.raises(ValueError, match="do not add up"):
        combine(reports)
