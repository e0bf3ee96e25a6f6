"""The explorer's page: one self-contained HTML file that replays traces.

It opens from disk, needs no network (its content policy forbids any), and stays under 300 kB.
"""

from __future__ import annotations

import html
import io
import json
import keyword
import textwrap
import tokenize
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

from harness.errors import JournalError
from harness.explain.life import recorded_story
from harness.explain.source import Source, sources
from harness.explain.stories import STORIES, Story
from harness.explain.trace import Step, record
from harness.journals import Journals

TITLE = "What a reset does to a busy pool"
LEAD = (
    "vLLM keeps computed prompts in blocks of GPU memory and finds them again by hash. Here are "
    "ten blocks of four tokens, and what resets do to them."
)
LIFE_TITLE = "One recorded reset"


def write_page(path: Path) -> None:
    """Write the page with the standard stories.

    Raises:
        JournalError: the file cannot be written.
    """
    _write(path, TITLE, LEAD, [pool_story(story) for story in STORIES])


def write_recorded(path: Path, journals: Journals, reset_id: int | None = None) -> None:
    """Write the page of one real reset out of a run's journals.

    Args:
        path: the file to write.
        journals: the run.
        reset_id: which reset; without it, the one with the most requests in flight.

    Raises:
        UsageError: there is no such reset in this run.
        JournalError: the journals lack what the story needs, or the file cannot be written.
    """
    story = recorded_story(journals, reset_id)
    manifest = journals.manifest
    began = datetime.fromisoformat(manifest.started_utc)
    lead = f"A run that began at {began:%Y-%m-%d %H:%M:%S} UTC, replayed from its journals."
    _write(path, LIFE_TITLE, lead, [story])


def pool_story(story: Story) -> dict[str, Any]:
    """A story with its recorded traces, as the page reads it."""
    traces = [record(lane.make(), lane.scenes) for lane in story.lanes]
    return {
        "id": story.id,
        "title": story.title,
        "lead": story.lead,
        "lanes": [
            {"id": lane.id, "label": lane.label, "steps": fold(trace)}
            for lane, trace in zip(story.lanes, traces, strict=True)
        ],
        "frames": frames(traces),
    }


def fold(trace: list[Step]) -> list[dict[str, Any]]:
    """Steps in the page's short form; of each state only what differs from the one before."""
    folded = []
    before: dict[str, Any] = {}
    for step in trace:
        folded.append(
            {
                "d": {key: value for key, value in step.state.items() if before.get(key) != value},
                "s": step.scene,
                "w": step.words,
                "y": step.why,
                "c": [[change.words, change.keys] for change in step.changes],
                "l": step.lines,
                "g": step.log,
            }
        )
        before = step.state
    return folded


def frames(traces: list[list[Step]]) -> list[list[int]]:
    """Which step each lane stands at, moment by moment, when lanes play side by side.

    Scenes begin together: a lane that is through with a scene waits for the others.
    """
    moments: list[list[int]] = []
    for scene in range(max(trace[-1].scene for trace in traces) + 1):
        indices = [[i for i, step in enumerate(trace) if step.scene == scene] for trace in traces]
        last = moments[-1] if moments else [0] * len(traces)
        moments.extend(
            [
                found[min(n, len(found) - 1)] if found else last[lane]
                for lane, found in enumerate(indices)
            ]
            for n in range(max(len(found) for found in indices))
        )
    return moments


def highlight(source: Source) -> str:
    """A function's text as HTML: one span a line, with its line number in the file."""
    text = textwrap.dedent(source.text)
    marks: list[list[tuple[int, int, str]]] = [[] for _ in text.splitlines()]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        kind = _kind(token)
        for row in range(token.start[0], token.end[0] + 1) if kind else ():
            first = token.start[1] if row == token.start[0] else 0
            last = token.end[1] if row == token.end[0] else len(text.splitlines()[row - 1])
            marks[row - 1].append((first, last, kind))
    lines = []
    for number, (line, spans) in enumerate(zip(text.splitlines(), marks, strict=True)):
        body = line.lstrip()
        indent = len(line) - len(body)
        colored = _colored(line, indent, spans) or "&nbsp;"
        lines.append(
            f'<span data-line="{source.first_line + number}" style="--indent:{indent}ch">'
            f"{colored}</span>"
        )
    return "<pre>" + "".join(lines) + "</pre>"


def _colored(line: str, start: int, spans: list[tuple[int, int, str]]) -> str:
    parts = []
    at = start
    for first, last, kind in spans:
        parts.append(html.escape(line[at:first]))
        text = html.escape(line[max(first, at) : last])
        parts.append(f'<b class="{kind}">{text}</b>')
        at = last
    return "".join(parts) + html.escape(line[at:])


def _kind(token: tokenize.TokenInfo) -> str:
    if token.type == tokenize.COMMENT:
        return "r"
    if token.type == tokenize.STRING:
        return "s"
    if token.type == tokenize.NAME and keyword.iskeyword(token.string):
        return "k"
    return ""


def _write(path: Path, title: str, lead: str, stories: list[dict[str, Any]]) -> None:
    shown = {name for story in stories for lane in story["lanes"] for name in _named(lane)}
    templates = "".join(
        f'<template id="source-{name}">{highlight(source)}</template>'
        for name, source in sources().items()
        if name in shown
    )
    traces = json.dumps({"stories": stories}, separators=(",", ":"), ensure_ascii=False)
    parts = {
        "TITLE": html.escape(title),
        "LEAD": html.escape(lead),
        "STYLE": _asset("page.css"),
        "SOURCES": templates,
        "TRACES": traces.replace("<", "\\u003c"),
        "SCRIPT": "".join(_asset(name) for name in ("pool.js", "life.js", "player.js")),
    }
    page = _asset("page.html")
    for name, text in parts.items():
        page = page.replace(f"@@{name}@@", text)
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise JournalError(
            f"Cannot write the page to {path}: {error.strerror}. Choose another --out."
        ) from error


def _named(lane: dict[str, Any]) -> set[str]:
    return {name for step in lane["steps"] for name, _ in step["l"]}


def _asset(name: str) -> str:
    return (files("harness.explain") / "assets" / name).read_text(encoding="utf-8")
