"""Bytes -> server-sent events, as the WHATWG HTML standard parses an event stream (section 9.2.6).

Pure: reads in, events out, the same however the bytes were split into reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

_BOM: Final = b"\xef\xbb\xbf"

# Only these end a line. str.splitlines and its kin also break at U+2028 and \x85, which are text.
_LINE: Final = re.compile(rb"([^\r\n]*)(?:\r\n|\n|\r)")


class Event(NamedTuple):
    """One event: when its data was there in full, and the data, its lines joined by a line feed."""

    stamp: float
    data: bytes


def events(reads: Sequence[tuple[float, bytes]]) -> Iterator[Event]:
    """Events of a stream read as ``(stamp, bytes)``, in order.

    An event's stamp is that of the read which brought the last byte of its (last) ``data`` line,
    before the line's end: with it the token is in the client's hands, and the newlines after it
    are framing, which a server may send later. Comments and the fields ``event``, ``id`` and
    ``retry`` are passed over. An event that the stream's end cuts short, its blank line missing,
    is dropped, as the standard says.
    """
    body = b"".join([data for _, data in reads])
    arrivals = iter(reads)
    stamp, arrived = 0.0, 0
    values: list[bytes] = []
    end = 0
    for match in _LINE.finditer(body, len(_BOM) if body.startswith(_BOM) else 0):
        line = match[1]
        if line.startswith(b"data:"):
            values.append(line[6:] if line.startswith(b" ", 5) else line[5:])
            end = match.end(1)
        elif line == b"data":
            values.append(b"")
            end = match.end(1)
        elif not line and values:
            while arrived < end:
                stamp, read = next(arrivals)
                arrived += len(read)
            yield Event(stamp, b"\n".join(values))
            values = []
