"""An experiment's findings in a terminal; plain lines where there is none."""

from __future__ import annotations

from rich.console import Console, JustifyMethod

from harness.analysis.doubt import Severity
from harness.analysis.experiment.findings import Findings
from harness.report import notes, tables
from harness.report.tables import Grid
from harness.report.text import print_line, table

WIDTH = 100
"""Columns that every table fits into; in a narrower terminal cells wrap."""


def print_findings(console: Console, findings: Findings) -> None:
    """Print the question, the verdict, and per rate what carries it; then checks and doubts."""
    print_line(console, findings.question, style="bold")
    print_line(console, findings.verdict)
    if findings.capacity is not None:
        _print_grid(console, tables.throughput(findings.capacity))
    for rate in findings.rates:
        console.print()
        print_line(console, tables.headline(rate), style="bold")
        for detail in rate.details:
            print_line(console, f"- {detail}")
        for grid in tables.all_grids(rate, brief=findings.capacity is not None):
            _print_grid(console, grid)
        console.print()
        for note in notes.notes(rate):
            print_line(console, note)
    _print_doubts(console, findings)


def _print_grid(console: Console, grid: Grid) -> None:
    console.print()
    # The title on a line of its own: rich would wrap it to the width of a narrow table.
    print_line(console, grid.title, style="bold")
    made = table(console, None)
    fits = console.width >= WIDTH
    for place, header in enumerate(grid.headers):
        side: JustifyMethod = "right" if place else "left"
        made.add_column(header, justify=side, no_wrap=fits, overflow="fold")
    for row in grid.rows:
        made.add_row(*row)
    console.print(made)


def _print_doubts(console: Console, findings: Findings) -> None:
    if findings.doubts or findings.warnings or findings.missing:
        console.print()
    for one in findings.doubts:
        void = one.doubt.severity is Severity.VOID
        more = "" if len(one.runs) == 1 else f" and {len(one.runs) - 1} more"
        label = f"{'Void' if void else 'Doubt'} ({one.runs[0]}{more})"
        print_line(console, f"{label}: {one.doubt.text}", style="bold red" if void else "yellow")
        print_line(console, f"  → {one.doubt.remedy}")
    for warning in findings.warnings:
        print_line(console, f"Noted: {warning}", style="yellow")
    if findings.missing:
        names = ", ".join(findings.missing)
        print_line(console, f"Not carried out: {names}. Call the experiment again.", style="yellow")
