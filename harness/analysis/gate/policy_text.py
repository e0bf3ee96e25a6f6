"""The policy language: text -> ``Policy``.

    assertion = measure OPERATOR side
    measure   = FIGURE | FIGURE{mode="MODE"} | upper(measure) | lower(measure)
    side      = NUMBER | [NUMBER *] measure [± NUMBER] | [NUMBER *] baseline [± NUMBER]

A number may be a percentage. ``baseline`` is the left figure in the baseline, and may stand in
``upper()`` or ``lower()`` too: the ends of a 95 % interval.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import msgspec

from harness.analysis.gate.policy import (
    MIN_RESETS,
    OF_RESETS,
    Arm,
    Assertion,
    Bound,
    Figure,
    Kind,
    Measure,
    Operator,
    Policy,
    Side,
)
from harness.errors import UsageError


class _Written(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A policy as it stands in TOML."""

    always: tuple[str, ...] = msgspec.field(name="assert", default=())
    if_planned: tuple[str, ...] = msgspec.field(name="assert_if_planned", default=())
    min_resets: int = MIN_RESETS


def policy(settings: Mapping[str, Any], where: str) -> Policy:
    """The policy in ``settings``, a parsed TOML file that messages call ``where``.

    Raises:
        UsageError: a key, figure, operator or mode is unknown (the nearest known one is named), an
            assertion does not parse, or nothing is asserted.
    """
    keys = ("assert", "assert_if_planned", "min_resets")
    for key in settings:
        if key not in keys:
            raise UsageError(f"{where}: unknown key {key!r}; {_nearest(key, keys)}.")
    try:
        written = msgspec.convert(settings, _Written)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {error}. Correct that value.") from None
    if not written.always and not written.if_planned:
        raise UsageError(
            f"{where} asserts nothing, so nothing could fail. Give assert = [ ... ] at least one "
            "line."
        )
    if written.min_resets < 1:
        raise UsageError(f"{where}: min_resets is {written.min_resets}; it must be at least 1.")
    lines = [(text, False) for text in written.always] + [(t, True) for t in written.if_planned]
    assertions = tuple(
        msgspec.structs.replace(parse(text, where), if_planned=optional) for text, optional in lines
    )
    return Policy(assertions, written.min_resets)


def parse(text: str, where: str = "the policy") -> Assertion:
    """The assertion that ``text`` is.

    Raises:
        UsageError: it is none; the message quotes it and says what is wrong.
    """
    return _Reader(text, where).assertion()


_TOKEN = re.compile(
    r"""\s*(?:(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?\s*%?)
    |(?P<name>[A-Za-z_]\w*)|(?P<labels>\{[^{}]*\})|(?P<operator>[<>=!~≤≥≠]+)|(?P<mark>[()*+-])
    |(?P<odd>\S))""",
    re.VERBOSE,
)
_LABEL = re.compile(r'\s*(\w+)\s*=\s*"([^"]*)"\s*')
_BOUNDS = {bound.value: bound for bound in (Bound.LOWER, Bound.UPPER)}
_BASELINE = "baseline"
_SLIPS = {
    "=": "==",
    "=>": ">=",
    "=<": "<=",
    "≤": "<=",
    "≥": ">=",
    "≠": "!=",
    "<>": "!=",
    "is": "==",
}
"""Operators as other languages write them."""


class _Reader:
    """Reads one assertion from left to right."""

    def __init__(self, text: str, where: str) -> None:
        self._text, self._where = text, where
        found = [(match.lastgroup, match[match.lastgroup or 0]) for match in _TOKEN.finditer(text)]
        self._tokens = [*found, ("end", "")]
        self._place = 0

    def assertion(self) -> Assertion:
        left = self._measure()
        kind, sign = self._take()
        if kind not in ("operator", "name", "odd"):
            self._fail(f"an operator must follow the figure, not {sign or 'the end'!r}")
        if sign not in list(Operator):
            self._fail(f"unknown operator {sign!r}; {_nearest(_SLIPS.get(sign, sign), Operator)}")
        right = self._side(left)
        if self._peek()[0] != "end":
            self._fail(f"nothing may follow after the right side, but {self._peek()[1]!r} does")
        return Assertion(self._text, left, Operator(sign), right)

    def _side(self, left: Measure) -> Side:
        scale = 1.0
        if self._peek()[0] == "number" or self._peek()[1] == "-":
            number = self._number()
            if self._peek()[1] != "*":
                return Side(offset=number)
            self._take()
            scale = number
        bound = self._bound()
        baseline = self._peek()[1] == _BASELINE
        if baseline:
            self._take()
            measure = Measure(left.figure, left.arm, bound or Bound.VALUE)
            if left.figure.kind not in OF_RESETS | {Kind.SHARE}:
                self._fail(f"{left.figure} is not kept in a baseline; compare it with a number")
        else:
            measure = self._figure(bound or Bound.VALUE)
        self._check_bound(measure)
        if bound:
            self._close()
        offset = 0.0
        if self._peek()[1] in ("+", "-"):
            sign = -1.0 if self._take()[1] == "-" else 1.0
            offset = sign * self._number()
        return Side(offset, scale, measure, baseline)

    def _measure(self) -> Measure:
        bound = self._bound()
        measure = self._figure(bound or Bound.VALUE)
        self._check_bound(measure)
        if bound:
            self._close()
        return measure

    def _bound(self) -> Bound | None:
        """``upper(`` or ``lower(``, if one of them comes next."""
        word, after = self._peek()[1], self._tokens[min(self._place + 1, len(self._tokens) - 1)]
        if after[1] != "(":
            return None
        if word not in _BOUNDS:
            self._fail(f"unknown function {word!r}; {_nearest(word, _BOUNDS)}")
        self._place += 2
        return _BOUNDS[word]

    def _close(self) -> None:
        if self._take()[1] != ")":
            self._fail("a ')' is missing")

    def _figure(self, bound: Bound) -> Measure:
        kind, name = self._take()
        if kind != "name":
            self._fail(f"a figure is expected, not {name or 'the end'!r}")
        if name not in list(Figure):
            self._fail(f"unknown figure {name!r}; {_nearest(name, Figure)}")
        figure = Figure(name)
        arm = self._labels() if self._peek()[0] == "labels" else None
        if figure.kind is Kind.EXCESS and arm is None:
            self._fail(f'{figure} is of one mode: write {figure}{{mode="keep"}}')
        if figure.kind is Kind.RATIO and arm is not None:
            self._fail(f"{figure} is of whole runs and takes no label")
        return Measure(figure, arm, bound)

    def _labels(self) -> Arm:
        inside = self._take()[1][1:-1]
        match = _LABEL.fullmatch(inside)
        if match is None:
            self._fail(f'labels are written {{mode="keep"}}, not {{{inside}}}')
        label, value = match.groups()
        if label != "mode":
            self._fail(f"unknown label {label!r}; {_nearest(label, ['mode'])}")
        if value not in list(Arm):
            self._fail(f"unknown mode {value!r}; {_nearest(value, Arm)}")
        return Arm(value)

    def _check_bound(self, measure: Measure) -> None:
        if measure.bound is not Bound.VALUE and measure.figure.kind in (Kind.COUNT, Kind.SHARE):
            having = [one for one in Figure if one.kind not in (Kind.COUNT, Kind.SHARE)]
            self._fail(f"{measure.figure} has no interval; those have one: {', '.join(having)}")

    def _number(self) -> float:
        sign = 1.0
        if self._peek()[1] == "-":
            self._take()
            sign = -1.0
        kind, text = self._take()
        if kind != "number":
            self._fail(f"a number is expected, not {text or 'the end'!r}")
        text = text.strip()
        return sign * (float(text[:-1]) / 100 if text.endswith("%") else float(text))

    def _peek(self) -> tuple[str | None, str]:
        return self._tokens[self._place]

    def _take(self) -> tuple[str | None, str]:
        token = self._tokens[self._place]
        self._place = min(self._place + 1, len(self._tokens) - 1)
        return token

    def _fail(self, why: str) -> NoReturn:
        raise UsageError(f"{self._where}: {self._text!r}: {why}.")


def _nearest(word: str, known: Iterable[str]) -> str:
    names = [str(name) for name in known]
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.0)
    return f"the nearest known one is {near[0] if near else names[0]!r}"
