"""What was asked, and the answer in a sentence or two a rate.

A mode's cost is never told without its split into victims and later arrivals, TTFT ranks nothing,
and what an interval does not exclude is said to be untold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from harness.analysis.experiment.at_idle import AtIdle
from harness.analysis.experiment.capacity import Bracket, Capacity
from harness.analysis.experiment.contrast import SHORT_HORIZON, Contrast, Price, Recovery
from harness.analysis.experiment.stats import Comparison
from harness.design import Design
from harness.records import ResetMode

if TYPE_CHECKING:
    from harness.analysis.experiment.rate import RateFindings

CANNOT_TELL = "cannot tell"


def question(design: Design, rates: Sequence[RateFindings]) -> str:
    """The question that the experiment was run for."""
    loads = _list([f"{one.rate:g}" for one in rates])
    at = f" at {loads} req/s" if loads else ""
    match design:
        case Design.CAPACITY:
            return "Which rate does the replica sustain with a warm cache, and with a cold one?"
        case Design.AT_IDLE:
            return f"What does a default reset cost at the idle instants at which it clears{at}?"
        case _:
            planned = {run for one in rates for line in one.runs for run in line.modes}
            wipes = planned - {ResetMode.NONE, ResetMode.SHAM}
            names = _list([mode.value for mode in ResetMode if mode in wipes])
            by = f" by {names}" if names else ""
            return f"What does losing the prefix cache{by} cost{at}, and does latency come back?"


def sentence(
    design: Design,
    rates: Sequence[RateFindings],
    capacity: Capacity | None,
    voided: Sequence[str],
) -> str:
    """The answer, in a sentence a rate; what voids it comes first."""
    parts = [f"Void: {reason}" for reason in voided]
    if not rates:
        parts.append("Cannot tell: no run was recorded.")
    elif capacity is not None:
        parts += [_capacity(bracket) for bracket in capacity.brackets]
    elif design is Design.AT_IDLE:
        parts += [_at_idle(one) for one in rates]
    elif len(rates) > 1:
        parts += [*_over_rates(rates)]
    else:
        parts.append(_rate(rates[0]))
    return " ".join(parts)


def details(prices: Sequence[Price], contrasts: Sequence[Contrast]) -> tuple[str, ...]:
    """Every price and contrast of one rate with its interval, a sentence each."""
    told = [*(_price(price) for price in prices), *(_contrast(one) for one in contrasts)]
    return tuple(f"{one[0].upper()}{one[1:]}." for one in told)


def _over_rates(rates: Sequence[RateFindings]) -> Iterable[str]:
    """A sentence a mode and a contrast, with a value a rate."""
    for mode in ResetMode:
        priced = [(one.rate, price) for one in rates for price in one.prices if price.mode is mode]
        sure = [(rate, price) for rate, price in priced if price.total.excludes_zero]
        if sure:
            yield (
                f"A {mode} wipe costs {_list([_told(p.total.estimate) for _, p in sure])} "
                f"request-seconds at {_list([f'{rate:g}' for rate, _ in sure])} req/s (victims "
                f"{_list([_told(p.victims.estimate) for _, p in sure])}, later arrivals "
                f"{_list([_told(p.later.estimate) for _, p in sure])})"
                f"{_recoveries(sure)}."
            )
        unsure = [f"{rate:g}" for rate, price in priced if not price.total.excludes_zero]
        if unsure:
            yield f"What it costs by {mode} at {_list(unsure)} req/s cannot be told."
    dearer: dict[str, list[str]] = {}
    for one in rates:
        for contrast in one.contrasts:
            dearer.setdefault(_dearer(contrast), []).append(f"{one.rate:g}")
    for told, where in dearer.items():
        yield f"At {_list(where)} req/s {told}."
    silent = [f"{one.rate:g}" for one in rates if not (one.prices or one.contrasts)]
    if silent:
        yield f"At {_list(silent)} req/s: {CANNOT_TELL}."


def _recoveries(priced: Sequence[tuple[float, Price]]) -> str:
    """Where in flight came back and where it did not."""
    where: dict[Recovery, list[str]] = {}
    for rate, price in priced:
        where.setdefault(price.recovery, []).append(f"{rate:g}")
    if set(where) == {Recovery.RECOVERED}:
        return "; in flight recovered"
    told = [
        f"{'cannot tell whether it came back' if recovery is Recovery.CANNOT_TELL else recovery}"
        f" at {_list(rates)}"
        for recovery, rates in where.items()
    ]
    return f"; in flight: {', '.join(told)}"


def _rate(one: RateFindings) -> str:
    told = [_in_short(price) for price in one.prices] + [_dearer(c) for c in one.contrasts]
    if told:
        return f"At {one.rate:g} req/s {'; '.join(told)}."
    why = f" {one.unsaid[0]}" if one.unsaid else ""
    return f"At {one.rate:g} req/s: {CANNOT_TELL}.{why}"


def _in_short(price: Price) -> str:
    if not price.total.excludes_zero:
        return f"what a {price.mode} wipe costs cannot be told"
    half = "" if price.recovery is Recovery.CANNOT_TELL else f", in flight {price.recovery}"
    return (
        f"a {price.mode} wipe costs {_told(price.total.estimate)} request-seconds "
        f"({_told(price.victims.estimate)} by its victims, {_told(price.later.estimate)} by later "
        f"arrivals){half}"
    )


def _dearer(one: Contrast) -> str:
    """Which mode is dearer by which of the two declared figures."""
    if one.void is not None:
        return f"{one.first} against {one.second} is void: {one.void}"
    told = {"victims' excess": one.victims, f"∫ΔN over {SHORT_HORIZON:g} s": one.short}
    sure = {how: each for how, each in told.items() if each.excludes_zero}
    if not sure:
        return f"{one.first} and {one.second} cannot be told apart"
    first = [how for how, each in sure.items() if (each.estimate or 0.0) > 0]
    second = [how for how in sure if how not in first]
    parts = [
        f"{dear} costs more than {cheap} by {_list(hows)}"
        for dear, cheap, hows in (
            (one.first, one.second, first),
            (one.second, one.first, second),
        )
        if hows
    ]
    untold = [how for how in told if how not in sure]
    parts += [f"by {_list(untold)} they cannot be told apart"] if untold else []
    return ", ".join(parts)


def _price(price: Price) -> str:
    name = f"a {price.mode} wipe"
    total = price.total
    if total.estimate is None:
        return f"what {name} costs: {CANNOT_TELL} ({total.reason})"
    split = (
        f"{_told(price.victims.estimate)} by its victims, "
        f"{_told(price.later.estimate)} by later arrivals"
    )
    if total.low is None or total.high is None:
        return (
            f"what {name} costs: {CANNOT_TELL} ({total.reason}; the estimate over "
            f"{price.horizon:.0f} s is {_told(total.estimate)} request-seconds: {split})"
        )
    size = (
        f"{_told(total.estimate)} request-seconds over {price.horizon:.0f} s ({_interval(total)})"
    )
    if not total.excludes_zero:
        return f"what {name} costs: {CANNOT_TELL} from nothing, {size}: {split}"
    half = f"; half of it within {price.half_life:.0f} s" if price.half_life is not None else ""
    return f"{name} costs {size}: {split}{half}; {_recovery(price.recovery)}"


def _recovery(recovery: Recovery) -> str:
    if recovery is Recovery.CANNOT_TELL:
        return "whether in flight came back: cannot tell"
    return f"in flight {recovery}"


def _contrast(one: Contrast) -> str:
    if one.void is not None:
        return f"{one.first} against {one.second}: void, {one.void}"
    victims = _difference(one, one.victims, "by its victims' excess")
    short = _difference(one, one.short, f"over {SHORT_HORIZON:g} s")
    return f"{one.first} against {one.second}: {victims}; {short}"


def _difference(one: Contrast, told: Comparison, how: str) -> str:
    """Which of the two is dearer by one of the figures declared in advance."""
    if told.estimate is None or told.low is None or told.high is None:
        guess = "" if told.estimate is None else f"; the estimate is {_told(told.estimate)}"
        return f"{CANNOT_TELL} {how} ({told.reason}{guess})"
    if not told.excludes_zero:
        return f"{CANNOT_TELL} {how} ({_interval(told)})"
    dearer = one.first if told.estimate > 0 else one.second
    size = _told(abs(told.estimate))
    return f"{dearer} costs {size} request-seconds more {how} ({_interval(told)})"


def _at_idle(one: RateFindings) -> str:
    at, found = f"At {one.rate:g} req/s", one.at_idle
    default = next((mode for mode in one.modes if mode.mode is ResetMode.DEFAULT), None)
    cleared = f"default cleared {default.took_effect} of {default.planned} times" if default else ""
    if found is None or not found.wipes:
        return f"{at}: {cleared or 'no default run'}; its price at idle: {CANNOT_TELL}."
    if found.default is None or found.keep is None:
        return f"{at}: {cleared}; its price at idle: {CANNOT_TELL}, a run is missing."
    return (
        f"{at}: {cleared}; there a default reset cost {_told(found.default)} and a keep reset "
        f"{_told(found.keep)} request-seconds over {found.horizon:g} s; the two "
        f"{_agreement(found)}."
    )


def _agreement(found: AtIdle) -> str:
    if found.agree is None:
        return f"should agree: {CANNOT_TELL} ({found.difference.reason})"
    told = "agree, as they must" if found.agree else "differ, so do not trust this measurement"
    return f"{told} (default − keep, {_interval(found.difference)})"


def _capacity(bracket: Bracket) -> str:
    state = "Warm" if bracket.mode is ResetMode.NONE else f"Kept cold by {bracket.mode} resets"
    kept = f"keeps up with {bracket.kept_up:.1f} req/s" if bracket.kept_up else "never keeps up"
    behind = ""
    if bracket.fell_behind:
        behind = f", not with {bracket.fell_behind:.1f}; at most {bracket.ended:.1f} ended a second"
    more = f" (the fit predicts a capacity of {bracket.predicted:.1f})" if bracket.predicted else ""
    return f"{state}: {kept}{behind}{more}."


def _interval(told: Comparison) -> str:
    return f"95 %: {_told(told.low)} to {_told(told.high)}"


def _told(value: float | None) -> str:
    """Two figures, or all before the point, with a true minus sign."""
    if value is None:
        return "–"
    places = 0 if abs(value) >= 9.5 else 1
    return f"{round(value, places) + 0.0:.{places}f}".replace("-", "−")


def _list(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
