"""The policy language: what it reads, and what it says of what it cannot read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.gate.policy import Arm, Bound, Figure, Kind, Measure, Operator, Side
from harness.analysis.gate.policy_text import parse, policy
from harness.errors import UsageError
from harness.gate import read_policy

KEEP_VICTIMS = Measure(Figure.VICTIMS_EXCESS, Arm.KEEP, Bound.UPPER)


@pytest.mark.parametrize(
    ("text", "left", "sign", "right"),
    [
        ("ignored == 0", Measure(Figure.IGNORED), "==", Side(0.0)),
        ("failed_share<=1%", Measure(Figure.FAILED_SHARE), "<=", Side(0.01)),
        ('cleared{ mode = "keep" } >= 0.9', Measure(Figure.CLEARED, Arm.KEEP), ">=", Side(0.9)),
        ("discarded_tokens != -1.5e3", Measure(Figure.DISCARDED), "!=", Side(-1500.0)),
        (
            'failed_share{mode="keep"} <= failed_share{mode="control"} + 1%',
            Measure(Figure.FAILED_SHARE, Arm.KEEP),
            "<=",
            Side(0.01, 1.0, Measure(Figure.FAILED_SHARE, Arm.CONTROL)),
        ),
        (
            'upper(victims_excess{mode="keep"}) < 0.5 * victims_excess{mode="preempt"}',
            KEEP_VICTIMS,
            "<",
            Side(0.0, 0.5, Measure(Figure.VICTIMS_EXCESS, Arm.PREEMPT)),
        ),
        (
            'preempted_share{mode="preempt"} < 2 * baseline - 0.1',
            Measure(Figure.PREEMPTED_SHARE, Arm.PREEMPT),
            "<",
            Side(-0.1, 2.0, Measure(Figure.PREEMPTED_SHARE, Arm.PREEMPT), baseline=True),
        ),
        (
            "lower(refused) > upper(baseline)",
            Measure(Figure.REFUSED, None, Bound.LOWER),
            ">",
            Side(0.0, 1.0, Measure(Figure.REFUSED, None, Bound.UPPER), baseline=True),
        ),
    ],
)
def test_an_assertion_is_read(text: str, left: Measure, sign: str, right: Side) -> None:
    found = parse(text)
    assert (found.left, found.operator, found.right) == (left, Operator(sign), right)
    assert found.text == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("preemption_per_reset == 0", "nearest known one is 'preemptions_per_reset'"),
        ("zzz == 0", "unknown figure 'zzz'; the nearest"),
        ("cleared = 1", "unknown operator '='; the nearest known one is '=='"),
        ("cleared => 1", "unknown operator '=>'; the nearest known one is '>='"),
        ("cleared ≤ 1", "nearest known one is '<='"),
        ("cleared is 1", "unknown operator 'is'"),
        ("cleared 1", "an operator must follow"),
        ("cleared", "an operator must follow the figure, not 'the end'"),
        ("", "a figure is expected"),
        ("cleared ==", "a figure is expected, not 'the end'"),
        ("cleared == 2 * 3", "a figure is expected, not '3'"),
        ("cleared == baseline - x", "a number is expected, not 'x'"),
        ("cleared == 1 2", "nothing may follow"),
        ("cleared == 1 @", "nothing may follow"),
        ('cleared{mode="kep"} == 1', "nearest known one is 'keep'"),
        ('cleared{mod="keep"} == 1', "nearest known one is 'mode'"),
        ("cleared{keep} == 1", 'written {mode="keep"}'),
        ("uper(refused) < 1", "nearest known one is 'upper'"),
        ("upper(refused < 1", r"a '\)' is missing"),
        ("lower(failed_share) < 1", "has no interval"),
        ("ignored == upper(failed_share)", "has no interval"),
        ("victims_excess < 1", "is of one mode"),
        ('victims_excess{mode="keep"} <= baseline', "not kept in a baseline"),
        ('latency_ratio{mode="keep"} < 1', "takes no label"),
    ],
)
def test_what_is_no_assertion_is_quoted_with_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse(text, "my.toml")
    assert str(caught.value).startswith("my.toml")
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "asserts nothing"),
        ({"assert": []}, "asserts nothing"),
        ({"assert": [], "assert_if_planned": []}, "asserts nothing"),
        ({"asert": ["ignored == 0"]}, "unknown key 'asert'; the nearest known one is 'assert'"),
        ({"assert": "ignored == 0"}, "assert"),
        ({"assert": [3]}, "assert"),
        ({"assert": ["ignored == 0"], "min_resets": 0}, "min_resets is 0"),
        ({"assert": ["ignored == 0"], "min_resets": "many"}, "min_resets"),
    ],
)
def test_what_is_no_policy_says_why(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        policy(settings, "my.toml")


@given(st.text(max_size=40))
def test_any_text_is_an_assertion_or_a_usage_error(text: str) -> None:
    try:
        found = parse(text)
    except UsageError:
        return
    assert found.text == text


@given(
    st.sampled_from([one for one in Figure if one.kind in (Kind.COUNT, Kind.INDICATOR)]),
    st.sampled_from(list(Arm)),
    st.sampled_from(list(Operator)),
    st.floats(0, 1e9),
)
def test_what_is_written_is_what_is_read(
    figure: Figure, arm: Arm, sign: Operator, limit: float
) -> None:
    found = parse(f'{figure}{{mode="{arm}"}} {sign} {limit!r}')
    assert (found.left, found.operator) == (Measure(figure, arm), sign)
    assert found.right.offset == limit


@pytest.mark.parametrize(
    ("sign", "below", "same", "above"),
    [
        ("==", False, True, False),
        ("!=", True, False, True),
        ("<", True, False, False),
        ("<=", True, True, False),
        (">", False, False, True),
        (">=", False, True, True),
    ],
)
def test_operators_compare(sign: str, below: bool, same: bool, above: bool) -> None:
    assert [Operator(sign).holds(left, 1.0) for left in (0.5, 1.0, 2.0)] == [below, same, above]


def test_the_default_policy_asserts_of_every_mode_and_needs_no_file() -> None:
    found = read_policy(None)
    assert {arm for one in found.assertions for arm in one.arms} >= {
        Arm.KEEP, Arm.PREEMPT, Arm.DEFAULT, Arm.CONTROL,
    }  # fmt: skip
    always = [one.text for one in found.assertions if not one.if_planned]
    assert always == ["ignored == 0", "failed_share <= 1%"]
    assert found.min_resets == 8
