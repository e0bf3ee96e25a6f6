"""Bytes -> server-sent events, as the WHATWG HTML standard parses an event stream (section 9.2.6).

Pure: reads in, events out, the same however the bytes were split into reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

Read = tuple[float, bytes]
"""When some bytes arrived (seconds, ``time.perf_counter``), and the bytes."""

Event = tuple[float, bytes]
"""When an event's data was there in full, and the data, its lines joined by a line feed."""

_BOM: Final = b"\xef\xbb\xbf"

# Nearly every read of a stream is one whole event like this; it also needs to be free of \r.
_ONE_EVENT: Final = re.compile(rb"data: (.*)\n\n")

# Only these end a line. str.splitlines and its kin also break at U+2028 and \x85, which are text.
_LINE: Final = re.compile(rb"([^\r\n]*)(?:\r\n|\n|\r)")

# Bytes after which nothing is pending: a blank line, and no \r that a \n could still join.
_CLEAN_ENDS: Final = (b"\n\n", b"\n\r\n")


def events(reads: Sequence[Read]) -> Iterator[Event]:
    """Events of a stream, in order.

    An event's stamp is that of the read which brought the last byte of its (last) ``data`` line,
    before the line's end: with it the token is in the client's hands, and the newlines after it
    are framing, which a server may send later. Comments and the fields ``event``, ``id`` and
    ``retry`` are passed over. An event that the stream's end cuts short, its blank line missing,
    is dropped, as the standard says.
    """
    pending: list[Read] = []
    skip_bom = True
    for read in reads:
        stamp, data = read
        one = None if pending else _ONE_EVENT.fullmatch(data)
        if one is not None and data.find(b"\r") < 0:
            yield stamp, one[1]
        else:
            pending.append(read)
            if not data.endswith(_CLEAN_ENDS):
                continue
            yield from _parse(pending, skip_bom)
            pending.clear()
        skip_bom = False
    yield from _parse(pending, skip_bom)


def _parse(reads: Sequence[Read], skip_bom: bool) -> Iterator[Event]:
    """Events of reads that begin where an event may begin."""
    body = b"".join([data for _, data in reads])
    arrivals = iter(reads)
    stamp, arrived = 0.0, 0
    values: list[bytes] = []
    end = 0
    for match in _LINE.finditer(body, len(_BOM) if skip_bom and body.startswith(_BOM) else 0):
        line = match[1]
        if line.startswith(b"data:"):
            values.append(line[6:] if line.startswith(b" ", 5) else line[5:])
            end = match.end(1)
        elif line == b"data":
            values.append(b"")
            end = match.end(1)
        elif not line and values:
            while arrived < end:
                stamp, data = next(arrivals)
                arrived += len(data)
            yield stamp, b"\n".join(values)
            values = []
