"""What servers and the paths to them do to one request, and the record that comes of it."""

from __future__ import annotations

import asyncio
import gzip
import json
import resource
from collections.abc import Awaitable, Callable
from time import perf_counter

import pytest

from harness.records import Arrival, Outcome
from harness.scenario import PromptForm, TimeoutSpec
from harness.wire.client import open_client
from harness.wire.completions import Completions

from .conftest import (
    LAST_CHUNK,
    SSE_HEAD,
    Peer,
    chunked,
    delta,
    event,
    once_all_ask,
    open_sockets,
    reply,
    send,
    serving,
    text,
    usage,
)

pytestmark = pytest.mark.anyio

FIRST, LAST, DONE = event(text("a")), event(text("b", finish="stop")), event("[DONE]")
WELL = SSE_HEAD + chunked(FIRST) + chunked(LAST) + chunked(DONE) + LAST_CHUNK


def whole(*events: bytes) -> bytes:
    """A response whose body is these events, each in a chunk of its own."""
    return SSE_HEAD + b"".join(map(chunked, events)) + LAST_CHUNK


def raw(words: bytes) -> bytes:
    """An event of a completions chunk whose text is these bytes, unescaped."""
    return b'data: {"choices": [{"text": "' + words + b'"}]}\n\n'


STREAMS: dict[str, tuple[bytes, Outcome, int, str]] = {
    # response, outcome, chunks with content, what the reason says
    "a megabyte in one line": (whole(raw(b"x" * 1_000_000), LAST), Outcome.OK, 2, ""),
    "a megabyte without a line end": (
        whole(b"data: " + b"x" * 1_000_000), Outcome.MALFORMED, 0, "not an event stream",
    ),
    "NUL": (whole(FIRST, raw(b"\0"), LAST), Outcome.MALFORMED, 1, "malformed"),
    "NUL, escaped": (whole(FIRST, event(text("\0")), LAST), Outcome.OK, 3, ""),
    "invalid UTF-8": (whole(FIRST, raw(b"\xff"), LAST), Outcome.MALFORMED, 1, "Invalid UTF-8"),
    "U+2028 in text": (whole(raw("\u2028".encode()), raw(b"\x7f"), LAST), Outcome.OK, 3, ""),
    "line ends mixed": (
        whole(FIRST.replace(b"\n", b"\r\n"), FIRST.replace(b"\n", b"\r"), FIRST, LAST),
        Outcome.OK, 4, "",
    ),
    "comments and event lines": (
        whole(b": ping\n\n", b"event: token\nid: 7\nretry: 10\n" + FIRST, b":\n\n", LAST, DONE),
        Outcome.OK, 2, "",
    ),
    "empty deltas": (
        whole(event(delta(role="assistant")), event(delta(content="")), FIRST, event({}), LAST),
        Outcome.OK, 2, "",
    ),
    "no [DONE]": (whole(FIRST, LAST), Outcome.OK, 2, ""),
    "[DONE] twice": (whole(FIRST, LAST, DONE, DONE), Outcome.OK, 2, ""),
    "an error object in mid-stream": (
        whole(FIRST, event({"error": {"message": "engine died"}}), DONE),
        Outcome.STREAM_ERROR, 1, "engine died",
    ),
    "usage before the end": (whole(FIRST, event(usage(7, 2)), LAST, DONE), Outcome.OK, 2, ""),
    "usage without the end": (
        whole(FIRST, event(usage(7, 1))), Outcome.TRUNCATED, 1, "without a finish reason",
    ),
    "a chunk size too small": (
        SSE_HEAD + chunked(FIRST) + b"3\r\n" + LAST + b"\r\n", Outcome.MALFORMED, 1, "not HTTP",
    ),
    "a chunk size too large": (
        SSE_HEAD + chunked(FIRST) + b"fff\r\n" + LAST, Outcome.TIMEOUT, 2, "nothing received",
    ),
    "a chunk size that is no number": (
        SSE_HEAD + chunked(FIRST) + b"many\r\n" + LAST, Outcome.MALFORMED, 1, "not HTTP",
    ),
    "gzip although not asked": (
        reply(gzip.compress(FIRST + LAST), "200 OK", "Content-Encoding: gzip"),
        Outcome.MALFORMED, 0, "gzip though identity was asked for",
    ),
    "gzip in chunks": (
        SSE_HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
        + chunked(gzip.compress(FIRST + LAST)) + LAST_CHUNK,
        Outcome.MALFORMED, 0, "gzip though identity was asked for",
    ),
    "200 with an HTML page": (
        reply(b"<html>Sign in</html>"), Outcome.MALFORMED, 0, "not an event stream: <html>",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STREAMS)
async def test_streams_and_what_is_recorded(name: str) -> None:
    response, outcome, tokens, words = STREAMS[name]

    async def script(peer: Peer) -> None:
        await peer.say(response)
        await peer.gone()

    before = open_sockets()
    async with serving(script) as server:
        record = await send(server.url, timeouts=TimeoutSpec(idle=0.3))
    assert record.outcome is outcome, record.error
    assert len(record.token_times) == tokens
    assert words in (record.error or "")
    assert (record.error is None) is (outcome is Outcome.OK)
    assert open_sockets() == before


async def nothing(peer: Peer) -> None:
    """Take the request and hang up before a byte of an answer."""
    peer.reset()


async def cut(peer: Peer) -> None:
    await peer.say(SSE_HEAD, chunked(FIRST))
    await asyncio.sleep(0.02)
    peer.reset()


async def silence(peer: Peer) -> None:
    """The other end is gone and nobody says so."""
    await peer.gone()


async def stall(peer: Peer) -> None:
    await peer.say(SSE_HEAD, chunked(FIRST))
    await asyncio.sleep(0.3)
    await peer.say(chunked(LAST), LAST_CHUNK)


async def stalled(peer: Peer) -> None:
    await peer.say(SSE_HEAD, chunked(FIRST))
    await asyncio.sleep(1.2)
    await peer.say(chunked(LAST), LAST_CHUNK)


async def slow_headers(peer: Peer) -> None:
    for index in range(len(SSE_HEAD)):
        await peer.say(SSE_HEAD[index : index + 1])
        await asyncio.sleep(0.008)  # longer together than the timeout: each byte breaks the silence
    await peer.say(WELL[len(SSE_HEAD) :])


async def byte_by_byte(peer: Peer) -> None:
    await peer.say(SSE_HEAD)
    for byte in FIRST + LAST + DONE:
        await peer.say(chunked(bytes([byte])))
    await peer.say(LAST_CHUNK)


SCRIPTS: list[tuple[Callable[[Peer], Awaitable[None]], Outcome, int]] = [
    (nothing, Outcome.DISCONNECTED, 0),
    (cut, Outcome.DISCONNECTED, 1),
    (silence, Outcome.TIMEOUT, 0),
    (stall, Outcome.OK, 2),
    (stalled, Outcome.TIMEOUT, 1),
    (slow_headers, Outcome.OK, 2),
    (byte_by_byte, Outcome.OK, 2),
]


@pytest.mark.parametrize(("script", "outcome", "tokens"), SCRIPTS)
async def test_connections_and_what_is_recorded(
    script: Callable[[Peer], Awaitable[None]], outcome: Outcome, tokens: int
) -> None:
    before, began = open_sockets(), perf_counter()
    async with serving(script) as server:
        record = await send(server.url, timeouts=TimeoutSpec(idle=0.6))
        assert perf_counter() - began < 4
    assert record.outcome is outcome, record.error
    assert len(record.token_times) == tokens
    assert (record.error is None) is (outcome is Outcome.OK)
    assert open_sockets() == before


STATUSES = {
    302: "Location: https://elsewhere/",
    401: "",
    404: "",
    413: "",
    429: "Retry-After: 3",
    500: "",
    503: "",
}


@pytest.mark.parametrize("status", STATUSES)
async def test_statuses_and_what_is_recorded(status: int) -> None:
    async def script(peer: Peer) -> None:
        body = json.dumps({"error": {"message": "the reason"}}).encode()
        await peer.say(reply(body, f"{status} X", *filter(None, [STATUSES[status]])))

    async with serving(script) as server:
        record = await send(server.url)
    assert (record.outcome, record.http_status) == (Outcome.HTTP_ERROR, status)
    assert f"HTTP {status}" in record.error
    assert STATUSES[status] in record.error
    assert "the reason" in record.error
    assert len(server.requests) == 1  # neither followed nor tried again


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": True})], indirect=False)
async def test_two_thousand_connections_at_once() -> None:
    streams = 2000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * streams + 200:
        pytest.skip(f"client and server need {2 * streams} files, {hard} are allowed")

    async def answer(peer: Peer) -> None:
        await peer.say(WELL)

    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    before = open_sockets()
    try:
        script = once_all_ask(streams, answer, within=30)
        async with serving(script) as server, open_client(TimeoutSpec()) as client:
            completions = Completions(
                client, server.url, model="m", form=PromptForm.TEXT, ignore_eos=False, zero=0.0
            )
            records = await asyncio.gather(
                *(completions.send(Arrival(number, 0.0, 0, 2), "x") for number in range(streams))
            )
        assert open_sockets() == before
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert {record.outcome for record in records} == {Outcome.OK}
    assert server.connections == streams
