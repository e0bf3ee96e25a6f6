"""Policies: assertions over named figures of a run or experiment, as types.

``policy_text`` reads them, ``gate`` judges them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from enum import StrEnum

import msgspec

from harness.records import ResetMode

MIN_RESETS = 8
"""Fewer resets than this prove a violation but not that there is none."""


class Kind(StrEnum):
    """What a figure is made of."""

    COUNT = "count"
    """A number at each reset. It is asserted of every one; against a baseline, of the mean."""
    INDICATOR = "indicator"
    """1 or 0 at each reset; its mean is a share of resets and has an interval."""
    SHARE = "share"
    """One number over all requests."""
    EXCESS = "excess"
    """An estimate with its interval, in request-seconds, over the control at the same resets."""
    RATIO = "ratio"
    """Candidate over baseline, run by run of the same plans, with its interval."""


class Figure(StrEnum):
    """What a policy may assert."""

    PREEMPTIONS = "preemptions_per_reset"
    """Requests preempted because of the reset."""
    PREEMPTED_SHARE = "preempted_share"
    """Preempted over running requests, at the resets that met some."""
    DISCARDED = "discarded_tokens"
    """Computed tokens that the reset's preemptions threw away."""
    CLEARED = "cleared"
    """1 where the reset cleared and no later request contradicts it."""
    REFUSED = "refused"
    """1 where every attempt was refused."""
    IGNORED = "ignored"
    """1 where the server did something else than asked."""
    CLEARED_WHILE_RUNNING = "cleared_while_running"
    """1 where the reset cleared although requests were running."""
    CACHED_AFTER = "cached_tokens_after_reset"
    """Most tokens that a repeat of a cached prompt reported cached before its prefix could have
    been computed again; at the resets where a repeat came."""
    FAILED_SHARE = "failed_share"
    """Failed requests over all that ended; of a mode, of those sent after its resets."""
    VICTIMS_EXCESS = "victims_excess"
    """What the requests in flight at the mode's resets took longer than at the control's."""
    LATENCY_RATIO = "latency_ratio"
    """Mean latency of a run over the baseline's."""
    TTFT_RATIO = "ttft_ratio"
    """Mean TTFT of a run over the baseline's."""

    @property
    def kind(self) -> Kind:
        """What it is made of."""
        return _KINDS[self]


_KINDS: Mapping[Figure, Kind] = {
    Figure.PREEMPTIONS: Kind.COUNT,
    Figure.PREEMPTED_SHARE: Kind.COUNT,
    Figure.DISCARDED: Kind.COUNT,
    Figure.CACHED_AFTER: Kind.COUNT,
    Figure.CLEARED: Kind.INDICATOR,
    Figure.REFUSED: Kind.INDICATOR,
    Figure.IGNORED: Kind.INDICATOR,
    Figure.CLEARED_WHILE_RUNNING: Kind.INDICATOR,
    Figure.FAILED_SHARE: Kind.SHARE,
    Figure.VICTIMS_EXCESS: Kind.EXCESS,
    Figure.LATENCY_RATIO: Kind.RATIO,
    Figure.TTFT_RATIO: Kind.RATIO,
}
OF_RESETS = frozenset({Kind.COUNT, Kind.INDICATOR})


class Arm(StrEnum):
    """The resets, or runs, that a figure is of: a reset mode, or the control by any name."""

    NONE = ResetMode.NONE.value
    DEFAULT = ResetMode.DEFAULT.value
    PREEMPT = ResetMode.PREEMPT.value
    KEEP = ResetMode.KEEP.value
    SHAM = ResetMode.SHAM.value
    CONTROL = "control"
    """Runs without resets where the candidate has some, else its shams."""


class Bound(StrEnum):
    """Which number of a figure is meant."""

    VALUE = "value"
    """Itself: the mean, the share, the estimate."""
    LOWER = "lower"
    """The lower end of its 95 % interval."""
    UPPER = "upper"
    """The upper end of it."""


class Operator(StrEnum):
    """How two numbers are compared."""

    EQUAL = "=="
    DIFFERENT = "!="
    AT_MOST = "<="
    AT_LEAST = ">="
    BELOW = "<"
    ABOVE = ">"

    def holds(self, left: float, right: float) -> bool:
        """Whether it holds between two numbers."""
        return _COMPARE[self](left, right)


_COMPARE: Mapping[Operator, Callable[[float, float], bool]] = {
    Operator.EQUAL: operator.eq,
    Operator.DIFFERENT: operator.ne,
    Operator.AT_MOST: operator.le,
    Operator.AT_LEAST: operator.ge,
    Operator.BELOW: operator.lt,
    Operator.ABOVE: operator.gt,
}


class Measure(msgspec.Struct, frozen=True):
    """A figure, of which resets, and which number of it."""

    figure: Figure
    arm: Arm | None = None
    """None for all resets but shams, or for all requests."""
    bound: Bound = Bound.VALUE


class Side(msgspec.Struct, frozen=True):
    """The right side: ``scale`` × a measure + ``offset``, or ``offset`` alone."""

    offset: float = 0.0
    scale: float = 1.0
    measure: Measure | None = None
    baseline: bool = False
    """Whether the measure is the baseline's."""


class Assertion(msgspec.Struct, frozen=True):
    """One line of a policy."""

    text: str
    left: Measure
    operator: Operator
    right: Side
    if_planned: bool = False
    """Left out, and shown so, where the candidate plans no reset of a mode that it names or where
    it needs a baseline and none is given; otherwise either is *cannot tell*."""

    @property
    def arms(self) -> tuple[Arm, ...]:
        """Arms that it needs: those it names, and for an excess the control."""
        other = None if self.right.baseline else self.right.measure
        measures = [measure for measure in (self.left, other) if measure is not None]
        named = [measure.arm for measure in measures if measure.arm is not None]
        if any(measure.figure.kind is Kind.EXCESS for measure in measures):
            named.append(Arm.CONTROL)
        return tuple(named)

    @property
    def needs_baseline(self) -> bool:
        """Whether it says nothing without a baseline."""
        return self.right.baseline or self.left.figure.kind is Kind.RATIO


class Policy(msgspec.Struct, frozen=True):
    """What must hold."""

    assertions: tuple[Assertion, ...]
    min_resets: int = MIN_RESETS
