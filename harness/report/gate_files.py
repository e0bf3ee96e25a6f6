"""A gate's decision for machines: JSON, JUnit XML, and GitHub's annotations."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree import ElementTree

import msgspec

import harness
from harness.analysis.gate.judgement import Decision, Judged, Verdict
from harness.report.gate import culprits, headline, seen, sentence

SCHEMA_VERSION = 1
"""Of the JSON; raised when a field is renamed or changes meaning."""
_SUITE = "bench gate"


def as_json(decision: Decision, exit_code: int) -> bytes:
    """The decision with every figure; ``exit_code`` is the one that ``bench gate`` ends with."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "harness_version": harness.__version__,
        "exit_code": exit_code,
        **msgspec.to_builtins(decision),
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def as_junit(decision: Decision) -> bytes:
    """One test case an assertion: cannot tell is an error, not judged is skipped."""
    extra = len(decision.reasons)
    suite = ElementTree.Element(
        "testsuite",
        name=f"{_SUITE}: {decision.candidate}",
        tests=str(len(decision.assertions) + extra),
        failures=str(decision.count(Verdict.FAIL)),
        errors=str(decision.count(Verdict.CANNOT_TELL) + extra),
        skipped=str(decision.count(Verdict.NOT_JUDGED)),
    )
    for one in decision.assertions:
        case = ElementTree.SubElement(suite, "testcase", classname=_SUITE, name=one.assertion)
        tag = _TAGS.get(one.verdict)
        if tag is None:
            ElementTree.SubElement(case, "system-out").text = seen(one)
            continue
        found = ElementTree.SubElement(case, tag, message=_message(one))
        found.text = "\n".join(one.culprits)
    for reason in decision.reasons:
        case = ElementTree.SubElement(suite, "testcase", classname=_SUITE, name="candidate")
        ElementTree.SubElement(case, "error", message=reason)
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    xml: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return xml


_TAGS = {Verdict.FAIL: "failure", Verdict.CANNOT_TELL: "error", Verdict.NOT_JUDGED: "skipped"}


def workflow_commands(decision: Decision) -> Iterator[str]:
    """GitHub's workflow commands shown beside a run: errors for fails, warnings for doubts."""
    for one in decision.assertions:
        if one.verdict in (Verdict.FAIL, Verdict.CANNOT_TELL):
            level = "error" if one.verdict is Verdict.FAIL else "warning"
            text = "\n".join([f"{one.assertion}: {_message(one)}", *culprits(one)])
            yield f"::{level} title={_property(f'{_SUITE}: {one.verdict}')}::{_data(text)}"
    for reason in decision.reasons:
        yield f"::warning title={_property(f'{_SUITE}: cannot tell')}::{_data(reason)}"
    level = "notice" if decision.verdict is Verdict.PASS else "error"
    title = _property(headline(decision))
    yield f"::{level} title={title}::{_data(sentence(decision))}"


def _message(one: Judged) -> str:
    return "; ".join(part for part in (seen(one), one.reason) if part) or one.verdict.value


def _data(text: str) -> str:
    """Escaped as GitHub's toolkit does (actions/toolkit, ``command.ts``)."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
