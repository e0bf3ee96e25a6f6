"""An experiment's findings as tables in a terminal; plain lines where there is none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from rich.console import Console
from rich.table import Table

from harness.analysis.capacity import Capacity
from harness.analysis.checks import Check
from harness.analysis.contrast import SHORT_HORIZON
from harness.analysis.doubt import Severity
from harness.analysis.findings import Findings, RateFindings
from harness.analysis.modes import CACHED_EDGES, ModeFigures, Spread
from harness.analysis.stats import Comparison
from harness.records import AttemptOutcome, ResetMode
from harness.report.text import UNKNOWN, duration, figures, print_line, table


def print_findings(console: Console, findings: Findings) -> None:
    """Print the question, the verdict, and per rate what carries it; then checks and doubts."""
    print_line(console, findings.question, style="bold")
    print_line(console, findings.verdict)
    if findings.capacity is not None:
        console.print()
        _print_titled(console, _capacity(console, findings.capacity))
    for rate in findings.rates:
        _print_rate(console, rate, brief=findings.capacity is not None)
    _print_doubts(console, findings)


def interval(told: Comparison) -> str:
    """``estimate (low to high)``, or the estimate and that no more can be told."""
    if told.estimate is None:
        return UNKNOWN
    if told.low is None or told.high is None:
        return f"{signed(told.estimate)} (cannot tell)"
    return f"{signed(told.estimate)} ({signed(told.low)} to {signed(told.high)})"


def signed(value: float | None) -> str:
    """Three figures with a true minus sign."""
    return UNKNOWN if value is None else figures(value).replace("-", "−")


def _print_rate(console: Console, rate: RateFindings, *, brief: bool) -> None:
    console.print()
    print_line(console, _headline(rate), style="bold")
    tables = [] if brief else [_contrasts(console, rate), _prices(console, rate)]
    tables += [_modes(console, rate.modes), _work(console, rate.modes)]
    if not brief:
        tables += [_cached(console, rate.modes)]
    tables += [_runs(console, rate), _checks(console, rate.checks)]
    for each in tables:
        if each is not None:
            console.print()
            _print_titled(console, each)
    lines = list(_lines(rate))
    if lines:
        console.print()
    for line in lines:
        print_line(console, line)


def _print_titled(console: Console, made: Table) -> None:
    """The title on a line of its own: rich would wrap it to the width of a narrow table."""
    print_line(console, str(made.title), style="bold")
    made.title = None
    console.print(made)


def _headline(rate: RateFindings) -> str:
    queue = rate.queue
    parts = [f"{rate.rate:g} req/s, {len(rate.runs)} runs"]
    if rate.spacing is not None:
        parts.append(f"resets every {rate.spacing:g} s")
    if queue.in_flight is not None:
        parts.append(f"undisturbed: {figures(queue.in_flight)} in flight")
        parts.append(f"mean latency {duration(queue.latency)}")
    if queue.utilisation is not None:
        parts.append(f"ρ = {queue.utilisation:.2f}")
    return ", ".join(parts)


def _contrasts(console: Console, rate: RateFindings) -> Table | None:
    if not rate.contrasts:
        return None
    found = table(console, "Modes against each other, request-seconds a reset (95 % interval)")
    columns(found, ["", "units", "victims' excess", f"∫ΔN over {SHORT_HORIZON:g} s", "p", "failed"])
    for one in rate.contrasts:
        found.add_row(
            f"{one.first} − {one.second}",
            str(one.short.units),
            interval(one.victims),
            interval(one.short),
            " ".join(_p(told) for told in (one.victims, one.short)),
            "void" if one.void else f"{max(one.failed):.1%}",
        )
    return found


def _p(told: Comparison) -> str:
    return UNKNOWN if told.p_value is None else f"{told.p_value:.3f}"


def _prices(console: Console, rate: RateFindings) -> Table | None:
    if not rate.prices:
        return None
    horizon, control = rate.prices[0].horizon, rate.prices[0].control
    against = "runs without resets" if control is ResetMode.NONE else control.value
    title = f"Price of a wipe against {against}: ∫ΔN over {horizon:g} s, request-seconds"
    found = table(console, title)
    columns(
        found,
        ["", "units", "total (95 % interval)", "= victims", "+ later", "half-life", "in flight"],
    )
    for price in rate.prices:
        found.add_row(
            price.mode.value,
            str(price.total.units),
            interval(price.total),
            signed(price.victims.estimate),
            signed(price.later.estimate),
            duration(price.half_life),
            price.recovery.value,
        )
    return found


def _modes(console: Console, found: Sequence[ModeFigures]) -> Table | None:
    wipes = [mode for mode in found if mode.mode is not ResetMode.NONE]
    if not wipes:
        return None
    made = table(console, "What each mode did (mean a reset; most in brackets)")
    columns(made, ["", "took effect", "tries", "wait", "in flight", "preempted", "of running"])
    for mode in wipes:
        done = f"{mode.took_effect} of {mode.planned}"
        unhappy = {k: n for k, n in mode.outcomes.items() if k not in _HAPPY}
        if unhappy:
            done += " (" + ", ".join(f"{n} {kind}" for kind, n in unhappy.items()) + ")"
        share = mode.preempted_share
        more = f" +{mode.unresolved}?" if mode.unresolved else ""
        made.add_row(
            mode.mode.value,
            done,
            str(mode.attempts),
            duration(mode.wait.mean),
            spread(mode.in_flight),
            spread(mode.preemptions) + more,
            UNKNOWN if share is None else f"{share:.0%}",
        )
    return made


_HAPPY = (AttemptOutcome.CLEARED, AttemptOutcome.MARKED)


def _work(console: Console, found: Sequence[ModeFigures]) -> Table | None:
    made = table(console, "What it cost the engine, and idle windows in each mode's time")
    columns(
        made,
        [
            "",
            "discarded\ntokens",
            "stall",
            "idle\nwindows/min",
            "λ·P₀\n/min",
            "memory-pressure\npreemptions/min",
        ],
    )
    control = next((m.pressure_per_minute for m in found if m.mode in _CONTROLS), None)
    for mode in found:
        pressure = mode.pressure_per_minute
        above = ""
        if pressure is not None and control is not None and mode.mode not in _CONTROLS:
            above = f" ({pressure - control:+.2f})".replace("-", "−")
        made.add_row(
            "control" if mode.mode is ResetMode.NONE else mode.mode.value,
            spread(mode.discarded_tokens),
            f"{duration(mode.stall.mean)} ({duration(mode.stall.most)})"
            if mode.stall.count
            else UNKNOWN,
            _two(mode.idle_per_minute),
            _two(mode.idle_expected_per_minute),
            _two(pressure) + above,
        )
    return made


_CONTROLS = (ResetMode.NONE, ResetMode.SHAM)


def spread(one: Spread) -> str:
    """``mean (most)``."""
    if one.mean is None or one.most is None:
        return UNKNOWN
    return f"{figures(one.mean)} ({figures(one.most)})"


def _two(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2f}"


def _cached(console: Console, found: Sequence[ModeFigures]) -> Table | None:
    groups = [(mode, group) for mode in found for group in mode.cached_by_prefix]
    if not groups:
        return None
    made = table(console, "Prompt tokens cached after a wipe, by prefix (0 is the most frequent)")
    edges = [f"{edge:g}" for edge in CACHED_EDGES]
    spans = [f"{a}–{b} s" for a, b in pairwise(edges)]
    columns(made, ["", "prefixes", "requests", *spans, f"{edges[-1]} s–next"])
    last = None
    for mode, group in groups:
        made.add_row(
            "" if mode.mode is last else mode.mode.value,
            str(group.first) if group.first == group.last else f"{group.first}–{group.last}",
            f"{group.requests:,}",
            *(UNKNOWN if share is None else f"{share:.0%}" for share in group.cached),
        )
        last = mode.mode
    return made


def _runs(console: Console, rate: RateFindings) -> Table:
    made = table(console, "Runs (means from the planned instant)")
    columns(made, ["", "status", "requests", "failed", "TTFT", "latency", "in flight", "lag p99"])
    for run in rate.runs:
        made.add_row(
            run.name,
            run.status.value,
            f"{run.requests:,}",
            UNKNOWN if run.failed_share is None else f"{run.failed_share:.1%}",
            duration(run.ttft),
            duration(run.latency),
            UNKNOWN if run.in_flight is None else figures(run.in_flight),
            duration(run.lag_p99),
        )
    return made


def _checks(console: Console, checks: Sequence[Check]) -> Table | None:
    if not checks:
        return None
    made = table(console, "Checks")
    columns(made, ["", "", "observed", "expected", "unit"])
    for check in checks:
        made.add_row(
            check.name,
            passed(check),
            signed(check.observed),
            signed(check.expected),
            check.unit,
        )
    return made


def passed(check: Check) -> str:
    """In words."""
    return {True: "passed", False: "FAILED", None: "cannot tell"}[check.passed]


def _lines(rate: RateFindings) -> Iterable[str]:
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
    if rate.wipe_load is not None:
        yield wipe_load(rate)
    if rate.at_idle is not None:
        idle = rate.at_idle
        yield (
            f"At idle instants, over {idle.horizon:g} s: default {signed(idle.default)}, keep "
            f"{signed(idle.keep)} request-seconds a reset; they met "
            f"{signed(idle.default_in_flight)} and {signed(idle.keep_in_flight)} in flight."
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
                f"{need.first} − {need.second} ({need.figure}) to ± {figures(need.wanted)} "
                f"request-seconds: about {need.further:,} more {need.unit}."
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
        f"{text}, and add {figures(found.added)} requests in flight on average "
        f"({found.share:+.0%} of the undisturbed load)."
    )


def _capacity(console: Console, capacity: Capacity) -> Table:
    made = table(console, "Second half of each run: what came in and what went out, a second")
    columns(made, ["", "cache", "cached", "sent", "ended", "in flight", "", "fit predicts"])
    for run in capacity.runs:
        made.add_row(
            run.run,
            "warm" if run.mode is ResetMode.NONE else f"{run.mode}, cold",
            UNKNOWN if run.cached_share is None else f"{run.cached_share:.0%}",
            f"{run.sent:.2f}",
            f"{run.ended:.2f}",
            f"{run.in_flight[0]} → {run.in_flight[1]}",
            "saturated" if run.saturated else "keeps up",
            UNKNOWN if run.predicted is None else f"{run.predicted:.1f}",
        )
    return made


def _print_doubts(console: Console, findings: Findings) -> None:
    if not (findings.doubts or findings.warnings or findings.missing):
        return
    console.print()
    for one in findings.doubts:
        doubt = one.doubt
        void = doubt.severity is Severity.VOID
        runs = "" if len(one.runs) == 1 else f" and {len(one.runs) - 1} more"
        label = f"{'Void' if void else 'Doubt'} ({one.runs[0]}{runs})"
        print_line(console, f"{label}: {doubt.text}", style="bold red" if void else "yellow")
        print_line(console, f"  → {doubt.remedy}")
    for warning in findings.warnings:
        print_line(console, f"Noted: {warning}", style="yellow")
    if findings.missing:
        names = ", ".join(findings.missing)
        print_line(console, f"Not carried out: {names}. Call the experiment again.", style="yellow")


def columns(made: Table, headers: Sequence[str]) -> None:
    """Add columns; the first to the left, numbers to the right."""
    for place, header in enumerate(headers):
        made.add_column(header, justify="right" if place else "left", no_wrap=True)
