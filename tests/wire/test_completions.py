"""Arrivals become records: what is asked, and what is kept of every kind of answer."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import os
import resource
import socket
import ssl
from collections.abc import Awaitable, Callable
from itertools import pairwise
from time import perf_counter

import anyio
import httpx
import pytest

from harness.errors import UsageError
from harness.records import Arrival, Outcome
from harness.scenario import PromptForm, TimeoutSpec
from harness.wire.chunks import SLICE, Answer
from harness.wire.client import endpoint, open_client
from harness.wire.completions import Completions
from harness.wire.connection import Exchange

from .conftest import (
    SSE_HEAD,
    Authority,
    Peer,
    chunked,
    event,
    open_sockets,
    reply,
    send,
    serving,
    text,
    usage,
)

pytestmark = pytest.mark.anyio

WELL = (text("a"), text("b", finish="length"), usage(7, 2, cached=4), "[DONE]")


async def well(peer: Peer) -> None:
    await peer.stream(*WELL, gap=0.01)


# --- what is asked -----------------------------------------------------------------------------


@pytest.mark.parametrize("ignore_eos", [True, False])
@pytest.mark.parametrize("form", PromptForm)
async def test_the_request(form: PromptForm, ignore_eos: bool) -> None:
    prompt = [3, 1, 4] if form is PromptForm.TOKEN_IDS else "Grüße"
    async with serving(well) as server, open_client(TimeoutSpec()) as client:
        completions = Completions(
            client, server.url, model="m", form=form, ignore_eos=ignore_eos, zero=0.0
        )
        await completions.send(Arrival(0, 0.0, 0, 17), prompt)
    asked = server.requests[0]
    expected = {"model": "m", "max_tokens": 17, "temperature": 0.0, "stream": True,
                "stream_options": {"include_usage": True}}  # fmt: skip
    if ignore_eos:
        expected["ignore_eos"] = True
    if form is PromptForm.CHAT:
        assert asked.target == "/v1/chat/completions"
        expected["messages"] = [{"role": "user", "content": "Grüße"}]
    else:
        assert asked.target == "/v1/completions"
        expected["prompt"] = prompt
    if form is PromptForm.TOKEN_IDS:
        expected["return_token_ids"] = True
    assert json.loads(asked.body) == expected
    assert asked.method == "POST"
    assert asked.headers["accept-encoding"] == "identity"
    assert asked.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://h:8000", "http://h:8000/v1/completions"),
        ("http://h:8000/", "http://h:8000/v1/completions"),
        ("http://h:8000/v1", "http://h:8000/v1/completions"),
        ("http://h:8000/v1/", "http://h:8000/v1/completions"),
        ("https://h/base/path", "https://h/base/path/v1/completions"),
        ("https://h/base/v1/?api-version=1", "https://h/base/v1/completions?api-version=1"),
        ("http://[::1]:80/rev1", "http://[::1]/rev1/v1/completions"),
    ],
)
def test_endpoints(url: str, expected: str) -> None:
    assert str(endpoint(url, "completions")) == expected


async def test_headers_and_key_are_sent_and_cookies_are_not_kept() -> None:
    async def script(peer: Peer) -> None:
        body = b"".join(event(document) for document in WELL)
        await peer.say(reply(body, "200 OK", "Set-Cookie: pod=3; Path=/"))

    headers = {"Authorization": "Bearer sk-1", "X-Team": "a b"}
    async with serving(script) as server, open_client(TimeoutSpec(), headers=headers) as client:
        completions = Completions(
            client, server.url, model="m", form=PromptForm.TEXT, ignore_eos=False, zero=0.0
        )
        for number in range(2):
            record = await completions.send(Arrival(number, 0.0, 0, 2), "x")
            assert record.outcome is Outcome.OK
    for asked in server.requests:
        assert asked.headers["authorization"] == "Bearer sk-1"
        assert asked.headers["x-team"] == "a b"
        assert "cookie" not in asked.headers


async def test_tls_and_a_base_path(authority: Authority) -> None:
    context = ssl.create_default_context(cafile=authority.ca)
    async with serving(well, tls=authority.server) as server:
        record = await send(f"{server.url}/gateway/v1", verify=context)
    assert record.outcome is Outcome.OK
    assert server.requests[0].target == "/gateway/v1/completions"


# --- what is kept ------------------------------------------------------------------------------


async def test_a_good_answer() -> None:
    async with serving(well) as server:
        record = await send(server.url)
    assert (record.id, record.scheduled, record.prefix) == (5, 0.0, 1)
    assert record.outcome is Outcome.OK
    assert (record.http_status, record.error) == (200, None)
    assert (record.prompt_tokens, record.completion_tokens, record.cached_tokens) == (7, 2, 4)
    assert len(record.token_times) == 2
    assert record.first_token == record.token_times[0]
    assert record.sent is not None
    assert 0 <= record.started <= record.sent < record.token_times[0] < record.token_times[1]
    assert record.token_times[1] < record.finished < perf_counter()


async def test_started_may_lie_before_the_call() -> None:
    async with serving(well) as server, open_client(TimeoutSpec()) as client:
        completions = Completions(
            client, server.url, model="m", form=PromptForm.TEXT, ignore_eos=False, zero=0.0
        )
        record = await completions.send(Arrival(0, 1.0, 0, 2), "x", 1.5)
    assert (record.scheduled, record.started) == (1.0, 1.5)


async def test_absent_numbers_are_none() -> None:
    async def script(peer: Peer) -> None:
        await peer.stream(text("a", finish="stop"))

    async with serving(script) as server:
        record = await send(server.url)
    assert record.outcome is Outcome.OK
    assert (record.prompt_tokens, record.completion_tokens, record.cached_tokens) == (None,) * 3


SSE = "Content-Type: text/event-stream"
STREAM = b"".join(event(document) for document in WELL)

ANSWERS: dict[str, tuple[bytes, Outcome, str]] = {
    "401": (
        reply(b'{"error": "Unauthorized"}', "401 Unauthorized"),
        Outcome.HTTP_ERROR,
        "HTTP 401: Unauthorized",
    ),
    "404": (
        reply(b'{"detail":"Not Found"}', "404 Not Found"),
        Outcome.HTTP_ERROR,
        "HTTP 404: Not Found",
    ),
    "413 without a body": (reply(b"", "413 X"), Outcome.HTTP_ERROR, "HTTP 413"),
    "429": (
        reply(b'{"object":"error","message":"busy"}', "429 X", "Retry-After: 3"),
        Outcome.HTTP_ERROR,
        "HTTP 429, Retry-After: 3: busy",
    ),
    "500": (
        reply(b"Internal Server Error", "500 X"),
        Outcome.HTTP_ERROR,
        "HTTP 500: Internal Server Error",
    ),
    "503 with a page": (
        reply(b"<html>\xff</html>", "503 X"),
        Outcome.HTTP_ERROR,
        "HTTP 503: <html>\ufffd</html>",
    ),
    "redirect": (
        reply(b"", "308 X", "Location: https://elsewhere/"),
        Outcome.HTTP_ERROR,
        "HTTP 308, Location: https://elsewhere/",
    ),
    "redirect to nowhere": (
        reply(b"", "302 X", "Location: http://[::nonsense/"),
        Outcome.HTTP_ERROR,
        "HTTP 302, Location: http://[::nonsense/",
    ),
    "204": (b"HTTP/1.1 204 X\r\n\r\n", Outcome.HTTP_ERROR, "HTTP 204"),
    "500 with a stream": (reply(STREAM, "500 X", SSE), Outcome.HTTP_ERROR, "HTTP 500: data: {"),
    "a page": (
        reply(b"<html>Sign in</html>", "200 OK", "Content-Type: text/html"),
        Outcome.MALFORMED,
        "not an event stream: <html>Sign in</html>",
    ),
    "an error object instead of a stream": (
        reply(b'{"error":{"message":"no model"}}'),
        Outcome.STREAM_ERROR,
        "no model",
    ),
    "a whole completion instead of a stream": (
        reply(b'{"choices":[{"text":"all of it"}]}'),
        Outcome.MALFORMED,
        'not an event stream: {"choices"',
    ),
    "an empty body": (reply(b"", "200 OK", SSE), Outcome.TRUNCATED, "without a finish reason"),
    "only comments": (
        reply(b": ping\n\n", "200 OK", SSE),
        Outcome.MALFORMED,
        "not an event stream: : ping",
    ),
    "compressed, unasked": (
        reply(gzip.compress(STREAM), "200 OK", SSE, "Content-Encoding: gzip"),
        Outcome.MALFORMED,
        "Content-Encoding gzip though identity was asked for",
    ),
    "compressed error": (
        reply(gzip.compress(b"no"), "500 X", "Content-Encoding: gzip"),
        Outcome.HTTP_ERROR,
        "HTTP 500, Content-Encoding: gzip",
    ),
    "identity, said aloud": (
        reply(STREAM, "200 OK", SSE, "Content-Encoding: identity"),
        Outcome.OK,
        "",
    ),
    "content type wrong, content right": (
        reply(STREAM, "200 OK", "Content-Type: text/plain"),
        Outcome.OK,
        "",
    ),
    "given up": (
        reply(event(text("a", finish="abort")), "200 OK", SSE),
        Outcome.STREAM_ERROR,
        "finish reason 'abort'",
    ),
    "not HTTP": (b"SSH-2.0-OpenSSH_9.0\r\n", Outcome.MALFORMED, "not HTTP/1.1"),
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_answers(name: str) -> None:
    answer, outcome, words = ANSWERS[name]

    async def script(peer: Peer) -> None:
        await peer.say(answer)

    async with serving(script) as server:
        record = await send(server.url)
    assert record.outcome is outcome, record.error
    if outcome is Outcome.OK:
        assert record.error is None
    else:
        assert record.error is not None
        assert words in record.error
    assert record.finished >= record.sent


def broken(how: str) -> Callable[[Peer], Awaitable[None]]:
    async def script(peer: Peer) -> None:
        await peer.say(SSE_HEAD, chunked(event(text("a"))))
        await asyncio.sleep(0.02)
        await peer.say(chunked(event(text("b"))))
        await asyncio.sleep(0.02)
        if how == "silent":
            await peer.gone()
        elif how == "wrong chunk":
            await peer.say(b"wrong\r\n")
            await peer.gone()
        elif how == "reset":
            peer.reset()
        else:
            peer.close()

    return script


@pytest.mark.parametrize(
    ("how", "outcome"),
    [
        ("closed", Outcome.DISCONNECTED),
        ("reset", Outcome.DISCONNECTED),
        ("silent", Outcome.TIMEOUT),
        ("wrong chunk", Outcome.MALFORMED),
    ],
)
async def test_a_request_cut_in_mid_stream_keeps_its_tokens(how: str, outcome: Outcome) -> None:
    async with serving(broken(how)) as server:
        record = await send(server.url, timeouts=TimeoutSpec(idle=0.3))
    assert record.outcome is outcome
    assert len(record.token_times) == 2
    assert record.token_times[1] > record.token_times[0]
    assert record.first_token == record.token_times[0]
    assert record.finished > record.token_times[1]
    assert record.http_status == 200
    assert record.completion_tokens is None
    assert record.error


async def test_no_server_means_nothing_was_sent() -> None:
    async with serving(well) as server:
        pass
    record = await send(server.url)
    assert record.outcome is Outcome.CONNECT_FAILED
    assert (record.sent, record.first_token, record.http_status) == (None, None, None)
    assert "127.0.0.1" in record.error
    assert record.finished >= record.started


@pytest.mark.parametrize("size", [499, 500, 501, 100_000])
async def test_reasons_are_kept_to_500_characters(size: int) -> None:
    async def script(peer: Peer) -> None:
        await peer.stream({"error": {"message": "ü" * size}})

    async with serving(script) as server:
        record = await send(server.url)
    assert record.error == "ü" * min(size, 500)


ECHOES = {
    "plain": b"Incorrect API key provided: sk-very-secret.",
    "in a header": b'{"error": {"message": "got Authorization: Bearer sk-very-secret"}}',
    "at the cut": b"x" * 470 + b"sk-very-secret",
    "another header": b"no tenant tenant-7-token",
    "in broken JSON": b'{"error": "sk-very-secret',
}


@pytest.mark.parametrize("status", [200, 401])
@pytest.mark.parametrize("name", ECHOES)
async def test_a_secret_that_a_server_echoes_is_not_recorded(name: str, status: int) -> None:
    async def script(peer: Peer) -> None:
        await peer.say(reply(ECHOES[name], f"{status} X"))

    headers = {"Authorization": "Bearer sk-very-secret", "X-Tenant": "tenant-7-token"}
    async with serving(script) as server:
        record = await send(server.url, headers=headers)
    for part in ("sk-very", "very-secret", "tenant-7"):
        assert part not in record.error
    assert "***" in record.error


@pytest.mark.parametrize("value", ["sk-1\n", "sk-1\r\nX: y", "sk-ü", "sk\0"])
async def test_a_key_that_cannot_be_sent_is_refused_without_showing_it(value: str) -> None:
    with pytest.raises(UsageError, match="Authorization") as raised:
        open_client(TimeoutSpec(), headers={"Authorization": value})
    assert "sk" not in str(raised.value)


async def test_secrets_are_in_no_repr() -> None:
    async with open_client(TimeoutSpec(), headers={"Authorization": "Bearer sk-1"}) as client:
        completions = Completions(
            client, "http://h", model="m", form=PromptForm.TEXT, ignore_eos=False, zero=0.0
        )
        assert "sk-1" not in repr(completions) + repr(client) + repr(client.headers)


# --- stopping ----------------------------------------------------------------------------------


async def test_abandoned_requests_keep_what_had_arrived() -> None:
    async def script(peer: Peer) -> None:
        if json.loads(peer.asked.body)["prompt"] == "whole":
            await well(peer)
            return
        if json.loads(peer.asked.body)["prompt"] == "begun":
            await peer.say(SSE_HEAD, chunked(event(text("a"))))
        await peer.gone()

    records = []
    before = open_sockets()
    async with serving(script) as server:
        async with open_client(TimeoutSpec()) as client, anyio.create_task_group() as group:
            completions = Completions(
                client, server.url, model="m", form=PromptForm.TEXT, ignore_eos=False,
                zero=perf_counter(),
            )  # fmt: skip

            async def one(number: int, prompt: str) -> None:
                records.append(await completions.send(Arrival(number, 0.0, 0, 2), prompt))

            for number, prompt in enumerate(["whole", "begun", "silent"]):
                group.start_soon(one, number, prompt)
            await asyncio.sleep(0.2)
            assert completions.in_flight == 2
            group.cancel_scope.cancel()
        abandoned = {record.id: record for record in completions.abandon()}
    assert [(record.id, record.outcome) for record in records] == [(0, Outcome.OK)]
    assert set(abandoned) == {1, 2}
    assert {record.outcome for record in abandoned.values()} == {Outcome.ABANDONED}
    assert len(abandoned[1].token_times) == 1
    assert abandoned[1].finished >= 0.2
    assert (abandoned[2].first_token, abandoned[2].http_status) == (None, None)
    assert abandoned[2].sent is not None
    assert completions.abandon() == []
    assert completions.in_flight == 0
    assert open_sockets() == before


async def test_streams_that_end_together_are_read_a_slice_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    body = b"".join([event(text("token"))] * 500 + [event(text("", finish="stop"))])
    everybody = asyncio.Event()

    async def script(peer: Peer) -> None:
        await everybody.wait()
        await peer.say(reply(body, "200 OK", SSE))

    answers: list[Answer] = []

    class Watched(Answer):
        def __init__(self, *, keep: bool = False) -> None:
            super().__init__(keep=keep)
            answers.append(self)

    monkeypatch.setattr("harness.wire.completions.Answer", Watched)
    totals: list[int] = []

    async def watch() -> None:
        while True:
            totals.append(sum(answer.events for answer in answers))
            await asyncio.sleep(0)

    async with serving(script) as server, open_client(TimeoutSpec()) as client:
        completions = Completions(
            client, server.url, model="m", form=PromptForm.TEXT, ignore_eos=False, zero=0.0
        )
        watching = asyncio.ensure_future(watch())
        sending = [
            asyncio.ensure_future(completions.send(Arrival(number, 0.0, 0, 500), "x"))
            for number in range(20)
        ]
        await asyncio.sleep(0.2)
        everybody.set()
        records = await asyncio.gather(*sending)
        watching.cancel()
    assert all(len(record.token_times) == 500 for record in records)
    assert max(after - before for before, after in pairwise(totals)) <= 2 * SLICE


async def test_in_flight_counts_until_the_response_has_ended() -> None:
    async with serving(well) as server, open_client(TimeoutSpec()) as client:
        completions = Completions(
            client, server.url, model="m", form=PromptForm.TEXT, ignore_eos=False, zero=0.0
        )
        assert completions.in_flight == 0
        sending = asyncio.ensure_future(completions.send(Arrival(0, 0.0, 0, 2), "x"))
        await asyncio.sleep(0.02)
        assert completions.in_flight == 1
        await sending
        assert completions.in_flight == 0


async def test_a_stream_without_end_is_ended_by_whoever_waits() -> None:
    async def script(peer: Peer) -> None:
        await peer.say(SSE_HEAD)
        while True:
            await peer.say(chunked(event(text("more"))))
            await asyncio.sleep(0.01)

    async with serving(script) as server, open_client(TimeoutSpec()) as client:
        completions = Completions(
            client, server.url, model="m", form=PromptForm.TEXT, ignore_eos=False, zero=0.0
        )
        with anyio.move_on_after(0.2):
            await completions.send(Arrival(0, 0.0, 0, 2), "x")
        [record] = completions.abandon()
    assert len(record.token_times) > 3


async def test_what_a_request_used_is_freed_without_the_garbage_collector() -> None:
    """A full collection is rare: what waits for one looks like a leak until then."""
    kinds = (httpx.Request, httpx.Response, Exchange)

    def held() -> int:
        return sum(type(one) in kinds for one in gc.get_objects())

    async with serving(well) as server, open_client(TimeoutSpec()) as client:
        completions = Completions(
            client, server.url, model="m", form=PromptForm.TOKEN_IDS, ignore_eos=True, zero=0.0
        )
        gc.collect()
        gc.disable()
        try:
            before = held()
            for number in range(5):
                record = await completions.send(Arrival(number, 0.0, 0, 2), [1, 2, 3])
                assert record.outcome is Outcome.OK
            assert held() == before
            left = {type(one) for one in gc.get_objects()}
            assert left.isdisjoint({httpx.Response, Exchange})
        finally:
            gc.enable()


def test_the_client_takes_the_timeouts() -> None:
    client = open_client(TimeoutSpec(connect=1.5, idle=7.0))
    assert client.timeout == httpx.Timeout(7.0, connect=1.5)
    assert client.follow_redirects is False
    assert client.trust_env is False


async def test_running_out_of_file_descriptors_fails_requests_by_name_and_passes() -> None:
    async def script(peer: Peer) -> None:
        await peer.stream(text("a", finish="stop"))

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    sock = socket.create_server(("127.0.0.1", 0), backlog=100)  # answers once it is served
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    async with open_client(TimeoutSpec()) as client:
        completions = Completions(
            client, url, model="m", form=PromptForm.TEXT, ignore_eos=False, zero=0.0
        )
        lowest_free = os.dup(0)
        os.close(lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + 20, hard))
        try:
            sending = [
                asyncio.ensure_future(completions.send(Arrival(number, 0.0, 0, 1), "x"))
                for number in range(40)
            ]
            await asyncio.sleep(0.2)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        async with serving(script, sock=sock):
            records = await asyncio.gather(*sending)
            after = await completions.send(Arrival(40, 0.0, 0, 1), "x")
    failed = [record for record in records if record.outcome is Outcome.CONNECT_FAILED]
    assert 20 <= len(failed) < 40
    assert all("Too many open files" in record.error for record in failed)
    assert {record.outcome for record in records} == {Outcome.OK, Outcome.CONNECT_FAILED}
    assert after.outcome is Outcome.OK
