"""``summary.json``: the figures of a run or an experiment for other programs, and their schema."""

from __future__ import annotations

import msgspec

import harness
from harness.analysis.experiment.findings import Findings
from harness.analysis.summary import RunSummary

SUMMARY = "summary.json"
SCHEMA_VERSION = 1
"""Raised when a field is renamed or changes meaning; adding one does not raise it."""


class RunReport(msgspec.Struct, frozen=True, tag="run", tag_field="kind"):
    """``summary.json`` of one run."""

    schema_version: int
    harness_version: str
    run: RunSummary


class ExperimentReport(msgspec.Struct, frozen=True, tag="experiment", tag_field="kind"):
    """``summary.json`` of an experiment, or of runs that were compared."""

    schema_version: int
    harness_version: str
    experiment: Findings


def as_json(what: RunSummary | Findings) -> bytes:
    """``summary.json`` of ``what``; absent figures are null, times in seconds."""
    report: RunReport | ExperimentReport
    if isinstance(what, RunSummary):
        report = RunReport(SCHEMA_VERSION, harness.__version__, what)
    else:
        report = ExperimentReport(SCHEMA_VERSION, harness.__version__, what)
    return msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n"


def schema() -> bytes:
    """JSON Schema (2020-12) of ``summary.json``, of either kind."""
    described = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **msgspec.json.schema(RunReport | ExperimentReport),
    }
    return msgspec.json.format(msgspec.json.encode(described), indent=1) + b"\n"
