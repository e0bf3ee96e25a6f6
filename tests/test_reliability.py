"""docs/reliability.md has a row for every fault, no empty cell, and names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "reliability.md").read_text()
FAULTS = {
    "connection refused",
    "reset before headers",
    "reset in mid-body",
    "half-open silence",
    "a stall in mid-stream",
    "headers one byte at a time",
    "chunk boundaries at every byte",
    "chunk sizes wrong",
    "gzip although not asked",
    "a megabyte line",
    "NUL and invalid UTF-8",
    "U+2028 in text",
    "`\\r\\n` and `\\n` mixed",
    "comments and `event:` lines in SSE",
    "empty deltas",
    "no `[DONE]`",
    "`[DONE]` twice",
    "error object in mid-stream",
    "usage before or without the end",
    "200 with an HTML page",
    "3xx",
    "401, 404, 413",
    "429 with Retry-After",
    "500, 503 with a body",
    "every request 10 times slower for a while",
    "`/metrics` hangs",
    "`/metrics` vanishes",
    "`/metrics` grows to 10 MB",
    "`/metrics` changes names",
    "`/reset_prefix_cache` hangs",
    "`/reset_prefix_cache` answers late",
    "`/reset_prefix_cache` answers twice",
    "`/reset_prefix_cache` answers 500",
    "kill -9 of the replica",
    "-STOP of the replica",
    "-CONT of the replica within `give_up`",
    "kill -9 of its engine process",
    "-STOP of its engine process",
    "-CONT of its engine process",
    "the replica out of memory",
    "disk full",
    "the run folder deleted in mid-run",
    "the wall clock set back an hour",
    "file-descriptor limit reached",
    "2,000 connections at once",
    "a signal while a replica of our own starts",
    "a signal while the server is examined",
    "a signal while the cache is primed",
    "a signal while load is sent",
    "a signal in the drain",
    "a signal at the last scrape",
    "a signal while the report is made",
    "a signal between the runs of an experiment",
}


def rows() -> list[list[str]]:
    """Cells of every row of the page's tables but their heads and the table of timeouts."""
    _, _, page = PAGE.partition("\n## Requests\n")
    lines = [line for line in page.splitlines() if line.startswith("|")]
    bodies = [line for line in lines if not re.match(r"\|(---|.*\| test \|$)", line)]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in bodies]


def test_every_fault_has_a_row() -> None:
    assert FAULTS - {row[0] for row in rows()} == set()


def test_no_cell_is_empty_and_every_row_names_a_test() -> None:
    for row in rows():
        assert all(row), row
        assert "::test_" in row[-1], row


def test_every_test_on_the_page_exists() -> None:
    named = set(re.findall(r"`([\w/]+\.py)::(test_\w+)`", PAGE))
    assert len(named) > 40
    for file, name in named:
        assert re.search(rf"^(?:async )?def {name}\(", (TESTS / file).read_text(), re.M), name
