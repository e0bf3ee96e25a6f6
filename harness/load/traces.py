"""Recorded traces: when requests came, how long they were, and which blocks they shared.

A trace is read once and kept, so that the plan and what is sent come from the same bytes.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import msgspec

from harness.errors import UsageError

BLOCK = 512
"""Tokens that one of Mooncake's ``hash_ids`` stands for; a prompt's last block may be shorter."""
CHARACTERS_PER_TOKEN = 4
"""What an answer of ShareGPT counts as, since its length in tokens is not recorded."""
NAMED = 5
"""How many bad rows a message names."""


class TraceFormat(StrEnum):
    """How a trace is written."""

    MOONCAKE = "mooncake"
    """JSON lines: ``timestamp`` (ms), ``input_length``, ``output_length``, ``hash_ids``."""
    AZURE = "azure"
    """CSV: ``TIMESTAMP`` (date and time), ``ContextTokens``, ``GeneratedTokens``."""
    BURSTGPT = "burstgpt"
    """CSV: ``Timestamp`` (s), ``Request tokens``, ``Response tokens``; other columns are unread."""
    SHAREGPT = "sharegpt"
    """A JSON list of ``conversations[].value``: texts without instants."""
    INSTANTS = "instants"
    """One number a line: seconds."""


class TraceSpec(msgspec.Struct, frozen=True):
    """Which part of which trace is used."""

    file: str | None = None
    """A relative path in a scenario counts from its folder, one of ``--trace`` from here."""
    format: TraceFormat = TraceFormat.MOONCAKE
    window: tuple[float, float] | None = None
    """Half-open stretch of the trace in seconds since its first row; None is all of it."""
    bad_share: float = 0.01
    """Share of rows that may fail to parse before the trace is refused."""


class Row(NamedTuple):
    """One request of a trace; None where the format does not tell."""

    at: float = 0.0
    """Seconds since the window's begin; 0 in a format without instants."""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    blocks: tuple[int, ...] = ()
    """Hash ids of its blocks of 512 tokens: equal ids are equal tokens."""
    text: str | None = None


class BadRow(NamedTuple):
    """A row that does not parse."""

    place: str
    """``line 7``, or ``entry 7`` of a JSON list."""
    reason: str


class Trace(NamedTuple):
    """The rows of a trace's window, by instant, and what was left out of the whole file."""

    rows: tuple[Row, ...]
    span: float
    """Seconds of the window; without one, up to the last row. 0 in a format without instants."""
    bad: tuple[BadRow, ...]
    unanswered: int
    """Rows that parse but record no prompt or no answer, so that there is nothing to ask for."""

    @property
    def rate(self) -> float:
        """Mean requests a second over the window, as recorded."""
        return len(self.rows) / self.span


class _Unanswered(Exception):
    pass


_UNREADABLE = (ValueError, OverflowError, RecursionError, msgspec.DecodeError)


@lru_cache(maxsize=4)
def read_trace(spec: TraceSpec) -> Trace:
    """The window of the trace that ``spec`` names.

    Raises:
        UsageError: the file cannot be read or lacks a column, more than ``bad_share`` of its rows
            do not parse, or the window is empty.
    """
    assert spec.file is not None  # checked with the scenario
    rows: list[Row] = []
    bad: list[BadRow] = []
    unanswered = 0
    for place, parsed in _parsed(Path(spec.file), spec.format):
        if isinstance(parsed, Row):
            rows.append(parsed)
        elif isinstance(parsed, _Unanswered):
            unanswered += 1
        else:
            bad.append(BadRow(place, str(parsed)))
    read = len(rows) + len(bad) + unanswered
    if len(bad) > spec.bad_share * read:
        raise UsageError(
            f"trace {spec.file}: {len(bad):,} of {read:,} rows do not parse as {spec.format} "
            f"({named(bad)}). Mend the file, correct --trace-format, or raise trace.bad_share."
        )
    if not rows:
        raise UsageError(f"trace {spec.file} has no usable row; give another file.")
    kept, span = _in_window(rows, spec)
    return Trace(kept, span, tuple(bad), unanswered)


def named(bad: Sequence[BadRow]) -> str:
    """The first bad rows by place, with the first one's reason."""
    places = ", ".join(row.place for row in islice(bad, NAMED))
    more = f" and {len(bad) - NAMED:,} more" if len(bad) > NAMED else ""
    first = "; the first" if len(bad) > 1 else ""
    return f"{places}{more}{first}: {bad[0].reason}"


def _in_window(rows: list[Row], spec: TraceSpec) -> tuple[tuple[Row, ...], float]:
    if spec.format is TraceFormat.SHAREGPT:
        return tuple(rows), 0.0
    rows.sort(key=lambda row: row.at)
    zero = rows[0].at
    begin, end = spec.window or (0.0, rows[-1].at - zero)
    span = end - begin
    if span <= 0:
        raise UsageError(f"trace {spec.file}: all rows have one instant; it tells no rate.")
    last = math.inf if spec.window is None else end
    kept = tuple(
        row._replace(at=row.at - zero - begin) for row in rows if begin <= row.at - zero < last
    )
    if not kept:
        raise UsageError(
            f"trace {spec.file} has no row in trace.window [{begin:g}, {end:g}); it is "
            f"{rows[-1].at - zero:g} s long."
        )
    return kept, span


Parsed = Row | Exception


def _parsed(file: Path, kind: TraceFormat) -> Iterator[tuple[str, Parsed]]:
    try:
        match kind:
            case TraceFormat.MOONCAKE:
                yield from _lines(file, _mooncake)
            case TraceFormat.INSTANTS:
                yield from _lines(file, _instant)
            case TraceFormat.AZURE:
                yield from _csv(file, ("TIMESTAMP", "ContextTokens", "GeneratedTokens"), _when)
            case TraceFormat.BURSTGPT:
                yield from _csv(file, ("Timestamp", "Request tokens", "Response tokens"), float)
            case TraceFormat.SHAREGPT:
                yield from _conversations(file)
    except OSError as error:
        raise UsageError(
            f"trace {file}: {error.strerror}. A relative path in a scenario counts from its folder."
        ) from None


def _try(parse: Callable[..., Row], *arguments: object) -> Parsed:
    """What ``parse(*arguments)`` makes of a row, or why it makes nothing."""
    try:
        return parse(*arguments)
    except (*_UNREADABLE, _Unanswered) as error:
        return error


def _lines(file: Path, parse: Callable[[bytes], Row]) -> Iterator[tuple[str, Parsed]]:
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield f"line {number}", _try(parse, line)


def _csv(
    file: Path, columns: tuple[str, str, str], instant: Callable[[str], float]
) -> Iterator[tuple[str, Parsed]]:
    with file.open(encoding="utf-8-sig", errors="replace", newline="") as lines:
        reader = csv.reader(lines)
        try:
            header = [name.strip() for name in next(reader, [])]
            missing = [name for name in columns if name not in header]
            if missing:
                raise UsageError(
                    f"trace {file} has no column {missing[0]!r}; its first line names "
                    f"{', '.join(header) or 'nothing'}. Correct --trace-format."
                )
            places = [header.index(name) for name in columns]
            for cells in reader:
                if cells:
                    yield f"line {reader.line_num}", _try(_sized, cells, places, instant)
        except csv.Error as error:
            raise UsageError(f"trace {file}, line {reader.line_num}: {error}.") from None


def _sized(cells: list[str], places: list[int], instant: Callable[[str], float]) -> Row:
    if len(cells) <= max(places):
        raise ValueError(f"only {len(cells)} cells")
    when, prompt, output = (cells[place].strip() for place in places)
    return _row(instant(when), int(prompt), int(output))


def _row(at: float, prompt: int, output: int, blocks: tuple[int, ...] = ()) -> Row:
    if not math.isfinite(at):
        raise ValueError(f"instant {at}")
    if prompt < 0 or output < 0:
        raise ValueError(f"{prompt} and {output} tokens")
    if prompt == 0 or output == 0:
        raise _Unanswered
    return Row(at, prompt, output, blocks)


def _when(text: str) -> float:
    """A date and time, UTC unless it says otherwise, as seconds since 1970."""
    when = datetime.fromisoformat(text)
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def _instant(line: bytes) -> Row:
    at = float(line)
    if not math.isfinite(at):
        raise ValueError(f"instant {at}")
    return Row(at)


class _Mooncake(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


_decode_mooncake = msgspec.json.Decoder(_Mooncake).decode


def _mooncake(line: bytes) -> Row:
    told = _decode_mooncake(line)
    needed = math.ceil(told.input_length / BLOCK)
    if len(told.hash_ids) != needed:
        raise ValueError(
            f"{len(told.hash_ids)} hash_ids for input_length {told.input_length}; "
            f"blocks of {BLOCK} tokens make {needed}"
        )
    if any(block < 0 for block in told.hash_ids):
        raise ValueError("a negative hash id")
    return _row(told.timestamp / 1000, told.input_length, told.output_length, told.hash_ids)


class _Turn(msgspec.Struct):
    value: str


class _Conversation(msgspec.Struct):
    conversations: list[_Turn]


_decode_conversation = msgspec.json.Decoder(_Conversation).decode


def _conversations(file: Path) -> Iterator[tuple[str, Parsed]]:
    try:
        entries = msgspec.json.decode(file.read_bytes(), type=list[msgspec.Raw])
    except _UNREADABLE as error:
        raise UsageError(
            f"trace {file} is no JSON list: {error}. Correct --trace-format."
        ) from None
    for number, entry in enumerate(entries, 1):
        yield f"entry {number}", _try(_exchange, entry)


def _exchange(entry: msgspec.Raw) -> Row:
    """The first exchange of a conversation: what is asked, and how long the answer was."""
    turns = [turn.value for turn in _decode_conversation(entry).conversations[:2]]
    if len(turns) < 2 or not all(turns):
        raise _Unanswered
    asked, answer = turns
    return Row(text=asked, output_tokens=max(1, len(answer) // CHARACTERS_PER_TOKEN))
