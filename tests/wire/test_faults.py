"""Faults that other clients shipped, where they would show here: each with the right value."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from itertools import pairwise
from time import perf_counter

import pytest

from harness.records import Arrival, Outcome, RequestRecord
from harness.scenario import PromptForm, TimeoutSpec
from harness.wire.client import open_client
from harness.wire.completions import Completions

from .conftest import (
    LAST_CHUNK,
    SSE_HEAD,
    Authority,
    Peer,
    chunked,
    delta,
    event,
    once_all_ask,
    send,
    serving,
    text,
    usage,
)

pytestmark = pytest.mark.anyio

LATE = 0.15
"""How much later than said a shared machine may see a chunk."""


async def timed(
    *documents: tuple[float, object], form: PromptForm = PromptForm.CHAT
) -> RequestRecord:
    """The record of a stream whose documents are sent at these instants after its request."""
    asked = 0.0

    async def script(peer: Peer) -> None:
        nonlocal asked
        asked = perf_counter()
        await peer.say(SSE_HEAD)
        for instant, document in documents:
            await asyncio.sleep(max(0.0, asked + instant - perf_counter()))
            await peer.say(chunked(event(document)))
        await peer.say(LAST_CHUNK)

    async with serving(script) as server, open_client(TimeoutSpec()) as client:
        completions = Completions(
            client, server.url, model="m", form=form, ignore_eos=False, zero=0.0
        )
        record = await completions.send(Arrival(0, 0.0, 0, 9), "prompt")
    assert record.sent is not None
    return RequestRecord(
        **{name: getattr(record, name) for name in record.__struct_fields__}
        | {"token_times": tuple(stamp - asked for stamp in record.token_times)}
        | {"first_token": None if record.first_token is None else record.first_token - asked}
    )


async def test_fault_01_a_role_only_chunk_is_not_the_first_token() -> None:
    record = await timed(
        (0.10, delta(role="assistant", content="")),
        (0.45, delta(content="one")),
        (0.65, delta(content="two")),
        (0.90, delta(finish="stop")),
    )
    assert record.outcome is Outcome.OK
    assert record.first_token == pytest.approx(0.45, abs=LATE)
    assert record.token_times == pytest.approx((0.45, 0.65), abs=LATE)


@pytest.mark.parametrize(
    ("outcome", "words", "documents"),
    [
        (Outcome.STREAM_ERROR, "died", [text("a"), {"error": {"message": "died"}}, "[DONE]"]),
        (Outcome.STREAM_ERROR, "late", [text("a", finish="stop"), {"error": "late"}, "[DONE]"]),
        (Outcome.STREAM_ERROR, "too long", [{"error": {"message": "too long"}}]),
        (Outcome.TRUNCATED, "without a finish reason", [text("a"), text("b")]),
        (Outcome.TRUNCATED, "without a finish reason", [text("a"), usage(), "[DONE]"]),
        (Outcome.TRUNCATED, "without a finish reason", ["[DONE]"]),
    ],
)
async def test_fault_02_a_stream_that_fails_or_ends_early_is_no_success(
    outcome: Outcome, words: str, documents: list[object]
) -> None:
    async def script(peer: Peer) -> None:
        await peer.stream(*documents)

    async with serving(script) as server:
        record = await send(server.url)
    assert record.http_status == 200
    assert record.outcome is outcome
    assert words in record.error


@pytest.mark.parametrize(
    ("documents", "tokens"),
    [
        ([text("a b c"), text(" d", finish="stop"), usage(7, 4)], 4),
        ([text("", token_ids=[1, 2, 3]), text("", finish="length", token_ids=[4])], 4),
        ([text("", token_ids=[1, 2]), text("", finish="stop", token_ids=[3]), usage(7, 3)], 3),
        ([text("a b c"), text(" d", finish="stop")], None),
    ],
)
async def test_fault_03_chunks_are_not_tokens(documents: list[object], tokens: int | None) -> None:
    async def script(peer: Peer) -> None:
        await peer.stream(*documents, "[DONE]")

    async with serving(script) as server:
        record = await send(server.url)
    assert record.outcome is Outcome.OK
    assert record.completion_tokens == tokens
    assert len(record.token_times) == 2


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
async def test_fault_04_a_stream_of_reasoning_alone_has_a_first_token(name: str) -> None:
    record = await timed(
        (0.0, delta(role="assistant")),
        (0.15, delta(**{name: "so"})),
        (0.25, delta(**{name: "thus"})),
        (0.30, delta(finish="length")),
    )
    assert record.outcome is Outcome.OK
    assert record.first_token == pytest.approx(0.15, abs=LATE)
    assert len(record.token_times) == 2


async def test_fault_05_waiting_for_a_connection_counts(authority: Authority) -> None:
    async def script(peer: Peer) -> None:
        await peer.stream(text("a", finish="stop"), gap=0.05)

    sock = socket.create_server(("127.0.0.1", 0))  # takes connections; the handshake waits
    url = f"https://127.0.0.1:{sock.getsockname()[1]}"
    context = ssl.create_default_context(cafile=authority.ca)
    waiting = asyncio.ensure_future(send(url, verify=context))
    await asyncio.sleep(0.3)
    async with serving(script, sock=sock, tls=authority.server):
        record = await waiting
    assert record.outcome is Outcome.OK
    assert record.started < 0.2
    assert record.sent - record.scheduled > 0.3
    assert record.first_token - record.scheduled > 0.35
    assert record.first_token - record.sent == pytest.approx(0.05, abs=LATE)


async def test_fault_08_no_pool_throttles_concurrent_streams() -> None:
    # httpx would stop at 100 connections; the server answers nobody until all have asked.
    streams = 300

    async def answer(peer: Peer) -> None:
        await peer.stream(text("a", finish="stop"))

    script = once_all_ask(streams, answer, within=20)
    async with serving(script) as server, open_client(TimeoutSpec()) as client:
        completions = Completions(
            client, server.url, model="m", form=PromptForm.TEXT, ignore_eos=False, zero=0.0
        )
        records = await asyncio.gather(
            *(completions.send(Arrival(number, 0.0, 0, 1), "x") for number in range(streams))
        )
    assert {record.outcome for record in records} == {Outcome.OK}
    assert server.connections == streams


@pytest.mark.parametrize("pieces", [1, 3, 11, 1 << 20])
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
async def test_fault_09_lines_end_at_line_ends_only_and_reads_split_anywhere(
    line_end: str, pieces: int
) -> None:
    words = [" leading", "trailing ", "\u2028", "\x85", "a\u2029b", "\x0b\x0c", "  ", "世界"]
    documents = [*map(text, words), text("", finish="stop"), usage(7, 8), "[DONE]"]
    lines = [
        "data: " + (d if isinstance(d, str) else json.dumps(d, ensure_ascii=False))
        for d in documents
    ]
    body = "".join(line + 2 * line_end for line in lines).encode()

    async def script(peer: Peer) -> None:
        await peer.say(SSE_HEAD)
        for start in range(0, len(body), pieces):
            await peer.say(chunked(body[start : start + pieces]))
        await peer.say(LAST_CHUNK)

    async with serving(script) as server:
        record = await send(server.url, form=PromptForm.TEXT)
    assert record.outcome is Outcome.OK, record.error
    assert len(record.token_times) == len(words)
    assert record.completion_tokens == 8


async def test_fault_10_a_stall_in_mid_stream_stays_in_the_record() -> None:
    instants = (0.05, 0.10, 0.60, 0.65)
    record = await timed(
        *((instant, text("x")) for instant in instants),
        (0.65, text("", finish="stop")),
        form=PromptForm.TEXT,
    )
    gaps = [b - a for a, b in pairwise(record.token_times)]
    assert record.token_times == pytest.approx(instants, abs=LATE)
    assert max(gaps) == pytest.approx(0.5, abs=LATE)


async def test_fault_12_no_tokens_means_no_first_token() -> None:
    async def script(peer: Peer) -> None:
        await peer.stream(text(""), text("", finish="stop"), usage(7, 0), "[DONE]", gap=0.02)

    async with serving(script) as server:
        record = await send(server.url)
    assert record.outcome is Outcome.NO_TOKENS
    assert record.first_token is None
    assert record.token_times == ()
    assert record.completion_tokens == 0
    assert "without any content" in record.error
