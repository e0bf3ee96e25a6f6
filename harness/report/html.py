"""``report.html``: one self-contained page of an experiment; it needs no network and no script."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

import jinja2

import harness
from harness.analysis.doubt import Severity
from harness.analysis.experiment.findings import Findings
from harness.report import notes, overview, panels, tables

REPORT = "report.html"


def page(findings: Findings, commands: Sequence[str]) -> str:
    """The page of ``findings``; ``commands`` are what reproduces them, a line each."""
    assets = files("harness.report").joinpath("assets")
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.from_string(assets.joinpath("report.html").read_text("utf-8"))
    brief = findings.capacity is not None
    sweep = overview.load_sweep(findings.rates)
    return template.render(
        findings=findings,
        style=assets.joinpath("report.css").read_text("utf-8"),
        version=harness.__version__,
        commands=commands,
        overall=[
            *([] if sweep is None else [sweep]),
            *([] if findings.capacity is None else [overview.throughput(findings.capacity)]),
        ],
        capacity=None if findings.capacity is None else tables.throughput(findings.capacity),
        rates=[
            {
                "name": f"{rate.rate:g} req/s",
                "headline": tables.headline(rate),
                "details": rate.details,
                "panels": list(panels.carrying(rate)),
                "more": list(panels.more_curves(rate)),
                "small": panels.small_multiples(rate),
                "resets": len({(trace.block, trace.id) for trace in rate.traces}),
                "grids": tables.all_grids(rate, brief=brief),
                "checks": rate.checks,
                "notes": list(notes.notes(rate)),
            }
            for rate in findings.rates
        ],
        passed=tables.passed,
        is_void=lambda doubt: doubt.severity is Severity.VOID,
    )
