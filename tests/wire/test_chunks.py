"""Chunks: what counts as generated, and what a stream said of itself."""

from __future__ import annotations

import json

import pytest

from harness.wire.chunks import SLICE, Answer, error_text

from .conftest import delta, event, text, usage


def read(*documents: object) -> Answer:
    """Each document in a read of its own, stamped 1.0, 2.0, ..."""
    answer = Answer()
    for _ in answer.read([(n + 1.0, event(document)) for n, document in enumerate(documents)]):
        pass
    return answer


CALL = {"index": 0, "id": "call", "type": "function"}


@pytest.mark.parametrize(
    "chunk",
    [
        text(" word"),
        text("\u2028"),
        text(" "),
        text("", token_ids=[17]),
        text(None, token_ids=[17]),
        delta(content="word"),
        delta(role="assistant", content="word"),
        delta(reasoning="thus"),
        delta(reasoning_content="thus"),
        delta(tool_calls=[CALL | {"function": {"name": "weather", "arguments": ""}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": '{"'}}]),
        text(" last", finish="stop"),
    ],
)
def test_generated_content(chunk: object) -> None:
    assert read(chunk).token_times == [1.0]


@pytest.mark.parametrize(
    "chunk",
    [
        {},
        {"choices": []},
        {"choices": None},
        text(""),
        text(None),
        text("", token_ids=[]),
        text("", finish="stop"),
        delta(role="assistant"),
        delta(role="assistant", content=""),
        delta(content=None, reasoning=None, tool_calls=None),
        delta(tool_calls=[]),
        delta(tool_calls=[CALL]),
        delta(tool_calls=[CALL | {"function": {"name": "", "arguments": ""}}]),
        {"choices": [{"index": 0, "delta": None}]},
        text("", prompt_token_ids=[1, 2, 3]),
        usage(),
        {"unknown": [1, {"a": None}]},
        "[DONE]",
    ],
)
def test_nothing_generated(chunk: object) -> None:
    answer = read(chunk)
    assert answer.token_times == []
    assert answer.nonsense is None
    assert answer.fault is None


def test_a_stream_as_vllm_sends_it() -> None:
    answer = read(
        text("", token_ids=[4]),
        text("", token_ids=[5, 6]),
        text("", finish="length", token_ids=[7]),
        usage(2000, 4, 1984),
        "[DONE]",
    )
    assert answer.token_times == [1.0, 2.0, 3.0]
    assert answer.tokens == 4
    assert answer.finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 2000
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 1984


def test_usage_may_come_with_every_chunk_or_before_the_end() -> None:
    answer = read({**text("a"), **usage(7, 1), "choices": text("a")["choices"]}, usage(7, 3),
                  text("b", finish="stop"))  # fmt: skip
    assert answer.token_times == [1.0, 3.0]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3


def test_done_twice_and_an_empty_event_are_harmless() -> None:
    answer = read(text("a", finish="stop"), "", "[DONE]", "[DONE]")
    assert answer.token_times == [1.0]
    assert answer.nonsense is None


@pytest.mark.parametrize(
    "data",
    [b"{", b"hello", b"[]", b"1", b'{"choices": 1}', b'{"choices": [{"text": 5}]}',
     b'{"choices": [{"text": "\xff"}]}', b'{"choices": [{"text": "\x00"}]}',
     b'{"usage": {"completion_tokens": "many"}}', b'{"a": ' * 100_000],
)  # fmt: skip
def test_nonsense_stops_the_reading_and_keeps_what_was_read(data: bytes) -> None:
    answer = Answer()
    reads = [(1.0, event(text("a"))), (2.0, b"data: " + data + b"\n\n"), (3.0, event(text("b")))]
    for _ in answer.read(reads):
        pass
    assert answer.token_times == [1.0]
    assert answer.nonsense is not None
    assert len(answer.nonsense) < 2500


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"error": {"message": "no memory", "type": "X", "code": 500}}, "no memory"),
        ({"error": "no memory"}, "no memory"),
        ({"object": "error", "message": "no memory", "type": "X", "code": 500}, "no memory"),
        ({"error": {"code": 7}}, '{"code":7}'),
        ({"error": {"message": {"message": "deep"}}}, "deep"),
    ],
)
def test_error_objects(document: dict[str, object], words: str) -> None:
    assert read(text("a"), document).fault == words
    assert error_text({"detail": "Not Found"}) == "Not Found"


def test_no_error_is_no_fault() -> None:
    assert read({**text("a"), "error": None}).fault is None


def test_long_streams_are_read_in_slices() -> None:
    reads = [(1.0, b"data: " + json.dumps(text("a")).encode() + b"\n\n")] * (3 * SLICE + 1)
    answer = Answer()
    seen = [len(answer.token_times) for _ in answer.read(reads)]
    assert len(seen) == 3
    assert max(b - a for a, b in zip([0, *seen], [*seen, 3 * SLICE + 1], strict=True)) <= SLICE + 1
    assert len(answer.token_times) == 3 * SLICE + 1
