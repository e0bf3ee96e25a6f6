"""An experiment's findings that no table holds, a sentence or two each."""

from __future__ import annotations

from collections.abc import Iterator

from harness.analysis.experiment.rate import RateFindings
from harness.report.tables import interval, signed
from harness.report.text import figures


def notes(rate: RateFindings) -> Iterator[str]:
    """What tables do not hold, a sentence or two each."""
    law = rate.queue.law
    if law is not None:
        others = "; ".join(
            f"{one.rate:g} req/s: ρ {one.utilisation:.2f}, {one.idle_per_minute:.2g} idle/min"
            for one in law.predictions
        )
        yield (
            f"Processor-sharing fit: a = {law.a:.3f} s, b = {law.b:.3f} s "
            f"({law.b_low:.3f} to {law.b_high:.3f}), capacity {law.capacity:.1f} req/s. "
            f"Prediction, not measured: {others}."
        )
    if rate.ttft:
        yield (
            "TTFT excess is a sum over the requests planned after the wipe. It ranks no modes: "
            "preempt's victims have their first token already, pay in stalls, and warm the cache."
        )
    if rate.wipe_load is not None:
        yield wipe_load(rate)
    if rate.at_idle is not None:
        idle = rate.at_idle
        yield (
            f"At idle instants, over {idle.horizon:g} s: default {signed(idle.default)}, keep "
            f"{signed(idle.keep)} request-seconds a reset, the difference "
            f"{interval(idle.difference)}; they met {signed(idle.default_in_flight)} and "
            f"{signed(idle.keep_in_flight)} in flight."
        )
    exits = [f"{one.mode} {_exit(one.seconds)}" for one in rate.last_exits]
    if exits:
        yield (
            "In flight last further than 20 % from its undisturbed level (secondary; a sham's is "
            f"noise): {', '.join(exits)}."
        )
    for need in rate.needs:
        if need.further:
            yield (
                f"{need.first} − {need.second} ({need.figure}), further {need.unit} for "
                f"± {figures(need.wanted)} request-seconds: about {need.further:,}."
            )
    for check in rate.checks:
        if check.passed is False:
            yield f"Check failed, {check.name}: {check.note}"
    yield from rate.unsaid


def _exit(seconds: float | None) -> str:
    return "not back" if seconds is None else f"{seconds:.0f} s"


def wipe_load(rate: RateFindings) -> str:
    """What the wipes add to the load, in a sentence; empty where spacing is as the rule asks."""
    found = rate.wipe_load
    if found is None:
        return ""
    text = (
        f"Resets are {found.spacing:g} s apart, the rule asks for {found.rule:.0f} s: wipes meet "
        "what earlier ones left"
    )
    if found.added is None or found.share is None:
        return f"{text}; without a control the load they add cannot be told."
    return (
        f"{text}, and add {signed(found.added)} requests in flight on average "
        f"({found.share:+.0%} of the undisturbed load)."
    )
