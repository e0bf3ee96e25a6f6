"""An experiment's report in a terminal, as a page and as JSON: whole, readable, self-contained."""

from __future__ import annotations

import io
import json
import re
from html.parser import HTMLParser

import msgspec
import pytest
from rich.console import Console

from harness.analysis.experiment.findings import Findings
from harness.analysis.summary import summarize
from harness.design import Design
from harness.records import ResetMode
from harness.report.experiment import print_findings
from harness.report.html import page
from harness.report.summary import ExperimentReport, RunReport, as_json, schema
from tests.analysis.experiments import findings, spec
from tests.analysis.simulation import scenario, simulate
from tests.analysis.test_findings import BAD, of

KEEP, PREEMPT, SHAM = ResetMode.KEEP, ResetMode.PREEMPT, ResetMode.SHAM
VOID_ELEMENTS = {"meta", "path", "use", "rect", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """What a page is made of; fails on elements that are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text: list[str] = []
        self.figures = 0
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.ids += [given["id"]] if "id" in given else []
        for name in ("href", "src", "xlink:href"):
            self.links += [given[name]] if name in given else []
        self.figures += tag == "figure"
        if tag not in VOID_ELEMENTS:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID_ELEMENTS:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in VOID_ELEMENTS:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def printed(found: Findings, *, terminal: bool) -> str:
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=terminal, color_system=None)
    print_findings(console, found)
    return out.getvalue()


@pytest.fixture(scope="module")
def whole() -> Findings:
    return findings(spec(rates=(2.0, 5.0), warmup=20.0, duration=225.0, every=25.0))


def test_tables_fit_a_hundred_columns(whole: Findings) -> None:
    lines = printed(whole, terminal=True).splitlines()
    assert all(len(line.rstrip()) <= 100 for line in lines)
    assert not any("…" in line for line in lines)


def test_the_terminal_tells_verdict_price_and_doubts(whole: Findings) -> None:
    text = printed(whole, terminal=False)
    assert text.splitlines()[0] == whole.question
    assert text.splitlines()[1] == whole.verdict
    for word in ("= victims", "+ later", "∫ΔN over 20 s", "Checks", "Doubt", "Prediction"):
        assert word in text


def test_the_page_is_whole_and_needs_nothing_else(whole: Findings) -> None:
    text = page(whole, ["bench experiment x.toml"])
    made = Page(text)
    assert made.open == []
    assert len(made.ids) == len(set(made.ids))
    assert all(link.startswith("#") for link in made.links)
    assert set(re.findall(r"url\((?!#)[^)]*\)", text)) == set()
    assert "<script" not in text
    assert made.figures > 12
    said = " ".join(made.text)
    for words in (whole.question, whole.verdict, "bench experiment x.toml"):
        assert words in said
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
    assert "#010203" not in text  # every stand-in colour became the page's own
    assert "var(--keep)" in text


def test_the_page_escapes_what_a_server_says(whole: Findings) -> None:
    hostile = msgspec.structs.replace(whole, warnings=("<script>alert(1)</script>",), rates=())
    assert "<script" not in page(hostile, [])


@pytest.mark.parametrize("name", ["no run", "all failed", "empty journals", "only controls"])
def test_bad_input_is_printed_and_drawn(name: str) -> None:
    found = of(BAD[name][0]())
    text = printed(found, terminal=False)
    assert found.verdict in text
    for wrong in ("nan", "None", "inf "):
        assert wrong not in text
    made = Page(page(found, []))
    assert found.verdict in " ".join(made.text)


def test_capacity_has_a_page_of_its_own() -> None:
    found = findings(
        spec(Design.CAPACITY, (KEEP,), rates=(5.0, 14.0), warmup=5.0, duration=20.0, every=0.5)
    )
    assert "saturated" in printed(found, terminal=False)
    assert "Requests that ended" in page(found, [])


def test_summaries_are_json_of_their_schema(whole: Findings) -> None:
    described = json.loads(schema())
    assert {"RunReport", "ExperimentReport"} <= described["$defs"].keys()
    experiment = msgspec.json.decode(as_json(whole), type=RunReport | ExperimentReport)
    assert experiment.experiment == whole
    summary = summarize(simulate(scenario(KEEP, warmup=5.0, duration=30.0, every=10.0)))
    run = msgspec.json.decode(as_json(summary), type=RunReport | ExperimentReport)
    assert run.run == summary
    plain = json.loads(as_json(whole))
    assert (plain["kind"], plain["schema_version"]) == ("experiment", 1)
    required = set(described["$defs"]["Findings"]["required"])
    assert required == plain["experiment"].keys()
