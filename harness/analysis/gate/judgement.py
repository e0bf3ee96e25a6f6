"""The gate: policy + candidate (+ baseline) -> verdicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import StrEnum

import msgspec

from harness.analysis.gate import baseline as baselines
from harness.analysis.gate.baseline import Baseline
from harness.analysis.gate.policy import (
    OF_RESETS,
    Arm,
    Assertion,
    Bound,
    Kind,
    Measure,
    Operator,
    Policy,
)
from harness.analysis.gate.readings import Candidate, Observation, Reading, readings, share_interval


class Verdict(StrEnum):
    """What an assertion, or the whole, came to."""

    PASS = "pass"
    FAIL = "fail"
    CANNOT_TELL = "cannot tell"
    NOT_JUDGED = "not judged"
    """Left out or only shown; of an assertion, never of the whole."""


class Judged(msgspec.Struct, frozen=True):
    """One assertion and what came of it."""

    assertion: str
    verdict: Verdict
    value: float | None = None
    """The left side, or the mean of it over resets; None where it was not told."""
    least: float | None = None
    """Over resets, or the lower end of the 95 % interval."""
    most: float | None = None
    limit: float | None = None
    """The right side."""
    resets: int | None = None
    """How many resets showed it; None for a figure of requests."""
    reason: str | None = None
    """Why it is not a pass."""
    culprits: tuple[str, ...] = ()
    """The resets that break it, each with its value."""


class Decision(msgspec.Struct, frozen=True):
    """The verdict on a candidate, with what it rests on."""

    candidate: str
    baseline: str | None
    verdict: Verdict
    assertions: tuple[Judged, ...]
    reasons: tuple[str, ...]
    """Why the whole cannot be told whatever the assertions say."""

    def count(self, verdict: Verdict) -> int:
        """How many assertions came to ``verdict``."""
        return sum(one.verdict is verdict for one in self.assertions)


def gate(candidate: Candidate, policy: Policy, baseline: Baseline | None = None) -> Decision:
    """Judge ``candidate`` by every assertion of ``policy``.

    A violation that was seen is a fail, however little else was seen. Short of that, whatever
    could not be told, and a candidate that is not whole, make the whole *cannot tell*.
    """
    court = _Court(candidate, policy, baseline)
    judged = tuple(court.judge(assertion) for assertion in policy.assertions)
    reasons = tuple(candidate.flaws())
    verdicts = {one.verdict for one in judged}
    if Verdict.FAIL in verdicts:
        verdict = Verdict.FAIL
    elif Verdict.CANNOT_TELL in verdicts or reasons:
        verdict = Verdict.CANNOT_TELL
    elif Verdict.PASS not in verdicts:
        verdict = Verdict.CANNOT_TELL
        reasons = ("no assertion of the policy could be judged of this candidate",)
    else:
        verdict = Verdict.PASS
    name = None if baseline is None else baseline.made_from.name
    return Decision(candidate.name, name, verdict, judged, reasons)


class _Court:
    """Judges the assertions of one policy of one candidate."""

    def __init__(self, candidate: Candidate, policy: Policy, baseline: Baseline | None) -> None:
        self._candidate, self._policy, self._baseline = candidate, policy, baseline
        self._read = readings(candidate)
        self._own = None if baseline is None else baselines.of(candidate)

    def judge(self, assertion: Assertion) -> Judged:
        """What comes of one assertion."""
        lacking = self._lacking(assertion)
        if lacking is not None:
            left_out = assertion.if_planned
            verdict = Verdict.NOT_JUDGED if left_out else Verdict.CANNOT_TELL
            return Judged(assertion.text, verdict, reason=lacking)
        if assertion.left.figure.kind is Kind.RATIO:
            return self._ratio(assertion)
        limit = self._limit(assertion)
        left = self._read(assertion.left.figure, assertion.left.arm)
        for side in (limit, left):
            if side.reason is not None:
                return _cannot_tell(assertion, left, limit, side.reason)
        if assertion.left.figure.kind in OF_RESETS:
            if assertion.right.baseline or assertion.left.bound is not Bound.VALUE:
                return self._mean(assertion, left, limit)
            return self._each(assertion, left, limit)
        return _single(assertion, left, limit)

    def _lacking(self, assertion: Assertion) -> str | None:
        """What the candidate or the call does not have that the assertion speaks of."""
        for arm in assertion.arms:
            if arm not in self._candidate.planned:
                if arm is Arm.CONTROL:
                    return "the candidate has no control: no sham resets, no runs without resets"
                return f"the candidate plans no {arm} reset"
        if assertion.needs_baseline and self._baseline is None:
            return "no baseline was given"
        return None

    def _limit(self, assertion: Assertion) -> Reading:
        """The right side; its ends are those of its interval."""
        side = assertion.right
        if side.measure is None:
            return _known(side.offset)
        found = self._kept(side.measure) if side.baseline else self._measured(side.measure)
        value, low, high = (
            None if end is None else side.scale * end + side.offset
            for end in (found.value, found.low, found.high)
        )
        return Reading(value, low, high, reason=found.reason)

    def _measured(self, measure: Measure) -> Reading:
        found = self._read(measure.figure, measure.arm)
        if found.reason is not None or measure.bound is Bound.VALUE:
            return found
        return _known(_bound(found, measure.bound))

    def _kept(self, measure: Measure) -> Reading:
        """The baseline's figure, if its counts are of the same plan."""
        assert self._baseline is not None
        assert self._own is not None
        why = baselines.another_plan(self._own, self._baseline)
        if why is not None:
            return Reading(reason=why)
        arm = measure.arm
        if arm is Arm.CONTROL and self._candidate.control is not None:
            arm = Arm(self._candidate.control.value)
        kept = self._baseline.figure(measure.figure, arm)
        if kept is None:
            return Reading(reason=f"the baseline does not hold {measure.figure} of {arm or 'all'}")
        if kept.resets and kept.resets < self._policy.min_resets:
            return Reading(
                kept.value, reason=f"the baseline has {kept.resets} resets{self._needed()}"
            )
        if measure.bound is Bound.VALUE:
            return _known(kept.value)
        ends = share_interval(round(kept.value * kept.resets), kept.resets)
        return _known(ends[0] if measure.bound is Bound.LOWER else ends[1])

    def _each(self, assertion: Assertion, left: Reading, limit: Reading) -> Judged:
        """A figure of resets: it must hold at every one."""
        assert limit.value is not None
        holds = _holds(assertion.operator, limit.value)
        answers = [(seen, holds(seen)) for seen in left.observations]
        broken = [seen for seen, answer in answers if answer is False]
        unsure = [seen for seen, answer in answers if answer is None]
        if broken:
            reason = f"broken at {len(broken)} of {len(answers)} resets"
            return _judged(assertion, Verdict.FAIL, left, limit, reason, broken)
        if unsure:
            reason = f"the server does not tell enough at {len(unsure)} of {len(answers)} resets"
            return _judged(assertion, Verdict.CANNOT_TELL, left, limit, reason, unsure)
        return self._enough(assertion, left, limit)

    def _mean(self, assertion: Assertion, left: Reading, limit: Reading) -> Judged:
        """A figure of resets against a baseline's: their means, or the ends of the intervals."""
        assert limit.value is not None
        if left.value is None:
            return _cannot_tell(assertion, left, limit, "its mean is not told exactly")
        number = _bound(left, assertion.left.bound)
        if assertion.operator.holds(number, limit.value):
            return self._enough(assertion, left, limit)
        worst = [o for o in left.observations if not assertion.operator.holds(o.low, limit.value)]
        reason = f"{number:.3g} on average over {len(left.observations)} resets"
        return _judged(assertion, Verdict.FAIL, left, limit, reason, worst)

    def _enough(self, assertion: Assertion, left: Reading, limit: Reading) -> Judged:
        """A pass, if as many resets as the policy asks for carry it."""
        count = len(left.observations)
        if count >= self._policy.min_resets:
            return _judged(assertion, Verdict.PASS, left, limit)
        unseen = f" ({left.left_out} could not show it)" if left.left_out else ""
        return _cannot_tell(assertion, left, limit, f"{count} resets{unseen}{self._needed()}")

    def _needed(self) -> str:
        return f"; at least {self._policy.min_resets} are needed"

    def _ratio(self, assertion: Assertion) -> Judged:
        """Times over the baseline's: judged between paired arms, else only shown."""
        assert self._baseline is not None
        assert self._own is not None
        found = baselines.ratio(self._own, self._baseline, assertion.left.figure)
        limit = self._limit(assertion)
        why = baselines.not_paired(self._own, self._baseline) or found.reason
        if why is not None:
            return _judged(assertion, Verdict.NOT_JUDGED, found, limit, why)
        if limit.reason is not None:
            return _cannot_tell(assertion, found, limit, limit.reason)
        return _single(assertion, found, limit)


def _single(assertion: Assertion, left: Reading, limit: Reading) -> Judged:
    """One number against another.

    ``upper(x) < y`` asks for proof that x is below: where the interval of x holds y it is neither
    proved nor disproved, and so cannot be told. ``lower(x) <= y`` asks only that x is not proved
    to be above.
    """
    assert left.value is not None
    assert limit.value is not None
    bound = assertion.left.bound
    if assertion.operator.holds(_bound(left, bound), limit.value):
        return _judged(assertion, Verdict.PASS, left, limit)
    below = assertion.operator in (Operator.BELOW, Operator.AT_MOST)
    above = assertion.operator in (Operator.ABOVE, Operator.AT_LEAST)
    if (bound, below) == (Bound.UPPER, True) or (bound, above) == (Bound.LOWER, True):
        best = _bound(left, Bound.LOWER if below else Bound.UPPER)
        ends = (limit.value, limit.low, limit.high)
        if any(assertion.operator.holds(best, end) for end in ends if end is not None):
            reason = "neither proved nor disproved: the interval holds the limit; use more resets"
            return _cannot_tell(assertion, left, limit, reason)
    return _judged(assertion, Verdict.FAIL, left, limit, f"{_bound(left, bound):.3g}")


def _holds(sign: Operator, limit: float) -> Callable[[Observation], bool | None]:
    """Whether a comparison holds for all a reset may have had, for none of it, or for some."""

    def at(seen: Observation) -> bool | None:
        if seen.low == seen.high:
            return sign.holds(seen.low, limit)
        ends = {sign.holds(seen.low, limit), sign.holds(seen.high, limit)}
        if sign in (Operator.EQUAL, Operator.DIFFERENT) and seen.low <= limit <= seen.high:
            return None
        return ends.pop() if len(ends) == 1 else None

    return at


def _bound(found: Reading, bound: Bound) -> float:
    number = {Bound.VALUE: found.value, Bound.LOWER: found.low, Bound.UPPER: found.high}[bound]
    return math.nan if number is None else number


def _known(value: float) -> Reading:
    return Reading(value, value, value)


def _cannot_tell(assertion: Assertion, left: Reading, limit: Reading, reason: str) -> Judged:
    return _judged(assertion, Verdict.CANNOT_TELL, left, limit, reason)


def _judged(
    assertion: Assertion,
    verdict: Verdict,
    left: Reading,
    limit: Reading,
    reason: str | None = None,
    culprits: Sequence[Observation] = (),
) -> Judged:
    seen = left.observations
    resets = assertion.left.figure.kind in OF_RESETS
    return Judged(
        assertion.text,
        verdict,
        value=left.value,
        least=min(o.low for o in seen) if seen else left.low,
        most=max(o.high for o in seen) if seen else left.high,
        limit=_bound(limit, Bound.VALUE) if limit.value is not None else None,
        resets=len(seen) if resets else None,
        reason=reason,
        culprits=tuple(f"{o.where}: {_range(o)}" for o in culprits),
    )


def _range(seen: Observation) -> str:
    if seen.low == seen.high:
        return f"{seen.low:g}"
    return f"{seen.low:g} or more" if math.isinf(seen.high) else f"{seen.low:g} to {seen.high:g}"
