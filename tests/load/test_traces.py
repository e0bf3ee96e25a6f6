"""Traces: each format as it is published, windows, and rows that do not parse."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.load.traces import BLOCK, Row, Trace, TraceFormat, TraceSpec, read_trace

TRACES = Path(__file__).with_name("traces")
MOONCAKE, AZURE, BURSTGPT, SHAREGPT, INSTANTS = TraceFormat


def read(file: Path, kind: TraceFormat, **more: object) -> Trace:
    return read_trace(TraceSpec(str(file), kind, **more))


@pytest.fixture
def written(tmp_path: Path):
    def write(text: str, kind: TraceFormat, **more: object) -> Trace:
        file = tmp_path / "trace"
        file.write_text(text)
        read_trace.cache_clear()
        return read(file, kind, **more)

    return write


def test_mooncake_rows_keep_their_hash_ids_and_count_from_the_first() -> None:
    trace = read(TRACES / "mooncake.jsonl", MOONCAKE)
    assert len(trace.rows) == 48
    assert trace.rows[0].at == 0
    assert trace.span == trace.rows[-1].at == pytest.approx(27, rel=0.2)
    assert all(len(row.blocks) == -(-row.prompt_tokens // BLOCK) for row in trace.rows)
    assert trace.rate == pytest.approx(48 / trace.span)


def test_azure_instants_have_seven_digits() -> None:
    rows = read(TRACES / "azure.csv", AZURE).rows
    assert [row[1:3] for row in rows] == [(374, 44), (396, 109), (879, 55), (91, 16)]
    assert [row.at for row in rows] == pytest.approx([0, 0.051997, 0.8, 2.12004], abs=2e-6)


def test_azure_instants_may_name_their_zone(written) -> None:
    head = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    rows = "2024-05-10 00:00:00.009930+00:00,10,2\n2024-05-10 00:00:01,11,3\n"
    assert written(head + rows, AZURE).rows[1].at == pytest.approx(0.99007)


def test_burstgpt_leaves_out_what_was_not_answered() -> None:
    trace = read(TRACES / "burstgpt.csv", BURSTGPT)
    assert trace.rows == (Row(0, 472, 18), Row(40, 1087, 230), Row(113, 417, 276))
    assert (trace.unanswered, trace.bad) == (1, ())


def test_sharegpt_rows_are_first_exchanges() -> None:
    trace = read(TRACES / "sharegpt.json", SHAREGPT)
    assert [row.text for row in trace.rows] == [
        "Name three rivers of Europe.",
        "Name three rivers of Africa.",
    ]
    assert trace.rows[0].output_tokens == len("The Danube, the Rhine and the Volga.") // 4
    assert trace.unanswered == 1


def test_instants_are_sorted_and_count_from_the_first(written) -> None:
    trace = written("12.5\n10\n\n11\n", INSTANTS)
    assert [row.at for row in trace.rows] == [0, 1, 2.5]


def test_a_window_is_half_open_and_counts_from_its_begin() -> None:
    trace = read(TRACES / "burstgpt.csv", BURSTGPT, window=(40.0, 113.0))
    assert [row.at for row in trace.rows] == [0.0]
    assert trace.span == 73
    wider = read(TRACES / "burstgpt.csv", BURSTGPT, window=(30.0, 114.0))
    assert [row.at for row in wider.rows] == [10.0, 83.0]
    assert wider.rate == pytest.approx(2 / 84)


GOOD = '{"timestamp": 1, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]}\n'


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("{torn", "malformed"),
        ('{"timestamp": 1, "input_length": 600, "output_length": 2}', "hash_ids"),
        (GOOD.replace("[1, 2]", "[1]").strip(), "1 hash_ids for input_length 600"),
        (GOOD.replace("[1, 2]", "[1, -2]").strip(), "negative hash id"),
        (GOOD.replace("600", "-600").strip(), "0 hash_ids|blocks of 512"),
        (GOOD.replace('"timestamp": 1', '"timestamp": "noon"').strip(), "Expected `float`"),
        ("\x00", "malformed"),
        ('{"deep": ' + "[" * 100_000, "recursion"),
    ],
)
def test_rows_that_do_not_parse_are_named_by_line(written, bad: str, reason: str) -> None:
    text = GOOD + bad + "\n" + GOOD.replace('"timestamp": 1,', '"timestamp": 9,')
    with pytest.raises(UsageError, match=rf"1 of 3 rows do not parse .*line 2.*({reason})"):
        written(text, MOONCAKE)
    trace = written(text, MOONCAKE, bad_share=0.5)
    assert [row.place for row in trace.bad] == ["line 2"]
    assert len(trace.rows) == 2


def test_only_the_first_bad_rows_are_named(written) -> None:
    with pytest.raises(UsageError, match="line 1, line 2, line 3, line 4, line 5 and 2 more"):
        written("x\n" * 7, INSTANTS)


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("a,b\n1,2\n", AZURE, "no column 'TIMESTAMP'; its first line names a, b"),
        ("", BURSTGPT, "no column 'Timestamp'; its first line names nothing"),
        ("{}", SHAREGPT, "no JSON list"),
        ("[]", SHAREGPT, "no usable row"),
        ("", INSTANTS, "no usable row"),
        ("1\n1\n", INSTANTS, "all rows have one instant"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nnow,1,1\n", AZURE, "line 2: Invalid isoformat"),
        ("Timestamp,Request tokens,Response tokens\n1,2\n", BURSTGPT, "only 2 cells"),
        ("nan\n", INSTANTS, "instant nan"),
        ('[{"conversations": [{"value": 4}]}]', SHAREGPT, "entry 1"),
    ],
)
def test_what_is_no_such_trace_is_refused(written, text, kind, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        written(text, kind)


def test_a_window_without_rows_says_how_long_the_trace_is() -> None:
    with pytest.raises(UsageError, match=r"no row in trace.window \[200, 300\); it is 113 s long"):
        read(TRACES / "burstgpt.csv", BURSTGPT, window=(200.0, 300.0))


def test_a_missing_trace_is_named() -> None:
    with pytest.raises(UsageError, match=r"none\.csv: No such file"):
        read(TRACES / "none.csv", AZURE)


@settings(deadline=None)
@given(st.text(), st.sampled_from(TraceFormat))
def test_no_text_makes_a_traceback(tmp_path_factory, text: str, kind: TraceFormat) -> None:
    file = tmp_path_factory.getbasetemp() / "any"
    file.write_text(text, encoding="utf-8")
    read_trace.cache_clear()
    try:
        trace = read(file, kind, bad_share=1.0)
    except UsageError:
        return
    assert trace.rows
