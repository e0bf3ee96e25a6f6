"""A decision as a table, as Markdown and as workflow commands."""

from __future__ import annotations

import json
from io import StringIO
from xml.etree import ElementTree

import pytest
from rich.console import Console

from harness.analysis.gate.judgement import Decision, Judged, Verdict
from harness.report.gate import markdown, print_decision, seen
from harness.report.gate_files import as_json, as_junit, workflow_commands

KEPT = 'preemptions_per_reset{mode="keep"} == 0'
CULPRITS = tuple(f"4-1-turn0, reset {number} (keep at {number}5 s): 1" for number in range(7))
DECISION = Decision(
    "new | old",
    "base",
    Verdict.FAIL,
    (
        Judged(KEPT, Verdict.FAIL, 0.7, 0.0, 1.0, 0.0, 10, "broken at 7 of 10 resets", CULPRITS),
        Judged("ignored == 0", Verdict.PASS, 0.0, 0.0, 0.0, 0.0, 10),
        Judged("failed_share <= 1%", Verdict.CANNOT_TELL, reason="no request ended: 100% & <none>"),
        Judged("lower(latency_ratio) <= 1.10", Verdict.NOT_JUDGED, 1.2, 1.1, 1.3, reason="x|y"),
    ),
    ("run a is interrupted",),
)


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("width", [60, 80, 140])
def test_a_table_names_what_broke_at_any_width(width: int, terminal: bool) -> None:
    out = StringIO()
    print_decision(Console(file=out, width=width, force_terminal=terminal), DECISION)
    text = out.getvalue()
    for words in ("fail", "reset 0", "reset 4", "and 2 more", "is interrupted", "FAIL (1 pass"):
        assert words in text
    assert "reset 5" not in text


@pytest.mark.parametrize(
    ("judged", "text"),
    [
        (DECISION.assertions[0], "0 to 1, mean 0.7, 10 resets"),
        (DECISION.assertions[1], "0 at each of 10 resets"),
        (DECISION.assertions[2], ""),
        (DECISION.assertions[3], "1.2 [1.1, 1.3]"),
        (Judged("", Verdict.PASS, 0.25), "0.25"),
        (
            Judged("", Verdict.CANNOT_TELL, None, 0.0, float("inf"), 0.0, 8),
            "0 to unknown, 8 resets",
        ),
    ],
)
def test_what_was_seen_is_said_in_few_words(judged: Judged, text: str) -> None:
    assert seen(judged) == text


def test_markdown_is_one_row_an_assertion() -> None:
    lines = markdown(DECISION).splitlines()
    rows = [line for line in lines if line.startswith("| ")]
    assert len(rows) == 1 + len(DECISION.assertions)
    assert all(line.replace("\\|", "").count("|") == 4 for line in rows)
    assert lines[-1] == "**FAIL (1 pass, 1 fail, 1 cannot tell, 1 not judged)**"


def test_workflow_commands_are_one_line_each_and_escaped() -> None:
    commands = list(workflow_commands(DECISION))
    assert [line.split(" ")[0] for line in commands] == [
        "::error", "::warning", "::warning", "::error",
    ]  # fmt: skip
    assert all("\n" not in line for line in commands)
    assert "%0A4-1-turn0, reset 0" in commands[0]
    assert "100%25 & <none>" in commands[1]
    assert "title=bench gate%3A fail::" in commands[0]


def test_files_hold_every_assertion() -> None:
    document = json.loads(as_json(DECISION, 10))
    assert document["exit_code"] == 10
    assert document["assertions"][0]["culprits"] == list(CULPRITS)
    suite = ElementTree.fromstring(as_junit(DECISION))[0]
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "5", "failures": "1", "errors": "2", "skipped": "1",
    }  # fmt: skip
    assert [case[0].tag for case in suite] == [
        "failure", "system-out", "error", "skipped", "error",
    ]  # fmt: skip
    assert "reset 6" in (suite[0][0].text or "")
