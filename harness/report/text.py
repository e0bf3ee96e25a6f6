"""A run's summary as tables in a terminal; plain lines where there is none."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.analysis.doubt import Severity
from harness.analysis.recovery import AFTER, BEFORE, ResetRecovery
from harness.analysis.resets import SettledReset, Verification
from harness.analysis.summary import ResetRow, RunSummary
from harness.analysis.timings import Distribution

UNKNOWN = "–"
"""Shown for what was not observed."""


def print_summary(console: Console, summary: RunSummary) -> None:
    """Print what a run was, its resets, its distributions, its queue and every doubt about it."""
    print_line(console, _headline(summary), style="bold")
    print_line(console, _volume(summary))
    if summary.resets:
        console.print()
        console.print(_resets(console, summary))
    console.print()
    console.print(_distributions(console, summary))
    console.print()
    for line in (_idle(summary), _queue(summary), _pressure(summary), _client(summary)):
        if line:
            print_line(console, line)
    _print_doubts(console, summary)


def duration(seconds: float | None) -> str:
    """Seconds for a reader: milliseconds below one second, three figures."""
    if seconds is None:
        return UNKNOWN
    if abs(seconds) < 0.9995:
        return f"{figures(1000 * seconds)} ms"
    return f"{figures(seconds)} s"


def figures(value: float) -> str:
    """Three significant figures, and never an exponent."""
    size = abs(value)
    if size < 0.0005:
        return "0"
    if size >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"


def _headline(summary: RunSummary) -> str:
    reason = f" ({summary.reason})" if summary.reason else ""
    return (
        f"{summary.scenario}: reset mode {summary.mode}, {summary.rate:g} req/s, "
        f"seed {summary.seed}, {summary.status}{reason}"
    )


def _volume(summary: RunSummary) -> str:
    volume, period = summary.volume, summary.period
    failed = sum(volume.failures.values())
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in volume.failures.items())
    parts = [
        f"measured {period.start:.0f} to {period.end:.0f} s",
        f"{volume.sent:,} sent" + ("" if volume.rate is None else f" ({volume.rate:.2f}/s)"),
        f"{volume.ended:,} ended",
        f"{failed:,} failed" + (f" ({kinds})" if kinds else ""),
    ]
    if volume.tokens_per_second is not None:
        parts.append(f"{figures(volume.tokens_per_second)} tokens/s")
    if volume.prompt_tokens is not None:
        parts.append(f"{figures(volume.prompt_tokens)} tokens a prompt by the server's count")
    if volume.cached_share is not None:
        parts.append(f"{volume.cached_share:.0%} of prompt tokens cached")
    if volume.unrecorded:
        parts.append(f"{volume.unrecorded:,} of {volume.planned:,} planned without a record")
    return ", ".join(parts)


def table(console: Console, title: str | None) -> Table:
    """An empty table that fits a terminal of 80 columns, ruled where there is one."""
    ruled = console.is_terminal
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD if ruled else None,
        show_edge=False,
        padding=(0, 0 if ruled else 1, 0, 0),
        pad_edge=False,
    )


def _resets(console: Console, summary: RunSummary) -> Table:
    title = f"Resets (mean TTFT and latency: {BEFORE:.0f} s before → first {AFTER:.0f} s after)"
    made = table(console, title)
    modes = len({row.reset.record.mode for row in summary.resets}) > 1
    headers = ["#", "at", *(["mode"] if modes else []), "outcome", "tries", "wait"]
    scale, unit = _ttft_scale(summary)
    headers += ["in\nflight", "pre-\nempted", f"TTFT, {unit}", "latency, s", "TTFT\nback after"]
    for header in headers:
        right = header not in ("mode", "outcome")
        made.add_column(header, justify="right" if right else "left", no_wrap=True)
    for row in summary.resets:
        record = row.reset.record
        made.add_row(
            str(record.id),
            f"{record.scheduled:.0f} s",
            *([record.mode.value] if modes else []),
            _outcome(row.reset),
            str(len(record.attempts)),
            duration(row.wait),
            str(record.in_flight),
            _preempted(row.reset),
            _before_after(row, "ttft", scale),
            _before_after(row, "latency", 1),
            _back_after(row.recovery),
        )
    return made


def _ttft_scale(summary: RunSummary) -> tuple[int, str]:
    """Milliseconds, unless a TTFT of the table is 10 s or more."""
    stretches = [
        stretch
        for row in summary.resets
        if row.recovery is not None
        for stretch in (row.recovery.before, row.recovery.after)
    ]
    return (1, "s") if any((one.ttft or 0.0) >= 10 for one in stretches) else (1000, "ms")


def _outcome(reset: SettledReset) -> Text:
    name = reset.record.outcome.value
    if reset.tier is not None:
        name = f"{name} ({reset.tier})"
    elif reset.verification in (Verification.NOT_REPORTED, Verification.NO_EVIDENCE):
        name = f"{name}?"
    good = reset.verification is Verification.CONFIRMED
    return Text(name, style="green" if good else "yellow")


def _preempted(reset: SettledReset) -> str:
    count, unresolved = reset.record.preemptions, reset.record.preemptions_unresolved
    if count is None:
        return UNKNOWN
    return f"{count}–{count + unresolved}" if unresolved else str(count)


def _before_after(row: ResetRow, name: str, scale: int) -> str:
    if row.recovery is None:
        return UNKNOWN
    pair = (getattr(row.recovery.before, name), getattr(row.recovery.after, name))
    return " → ".join(UNKNOWN if value is None else figures(scale * value) for value in pair)


def _back_after(recovery: ResetRecovery | None) -> str:
    if recovery is None or recovery.before.ttft is None:
        return UNKNOWN
    if recovery.time_to_recover is None:
        return f"> {recovery.window:.0f} s"
    return f"{recovery.time_to_recover:.1f} s"


def _distributions(console: Console, summary: RunSummary) -> Table:
    made = table(console, "Run (from the planned instant unless it says otherwise)")
    made.add_column("", no_wrap=True)
    for header in ("count", "mean", "p50", "p90", "p95", "p99", "max"):
        made.add_column(header, justify="right", no_wrap=True)
    timings = summary.timings
    for name, one in (
        ("TTFT", timings.ttft),
        ("  from sent", timings.ttft_from_sent),
        ("latency", timings.latency),
        ("  from sent", timings.latency_from_sent),
        ("ITL", timings.itl),
        ("lag", timings.lag),
    ):
        made.add_row(name, *_cells(one))
    return made


def _cells(one: Distribution) -> list[str]:
    shown = (one.mean, one.p50, one.p90, one.p95, one.p99, one.max)
    return [f"{one.count:,}", *(duration(value) for value in shown)]


def _idle(summary: RunSummary) -> str:
    idle = summary.idle
    if idle.per_minute is None or idle.share is None:
        return ""
    expected = idle.expected_per_minute
    beside = "" if expected is None else f"; λ·P₀ is {expected:.2f}"
    return (
        f"Idle windows: {idle.count} ({idle.per_minute:.2f} a minute{beside}), "
        f"longest {duration(idle.longest)}, idle {idle.share:.1%} of the time."
    )


def _queue(summary: RunSummary) -> str:
    queue = summary.occupancy
    if queue is None:
        return ""
    parts = [f"In flight: mean {queue.mean:.1f}, most {queue.most}"]
    if queue.residence is not None:
        parts.append(
            f"Little's law λW = {queue.rate:.2f} × {queue.residence:.2f} s = "
            f"{queue.mean + queue.boundary:.1f}"
        )
    if queue.server_gap is not None:
        parts.append(f"server's gauges {queue.server_gap:+.1%}")
    if queue.utilisation is not None:
        parts.append(f"ρ = {queue.utilisation:.2f}")
    return "; ".join(parts) + "."


def _pressure(summary: RunSummary) -> str:
    pressure = summary.memory_pressure
    if pressure is None:
        return "Preemptions by memory pressure: unknown."
    least, most = pressure.at_least, pressure.at_most
    return f"Preemptions by memory pressure: {least if least == most else f'{least} to {most}'}."


def _client(summary: RunSummary) -> str:
    client = summary.client
    share = UNKNOWN if client.cpu_share is None else f"{client.cpu_share:.0%}"
    who = "Client" if client.processes == 1 else f"Client (worst of {client.processes} processes)"
    return (
        f"{who}: {share} of a core, ticker late by {duration(client.overshoot.p99)} at p99, "
        f"lag {duration(summary.timings.lag.p99)} at p99."
    )


def _print_doubts(console: Console, summary: RunSummary) -> None:
    if not summary.doubts and not summary.warnings:
        return
    console.print()
    for doubt in summary.doubts:
        void = doubt.severity is Severity.VOID
        label = "Void" if void else "Doubt"
        print_line(console, f"{label}: {doubt.text}", style="bold red" if void else "yellow")
        print_line(console, f"  → {doubt.remedy}")
    for warning in summary.warnings:
        print_line(console, f"Noted: {warning}", style="yellow")


def print_line(console: Console, line: str, *, style: str = "") -> None:
    """Print one line, whole where it is no terminal that wraps it."""
    console.print(Text(line, style=style), soft_wrap=not console.is_terminal)
