"""The transport: framing, connections, timeouts and failures on real sockets."""

from __future__ import annotations

import asyncio
import gc
import gzip
import socket
import ssl
import threading
import time
from pathlib import Path
from time import perf_counter

import anyio
import httpx
import pytest

from harness.wire.connection import STALE_SECONDS, Exchange
from harness.wire.transport import StampedTransport

from .conftest import (
    LAST_CHUNK,
    SSE_HEAD,
    Authority,
    Peer,
    chunked,
    open_sockets,
    reply,
    serving,
)

pytestmark = pytest.mark.anyio


def client(**transport: object) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=StampedTransport(**transport), trust_env=False, timeout=httpx.Timeout(5.0)
    )


# --- framing -----------------------------------------------------------------------------------

FRAMINGS = {
    "content length": (reply(b"hello"), b"hello"),
    "no body": (reply(b""), b""),
    "chunks": (SSE_HEAD + chunked(b"hel") + chunked(b"lo") + LAST_CHUNK, b"hello"),
    "chunk extension and trailer": (
        SSE_HEAD + b"5;a=b\r\nhello\r\n0\r\nX-Trailer: 1\r\n\r\n",
        b"hello",
    ),
    "until close": (b"HTTP/1.1 200 OK\r\n\r\nhello", b"hello"),
    "until close, HTTP/1.0": (b"HTTP/1.0 200 OK\r\nX: y\r\n\r\nhello", b"hello"),
    "until close, an odd coding": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\nhello",
        b"hello",
    ),
    "after 100 and 103": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + reply(b"hi"),
        b"hi",
    ),
    "204": (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    "304 with a length": (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", b""),
}


@pytest.mark.parametrize("pieces", [1, 7, 1 << 20])
@pytest.mark.parametrize("name", FRAMINGS)
async def test_bodies_end_where_http_says_however_they_are_split(name: str, pieces: int) -> None:
    response, body = FRAMINGS[name]

    async def script(peer: Peer) -> None:
        for start in range(0, len(response), pieces):
            await peer.say(response[start : start + pieces])
            await asyncio.sleep(0)
        if name.startswith("until close"):
            peer.close()

    async with serving(script) as server, client() as http:
        answer = await http.get(server.url)
        exchange = answer.extensions["exchange"]
        assert answer.content == body == exchange.body()
        assert exchange.whole
        assert exchange.status == answer.status_code
        assert "x-trailer" not in str(answer.headers) or name.startswith("chunk extension")


async def test_head_has_no_body() -> None:
    async def script(peer: Peer) -> None:
        await peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")

    async with serving(script) as server, client() as http:
        for _ in range(2):
            answer = await http.head(server.url)
            assert (answer.status_code, answer.content) == (200, b"")


async def test_a_compressed_answer_is_decoded_for_plain_use() -> None:
    async def script(peer: Peer) -> None:
        await peer.say(reply(gzip.compress(b"hello"), "200 OK", "Content-Encoding: gzip"))

    async with serving(script) as server, client() as http:
        assert (await http.get(server.url)).text == "hello"


async def test_the_request_goes_out_as_written() -> None:
    async def script(peer: Peer) -> None:
        await peer.say(reply(b""))

    async def body() -> object:
        yield b"ab"
        yield b"cd"

    async with serving(script) as server, client() as http:
        await http.post(f"{server.url}/base/path?a=b%20c", content=b"x", headers={"X-A": "1"})
        await http.post(server.url, content=body())
        await http.get(f"{server.url}/é")
    first, second, third = server.requests
    assert (first.method, first.target, first.body) == ("POST", "/base/path?a=b%20c", b"x")
    assert first.headers["x-a"] == "1"
    assert first.headers["host"] == server.url.removeprefix("http://")
    assert (second.body, second.headers["content-length"]) == (b"abcd", "4")
    assert "transfer-encoding" not in second.headers
    assert third.target == "/%C3%A9"


@pytest.mark.parametrize("value", ["a\r\nX-Injected: 1", "a\nb", "a\0b"])
async def test_a_header_cannot_smuggle_another(value: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.say(reply(b""))

    async with serving(script) as server, client() as http:
        with pytest.raises(httpx.LocalProtocolError, match="Authorization") as raised:
            await http.get(server.url, headers={"Authorization": value})
        assert value not in str(raised.value)
    assert server.requests == []


async def test_redirects_are_reported_not_followed() -> None:
    async def script(peer: Peer) -> None:
        await peer.say(reply(b"", "307 Temporary Redirect", "Location: /elsewhere"))

    async with serving(script) as server, client() as http:
        assert (await http.post(server.url)).status_code == 307
    assert len(server.requests) == 1


# --- stamps ------------------------------------------------------------------------------------


async def test_reads_are_stamped_when_they_arrive_and_the_caller_wakes_once() -> None:
    said: list[float] = []

    async def script(peer: Peer) -> None:
        await peer.say(SSE_HEAD)
        for _ in range(4):
            await asyncio.sleep(0.03)
            said.append(perf_counter())
            await peer.say(chunked(b"x"))
        await peer.say(LAST_CHUNK)

    async with serving(script) as server, client() as http:
        began = perf_counter()
        exchange = (await http.get(server.url)).extensions["exchange"]
    stamps = exchange.stamps
    assert began <= exchange.sent < said[0]
    assert all(0 <= stamp - instant < 0.025 for stamp, instant in zip(stamps, said, strict=True))
    assert stamps[-1] <= exchange.ended <= perf_counter()


async def test_a_request_leaves_at_once_not_at_the_end_of_the_loops_turn() -> None:
    received: list[float] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            for _ in range(2):
                connection.recv(1 << 16)
                received.append(perf_counter())
                connection.sendall(reply(b""))

    async with client() as http:
        thread = threading.Thread(target=serve)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        await http.get(url)
        again = asyncio.ensure_future(http.get(url))
        asyncio.get_running_loop().call_soon(time.sleep, 0.3)  # the rest of a long turn
        exchange = (await again).extensions["exchange"]
    thread.join()
    listener.close()
    assert received[1] - exchange.sent < 0.2


async def test_sent_is_after_the_connection_stands(authority: Authority) -> None:
    async def script(peer: Peer) -> None:
        await peer.say(reply(b""))

    sock = socket.create_server(("127.0.0.1", 0))  # the kernel takes connections; nobody answers
    url = f"https://127.0.0.1:{sock.getsockname()[1]}"
    async with client(verify=ssl.create_default_context(cafile=authority.ca)) as http:
        began = perf_counter()
        request = asyncio.ensure_future(http.get(url))
        await asyncio.sleep(0.2)
        async with serving(script, sock=sock, tls=authority.server):
            exchange = (await request).extensions["exchange"]
    assert exchange.sent - began >= 0.2


# --- connections -------------------------------------------------------------------------------


async def test_a_connection_is_used_again() -> None:
    async def script(peer: Peer) -> None:
        await peer.say(reply(b"hello"))

    async with serving(script) as server, client() as http:
        for _ in range(5):
            await http.get(server.url)
        assert server.connections == 1


@pytest.mark.parametrize(
    "response",
    [
        reply(b"", "200 OK", "Connection: close"),
        b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        reply(b"") + b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged",
        reply(b"") + b"noise",
    ],
    ids=["close", "HTTP/1.0", "a second response, unasked", "noise after the response"],
)
async def test_a_spent_connection_is_not_used_again(response: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.say(response)

    async with serving(script) as server, client() as http:
        for _ in range(2):
            assert (await http.get(server.url)).content == b""
        assert server.connections == 2


async def test_an_idle_connection_that_speaks_is_not_used_again() -> None:
    async def script(peer: Peer) -> None:
        await peer.say(reply(b""))
        await asyncio.sleep(0.02)
        await peer.say(reply(b"forged"))

    async with serving(script) as server, client() as http:
        await http.get(server.url)
        await asyncio.sleep(0.06)
        assert (await http.get(server.url)).content == b""
        assert server.connections == 2


async def test_a_connection_idle_for_long_is_replaced() -> None:
    async def script(peer: Peer) -> None:
        await peer.say(reply(b""))

    async with serving(script) as server, client(keep_alive=0.05) as http:
        await http.get(server.url)
        await asyncio.sleep(0.1)
        await http.get(server.url)
        assert server.connections == 2


async def test_silence_between_requests_is_no_timeout() -> None:
    async def script(peer: Peer) -> None:
        await peer.say(reply(b""))

    async with serving(script) as server, client() as http:
        for _ in range(2):
            await http.get(server.url, timeout=httpx.Timeout(5.0, read=0.1))
            await asyncio.sleep(0.25)
        assert server.connections == 1


async def test_a_stale_connection_is_replaced_once() -> None:
    # The server closes just as the next request arrives on the kept connection.
    async def script(peer: Peer) -> None:
        await peer.say(reply(b"first"))
        await peer.receive()
        peer.reset()

    async with serving(script) as server, client() as http:
        await http.get(server.url)
        assert (await http.post(server.url, content=b"x")).content == b"first"
        assert server.connections == 2


@pytest.mark.parametrize(
    ("wait", "words"),
    [(STALE_SECONDS + 0.1, b""), (0.0, b"HTTP/1.1 2")],
    ids=["the server had it for long", "an answer had begun"],
)
async def test_a_request_that_the_server_had_is_not_sent_again(wait: float, words: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.say(reply(b"first"))
        await peer.receive()
        if words:
            await peer.say(words)
        await asyncio.sleep(max(wait, 0.02))
        peer.reset()

    async with serving(script) as server, client() as http:
        await http.get(server.url)
        with pytest.raises(httpx.ReadError):
            await http.post(server.url, content=b"x")
        assert server.connections == 1


async def test_a_fresh_connection_that_breaks_is_not_tried_again() -> None:
    async def script(peer: Peer) -> None:
        peer.reset()

    async with serving(script) as server, client() as http:
        with pytest.raises(httpx.ReadError):
            await http.post(server.url, content=b"x")
        assert server.connections == 1


async def test_an_answer_before_the_request_is_read() -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.say(reply(b"too large", "413 Content Too Large"))
        await peer.gone()

    async with serving(script, raw=True) as server, client() as http:
        answer = await http.post(server.url, content=b"x" * 30_000_000)
        assert (answer.status_code, answer.text) == (413, "too large")


async def test_ipv6() -> None:
    async def script(peer: Peer) -> None:
        await peer.say(reply(b"six"))

    async with serving(script, host="::1") as server, client() as http:
        assert (await http.get(server.url)).text == "six"


async def test_a_unix_socket(tmp_path: Path) -> None:
    async def script(peer: Peer) -> None:
        await peer.say(reply(b"local"))

    path = tmp_path / "socket"
    async with serving(script, uds=path), client(uds=str(path)) as http:
        for _ in range(2):
            assert (await http.get("http://replica/")).text == "local"


async def test_tls_with_an_authority_of_our_own(authority: Authority) -> None:
    async def script(peer: Peer) -> None:
        await peer.say(reply(b"secret"))

    context = ssl.create_default_context(cafile=authority.ca)
    async with serving(script, tls=authority.server) as server:
        async with client(verify=context) as http:
            for _ in range(2):
                assert (await http.get(server.url)).text == "secret"
        assert server.connections == 1
        async with client() as http:
            with pytest.raises(httpx.ConnectError, match="certificate"):
                await http.get(server.url)
        async with client(verify=context) as http:
            with pytest.raises(httpx.ConnectError, match="certificate"):
                await http.get(server.url.replace("127.0.0.1", "localhost"))


async def test_tls_to_a_server_without_it() -> None:
    async def script(peer: Peer) -> None:
        await peer.say(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with serving(script, raw=True) as server, client() as http:
        with pytest.raises(httpx.ConnectError):
            await http.get(server.url.replace("http:", "https:"))


# --- failures ----------------------------------------------------------------------------------


async def test_nobody_listens() -> None:
    async def script(peer: Peer) -> None: ...

    async with serving(script) as server:
        pass
    exchange = Exchange()
    async with client() as http:
        with pytest.raises(httpx.ConnectError, match=r"127\.0\.0\.1"):
            await http.get(server.url, extensions={"exchange": exchange})
    assert exchange.sent is None


async def test_a_name_that_cannot_be() -> None:
    async with client() as http:
        with pytest.raises(httpx.ConnectError):
            await http.get("http://name.invalid/")
        with pytest.raises(httpx.ConnectError):
            await http.get(f"http://{'a' * 70}.invalid/")
        with pytest.raises(httpx.UnsupportedProtocol):
            await http.get("ftp://127.0.0.1/")


async def test_no_connection_in_time(authority: Authority) -> None:
    async def script(peer: Peer) -> None:
        await peer.gone()  # takes the connection and never answers the handshake

    before = open_sockets()
    async with serving(script, raw=True) as server, client() as http:
        began = perf_counter()
        with pytest.raises(httpx.ConnectTimeout, match=r"none within 0\.2 s"):
            await http.get(
                server.url.replace("http:", "https:"), timeout=httpx.Timeout(5, connect=0.2)
            )
        assert perf_counter() - began < 1
    assert open_sockets() == before


CUT = {
    "before a byte": b"",
    "in the status line": b"HTTP/1.",
    "in the headers": b"HTTP/1.1 200 OK\r\nContent-",
    "in a body of known length": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhel",
    "in a chunk": SSE_HEAD + b"9\r\nhel",
    "between chunks": SSE_HEAD + chunked(b"hel"),
}


@pytest.mark.parametrize("how", ["closed", "half-closed", "reset"])
@pytest.mark.parametrize("where", CUT)
async def test_a_cut_keeps_what_had_arrived(where: str, how: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.say(CUT[where])
        await asyncio.sleep(0.03)
        if how == "half-closed":
            peer.writer.write_eof()
            await peer.gone()
        elif how == "reset":
            peer.reset()
        else:
            peer.close()

    exchange = Exchange()
    async with serving(script) as server, client() as http:
        with pytest.raises(httpx.ReadError, match="connection broke"):
            await http.get(server.url, extensions={"exchange": exchange})
    assert not exchange.whole
    assert exchange.sent < exchange.ended
    assert exchange.body() == (b"hel" if b"hel" in CUT[where] else b"")
    assert exchange.status == (200 if b"\r\n\r\n" in CUT[where] else None)


async def test_a_reset_is_no_end_of_a_body_that_runs_until_the_close() -> None:
    async def script(peer: Peer) -> None:
        await peer.say(b"HTTP/1.1 200 OK\r\n\r\nhel")
        await asyncio.sleep(0.03)
        peer.reset()

    async with serving(script) as server, client() as http:
        with pytest.raises(httpx.ReadError):
            await http.get(server.url)


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\x16\x03\x01 not http at all\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.0\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        SSE_HEAD + b"zz\r\nhello\r\n",
        SSE_HEAD + b"3\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nraw",
    ],
)
async def test_bytes_that_are_not_http(nonsense: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.say(nonsense)
        await peer.gone()

    async with serving(script) as server, client() as http:
        with pytest.raises(httpx.RemoteProtocolError):
            await http.get(server.url)


async def test_silence_ends_a_request_but_a_trickle_does_not() -> None:
    async def script(peer: Peer) -> None:
        await peer.say(SSE_HEAD)
        for _ in range(8):
            await asyncio.sleep(0.08)
            await peer.say(chunked(b"x"))
        if peer.asked.target == "/stalls":
            await peer.gone()
        await peer.say(LAST_CHUNK)

    exchange = Exchange()
    async with serving(script) as server, client() as http:
        timeout = httpx.Timeout(5.0, read=0.3)
        assert (await http.get(server.url, timeout=timeout)).content == b"x" * 8
        with pytest.raises(httpx.ReadTimeout, match=r"nothing received for 0\.3 s"):
            await http.get(
                f"{server.url}/stalls", timeout=timeout, extensions={"exchange": exchange}
            )
    assert exchange.body() == b"x" * 8
    silent = exchange.ended - exchange.stamps[-1]
    assert 0.29 < silent < 0.6


async def test_no_timeout_when_none_is_set() -> None:
    async def script(peer: Peer) -> None:
        await asyncio.sleep(0.1)
        await peer.say(reply(b"late"))

    async with serving(script) as server, client() as http:
        assert (await http.get(server.url, timeout=None)).text == "late"


# --- nothing is left ---------------------------------------------------------------------------


async def test_cancelling_closes_the_connection_and_keeps_what_had_arrived() -> None:
    left = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.say(SSE_HEAD, chunked(b"hel"))
        await peer.gone()
        left.set()

    exchange = Exchange()
    async with serving(script) as server, client() as http:
        with anyio.move_on_after(0.1) as scope:
            await http.get(server.url, extensions={"exchange": exchange})
        assert scope.cancelled_caught
        with anyio.fail_after(2):
            await left.wait()
        assert exchange.body() == b"hel"
        assert not exchange.whole


@pytest.mark.parametrize("tls", [False, True])
async def test_cancelling_at_any_moment_leaks_no_socket(tls: bool, authority: Authority) -> None:
    async def script(peer: Peer) -> None:
        await peer.stream("a", "b", gap=0.002)

    before = open_sockets()
    context = ssl.create_default_context(cafile=authority.ca)
    server_tls = authority.server if tls else None
    async with serving(script, tls=server_tls) as server, client(verify=context) as http:
        for step in range(60):
            with anyio.move_on_after(step * 0.0002):
                await http.get(server.url)
        assert (await http.get(server.url)).status_code == 200
    await asyncio.sleep(0.02)
    gc.collect()
    assert open_sockets() == before


async def test_closing_the_client_closes_idle_and_busy_connections() -> None:
    async def script(peer: Peer) -> None:
        if peer.asked.target == "/busy":
            await peer.gone()
        await peer.say(reply(b""))

    before = open_sockets()
    async with serving(script) as server:
        http = client()
        await asyncio.gather(*(http.get(server.url) for _ in range(3)))
        busy = asyncio.ensure_future(http.get(f"{server.url}/busy"))
        await asyncio.sleep(0.05)
        await http.aclose()
        with pytest.raises(httpx.ReadError):
            await busy
    assert open_sockets() == before
