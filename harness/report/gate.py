"""A gate's decision for readers: a table in a terminal, Markdown for a CI's summary page."""

from __future__ import annotations

import math

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.analysis.gate.judgement import Decision, Judged, Verdict

_STYLES = {
    Verdict.PASS: "green",
    Verdict.FAIL: "bold red",
    Verdict.CANNOT_TELL: "yellow",
    Verdict.NOT_JUDGED: "dim",
}
MOST_CULPRITS = 5
"""Resets that are named for one assertion; the JSON file has all of them."""


def print_decision(console: Console, decision: Decision) -> None:
    """Print every assertion with what was seen, what broke it, and the verdict."""
    table = Table(
        title=Text(headline(decision)),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD if console.is_terminal else None,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("verdict", no_wrap=True)
    table.add_column("assertion, and what was seen")
    for one in decision.assertions:
        found = [f"  {line}" for line in (_with_reason(one), *culprits(one))]
        table.add_row(
            Text(one.verdict.value, style=_STYLES[one.verdict]),
            Text("\n".join([one.assertion, *found])),
        )
    console.print(table)
    for reason in decision.reasons:
        _print(console, f"Cannot tell: {reason}.", "yellow")
    _print(console, sentence(decision), _STYLES[decision.verdict])


def markdown(decision: Decision) -> str:
    """The decision as a section of Markdown."""
    lines = [
        f"### {headline(decision)}",
        "",
        "| verdict | assertion | seen |",
        "|---|---|---|",
        *(
            f"| {one.verdict} | `{one.assertion}` | {_cell(_with_reason(one))} |"
            for one in decision.assertions
        ),
        "",
    ]
    for one in decision.assertions:
        lines += [f"- {one.verdict}: `{one.assertion}`: {line}" for line in culprits(one)]
    lines += [f"- cannot tell: {reason}" for reason in decision.reasons]
    return "\n".join([*lines, "", f"**{sentence(decision)}**", ""])


def headline(decision: Decision) -> str:
    """What was gated."""
    against = f" against {decision.baseline}" if decision.baseline else ""
    return f"Gate of {decision.candidate}{against}"


def sentence(decision: Decision) -> str:
    """The verdict and how many assertions came to what."""
    counts = ", ".join(f"{decision.count(one)} {one}" for one in Verdict if decision.count(one))
    return f"{decision.verdict.upper()} ({counts})"


def seen(one: Judged) -> str:
    """What was seen of the left side."""
    if one.resets is not None and one.least is not None and one.most is not None:
        if one.least == one.most:
            return f"{_number(one.least)} at each of {one.resets} resets"
        mean = "" if one.value is None else f"mean {_number(one.value)}, "
        return f"{_number(one.least)} to {_number(one.most)}, {mean}{one.resets} resets"
    if one.value is None:
        return ""
    if one.least is None or one.most is None:
        return _number(one.value)
    return f"{_number(one.value)} [{_number(one.least)}, {_number(one.most)}]"


def culprits(one: Judged) -> list[str]:
    """The resets that break an assertion, the first few by name."""
    rest = len(one.culprits) - MOST_CULPRITS
    more = [f"and {rest} more"] if rest > 0 else []
    return [*one.culprits[:MOST_CULPRITS], *more]


def _with_reason(one: Judged) -> str:
    return "; ".join(part for part in (seen(one), one.reason) if part)


def _number(value: float) -> str:
    return "unknown" if math.isinf(value) else f"{value:.3g}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _print(console: Console, line: str, style: str = "") -> None:
    console.print(Text(line, style=style), soft_wrap=not console.is_terminal)
