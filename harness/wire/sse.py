"""Bytes -> server-sent events, as the WHATWG HTML standard parses an event stream (section 9.2.6).

Pure: reads in, events out, the same however the bytes were split into reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

Read = tuple[float, bytes]
"""When some bytes arrived (seconds, ``time.perf_counter``), and the bytes."""

Event = tuple[float, bytes]
"""When an event's data was there in full, and the data, its lines joined by a line feed."""

_BOM: Final = b"\xef\xbb\xbf"

# bytes.splitlines ends lines at \n, \r and \r\n only. That of str would also break at U+2028 and
# \x85, which are text.

# Bytes after which nothing is pending: a blank line, and no \r that a \n could still join.
_CLEAN_ENDS: Final = (b"\n\n", b"\n\r\n")

_STRETCH: Final = 64
"""Reads looked at together."""


def events(reads: Iterable[Read]) -> Iterator[Event]:
    """Events of a stream, in order.

    An event's stamp is that of the read which brought the last byte of its (last) ``data`` line,
    before the line's end: with it the token is in the client's hands, and the newlines after it
    are framing, which a server may send later. Comments and the fields ``event``, ``id`` and
    ``retry`` are passed over. An event that the stream's end cuts short, its blank line missing,
    is dropped, as the standard says.
    """
    left = iter(reads)
    pending: list[Read] = []
    at_start = True
    while stretch := list(islice(left, _STRETCH)):
        pending += stretch
        if not stretch[-1][1].endswith(_CLEAN_ENDS):
            continue
        yield from _one_each(pending) or _parse(pending, at_start)
        pending = []
        at_start = False
    yield from _parse(pending, at_start)


def _one_each(reads: list[Read]) -> Iterator[Event] | None:
    """Events of reads that are a ``data: `` line and a blank one each, as nearly all are.

    None if any is something else.
    """
    stamps, pieces = zip(*reads, strict=True)
    body = b"".join(pieces)
    values = body[6:-2].split(b"\n\ndata: ")
    if (
        [6 + len(value) + 2 for value in values] == [len(piece) for piece in pieces]
        and body.startswith(b"data: ")
        and body.endswith(b"\n\n")
        and body.count(b"\n") == 2 * len(values)
        and b"\r" not in body
    ):
        return zip(stamps, values, strict=True)
    return None


def _parse(reads: list[Read], at_start: bool) -> Iterator[Event]:
    """Events of reads that begin where an event may begin."""
    body = b"".join([data for _, data in reads])
    position = len(_BOM) if at_start and body.startswith(_BOM) else 0
    arrivals = iter(reads)
    stamp, arrived = 0.0, 0
    values: list[bytes] = []
    end = 0
    for line in body[position:].splitlines(keepends=True):
        text = line.rstrip(b"\r\n")
        if text.startswith(b"data:") or text == b"data":
            values.append(text[5:].removeprefix(b" "))
            end = position + len(text)
        elif not text and values:
            while arrived < end:
                stamp, data = next(arrivals)
                arrived += len(data)
            yield stamp, b"\n".join(values)
            values = []
        position += len(line)
