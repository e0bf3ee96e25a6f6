"""Server-sent events: the standard's parsing, whatever the reads."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.wire.sse import Read, events

BOM = b"\xef\xbb\xbf"


def datas(stream: bytes) -> list[bytes]:
    return [data for _, data in events([(0.0, stream)])]


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"", []),
        (b"data: a\n\n", [b"a"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a \n\n", [b" a "]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
        (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
        (b"data: a\r\n\ndata: b\n\r\ndata: c\r\r\n", [b"a", b"b", b"c"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"data: a\rdata: b\n\n", [b"a\nb"]),
        (b"data\n\n", [b""]),
        (b"data:\n\ndata: \n\n", [b"", b""]),
        (b"data: a\n\n\n\n\ndata: b\n\n", [b"a", b"b"]),
        (b": ping\n\nevent: token\nid: 7\nretry: 10\ndata: a\n\n", [b"a"]),
        (b"event: only\n\ndata: a\n\n", [b"a"]),
        (b"datum: a\n\n data: b\n\ndata : c\n\n", []),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"data: a\n\n\xef\xbb\xbfdata: b\n\n", [b"a"]),
        (b"data: a\n\ndata: cut\n", [b"a"]),
        (b"data: a\n\ndata: cut", [b"a"]),
        (b"data: nul\x00 \xff\n\n", [b"nul\x00 \xff"]),
    ],
)
def test_streams_of_the_standard(stream: bytes, expected: list[bytes]) -> None:
    assert datas(stream) == expected


def test_a_megabyte_in_one_line() -> None:
    assert datas(b"data: " + b"x" * 1_000_000 + b"\n\n") == [b"x" * 1_000_000]


def test_the_stamp_is_that_of_the_last_byte_of_data_not_of_the_framing() -> None:
    reads = [(1.0, b"data: he"), (2.0, b"llo"), (3.0, b"\n"), (4.0, b"\ndata: x\n\ndata"),
             (5.0, b": y"), (6.0, b"\n\n")]  # fmt: skip
    assert list(events(reads)) == [(2.0, b"hello"), (4.0, b"x"), (5.0, b"y")]


def test_a_byte_order_mark_is_passed_over_at_the_very_start_only() -> None:
    assert list(events([(1.0, BOM), (2.0, b"data: a\n\n"), (3.0, BOM + b"data: b\n\n")])) == [
        (2.0, b"a")
    ]


def test_several_events_in_one_read_share_its_stamp() -> None:
    reads = [(1.0, b"data: a\n\ndata: b\n\n"), (2.0, b"data: c\n\n")]
    assert list(events(reads)) == [(1.0, b"a"), (1.0, b"b"), (2.0, b"c")]


LINES = st.sampled_from(
    [b"", b"", b"data: a", b"data:b", b"data", b"data:  ", b": ping", b"event: x", BOM + b"data: c",
     "data: \u2028\x85".encode(), b"data: \x0b\x0c", b"nothing"]
)  # fmt: skip
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
STREAMS = st.lists(st.tuples(LINES, ENDS).map(b"".join), max_size=16).map(b"".join)


def by_the_standard(stream: bytes) -> list[tuple[int, bytes]]:
    """Each event's data with the offset just after its last data line, a byte at a time."""
    start = 3 if stream.startswith(b"\xef\xbb\xbf") else 0
    found: list[tuple[int, bytes]] = []
    line, values, end, position = b"", [], 0, start
    while position < len(stream):
        sign = stream[position : position + 1]
        if sign not in (b"\r", b"\n"):
            line += sign
            position += 1
            continue
        line_end = position
        position += 2 if stream[position : position + 2] == b"\r\n" else 1
        name, colon, value = line.partition(b":")
        if not line:
            if values:
                found.append((end, b"\n".join(values)))
            values = []
        elif name == b"data":
            values.append(value.removeprefix(b" ") if colon else b"")
            end = line_end
        line = b""
    return found


@given(stream=STREAMS, cuts=st.lists(st.integers(0, 300), max_size=12))
def test_any_split_gives_the_events_and_stamps_of_the_standard(
    stream: bytes, cuts: list[int]
) -> None:
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    assert_events_of_the_standard(stream, edges)


WHOLE = b"data: a\n\n"
READS = st.sampled_from(
    [WHOLE, WHOLE, b"data: \n\n", b"data: b\n", b"\ndata: c\n\n", b"\n", b"data:d\n\n", b"data: ",
     b"data: e\r\n\r\n", b"data: f\rdata: g\n\n", BOM + b"data: h\n\n", b": ping\n\n", b"i\n\nda",
     b"ta: j\n\n", b"x data: k\n\n", b"data: l\n\ndata: m\n\n"]
)  # fmt: skip


@given(whole=st.sampled_from([0, 1, 63, 64, 65]), others=st.lists(READS, max_size=12))
def test_whole_events_one_a_read_and_odd_ones_among_them(whole: int, others: list[bytes]) -> None:
    reads = [WHOLE] * whole + others
    assert_events_of_the_standard(b"".join(reads), [0, *accumulate(map(len, reads))])


def assert_events_of_the_standard(stream: bytes, edges: list[int]) -> None:
    reads: list[Read] = [(float(end), stream[start:end]) for start, end in pairwise(edges)]
    expected = [
        (float(next(edge for edge in edges[1:] if edge >= end)), data)
        for end, data in by_the_standard(stream)
    ]
    assert list(events(reads)) == expected


@given(stream=STREAMS)
def test_a_byte_at_a_time(stream: bytes) -> None:
    reads = [(float(index), bytes([byte])) for index, byte in enumerate(stream)]
    assert list(events(reads)) == [(end - 1.0, data) for end, data in by_the_standard(stream)]
