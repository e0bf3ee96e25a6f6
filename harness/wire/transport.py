"""An httpx transport that stamps every read in the protocol callback.

A client that wakes a task for each chunk pays for the wake-up (most of httpx's cost per token) and
stamps late, after whatever else the loop had to do. Here the callback stamps and stores; the caller
wakes once, when the response is whole or has failed. What was seen is kept in an ``Exchange`` that
the caller may hold, so a failure or a cancellation loses nothing that had arrived.

Runs on asyncio and uvloop. Stamps are ``time.perf_counter`` seconds (``CLOCK_MONOTONIC`` on Linux,
the same in every process).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from time import perf_counter
from typing import Final, cast

import anyio
import httptools
import httpx

KEEP_ALIVE_SECONDS: Final = 4.0
"""How long an idle connection is used again: below uvicorn's 5 s, whose close it would race."""

STALE_SECONDS: Final = 0.5
"""A kept connection that closes this soon after a request, with no byte of an answer, was closed
before the request reached it. Later, the server had the request, and it is not sent again."""

_BODILESS: Final = frozenset({204, 304})

Origin = tuple[str, bytes, int | None]


class Exchange:
    """What was seen of one request and its response, true at every instant.

    Pass one as ``extensions={"exchange": exchange}`` to keep it whatever happens; a response's own
    is ``response.extensions["exchange"]``.

    Attributes:
        sent: When the request was handed to the socket, or None if it never was.
        status: HTTP status, or None until the response's headers are complete.
        headers: The response's headers, names in lower case.
        reads: ``(stamp, bytes)`` of the body, in order, transfer coding removed.
        ended: When the last byte arrived, or when a failure was seen; None until then.
        whole: True once the response is complete.
    """

    __slots__ = ("ended", "headers", "reads", "sent", "status", "whole")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything, to be used again."""
        self.sent: float | None = None
        self.status: int | None = None
        self.headers: list[tuple[bytes, bytes]] = []
        self.reads: list[tuple[float, bytes]] = []
        self.ended: float | None = None
        self.whole = False

    def header(self, name: bytes) -> bytes | None:
        """First value of the response header ``name`` (in lower case), or None."""
        return next((value for key, value in self.headers if key == name), None)

    def body(self) -> bytes:
        """The body received so far."""
        return b"".join([data for _, data in self.reads])


class StampedTransport(httpx.AsyncBaseTransport):
    """Stamped HTTP/1.1 without a cap on connections.

    A request waits for nothing but its own connection. Idle connections are used again, the latest
    first; one that the server closed before it answered anything is replaced once. Redirects are
    the client's business, whose default is to report them. A request body is read into memory
    before it is sent. Honours the ``connect`` timeout, and ``read`` as the longest silence;
    ``write`` and ``pool`` do not apply.

    Args:
        verify: TLS settings as httpx takes them; made when the first ``https`` URL is met.
        uds: Path of a Unix socket to connect to, whatever the URL's host.
        keep_alive: Seconds after which an idle connection is not used again.

    A request raises ``httpx.ConnectError`` or ``ConnectTimeout`` (nothing was sent), ``ReadError``
    (the connection broke before the response was whole), ``ReadTimeout`` (silence),
    ``RemoteProtocolError`` (what arrived is not HTTP), ``LocalProtocolError`` (a header of the
    request cannot be sent) or ``UnsupportedProtocol``.
    """

    def __init__(
        self,
        *,
        verify: ssl.SSLContext | bool = True,
        uds: str | None = None,
        keep_alive: float = KEEP_ALIVE_SECONDS,
    ) -> None:
        self._verify = verify
        self._tls: ssl.SSLContext | None = None
        self._uds = uds
        self._keep_alive = keep_alive
        self._idle: dict[Origin, list[_Connection]] = {}
        self._open: set[_Connection] = set()
        self._closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send ``request`` and return its whole response; see the class for what is raised."""
        exchange: Exchange = request.extensions.get("exchange") or Exchange()
        message = _message(request, await request.aread())
        timeouts = request.extensions.get("timeout", {})
        connect, silence = timeouts.get("connect"), timeouts.get("read")
        url, is_head = request.url, request.method == "HEAD"
        origin = (url.scheme, url.raw_host, url.port)
        kept = self._take(origin)
        connection = kept or await self._connect(url, connect)
        try:
            await connection.carry(exchange, message, silence, is_head)
        except httpx.ReadError:
            if connection is not kept or self._closed or not connection.is_stale(exchange):
                raise
            exchange.clear()
            connection = await self._connect(url, connect)
            await connection.carry(exchange, message, silence, is_head)
        if connection.is_reusable():
            self._idle.setdefault(origin, []).append(connection)
        assert exchange.status is not None
        return httpx.Response(
            exchange.status,
            headers=exchange.headers,
            stream=_Body(exchange),
            extensions={"http_version": b"HTTP/1.1", "exchange": exchange},
        )

    async def aclose(self) -> None:
        """Close every connection, and wait until their sockets are closed."""
        self._closed = True
        connections = list(self._open)
        for connection in connections:
            connection.close()
        with anyio.CancelScope(shield=True):
            for connection in connections:
                await connection.closed.wait()

    def _take(self, origin: Origin) -> _Connection | None:
        """The idle connection used last, or None if none is fresh and open."""
        idle = self._idle.get(origin, [])
        oldest = perf_counter() - self._keep_alive
        while idle:
            connection = idle.pop()
            if connection.stamp >= oldest and connection.is_reusable():
                return connection
            connection.close()
        return None

    async def _connect(self, url: httpx.URL, limit: float | None) -> _Connection:
        if url.scheme not in {"http", "https"}:
            raise httpx.UnsupportedProtocol(f"{url.scheme!r} is neither http nor https")
        context = self._context() if url.scheme == "https" else None
        host = url.raw_host.decode("ascii")
        loop = asyncio.get_running_loop()
        connection = _Connection(self._open)
        try:
            with anyio.fail_after(limit):
                if self._uds is not None:
                    name = host if context else None
                    await loop.create_unix_connection(
                        lambda: connection, self._uds, ssl=context, server_hostname=name
                    )
                else:
                    port = url.port or (443 if context else 80)
                    await loop.create_connection(lambda: connection, host, port, ssl=context)
        except TimeoutError as error:
            raise httpx.ConnectTimeout(f"no connection to {host} within {limit} s") from error
        except (OSError, UnicodeError) as error:
            raise httpx.ConnectError(f"no connection to {host}: {error}") from error
        # Only now: uvloop tells a connection that it closes while connecting nothing.
        if not connection.closed.is_set():
            self._open.add(connection)
        return connection

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = httpx.create_ssl_context(self._verify)
        return self._tls


class _Connection(asyncio.Protocol):
    """One connection, which carries one exchange at a time.

    Attributes:
        closed: Set when the socket is closed.
        stamp: When something was last sent or received.
    """

    def __init__(self, registry: set[_Connection]) -> None:
        self.closed = anyio.Event()
        self.stamp = perf_counter()
        self._registry = registry
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._keep = True
        self._exchange: Exchange | None = None
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._headers: list[tuple[bytes, bytes]] = []
        self._reads: list[tuple[float, bytes]] = []
        self._is_head = self._until_close = False

    # What the transport calls.

    async def carry(
        self, exchange: Exchange, message: bytes, silence: float | None, is_head: bool
    ) -> None:
        """Send ``message`` and return when its response is whole; close on any failure."""
        if self._transport is None or self._transport.is_closing():
            raise httpx.ConnectError("the server closed the connection before it could be used")
        self._exchange = exchange
        self._headers, self._reads = exchange.headers, exchange.reads
        self._is_head, self._until_close = is_head, False
        self._done = self._loop.create_future()
        self._transport.write(message)
        exchange.sent = self.stamp = perf_counter()
        if silence is not None:
            self._watch(silence, silence)
        try:
            await self._done
        finally:
            if silence is not None:
                self._timer.cancel()
            if not (exchange.whole and self.is_reusable()):
                self._exchange = None
                self.close()

    def is_reusable(self) -> bool:
        """Whether another exchange may follow."""
        return self._keep and self._transport is not None and not self._transport.is_closing()

    def is_stale(self, exchange: Exchange) -> bool:
        """Whether ``exchange`` failed because this connection had been closed before it."""
        if exchange.sent is None or exchange.ended is None or self.stamp != exchange.sent:
            return False
        return exchange.ended - exchange.sent < STALE_SECONDS

    def close(self) -> None:
        """Close the socket now, whatever is unsent."""
        self._keep = False
        if self._transport is not None:
            self._transport.abort()

    def _watch(self, delay: float, silence: float) -> None:
        """One timer an exchange, armed again for what is left: nothing to do at each read."""
        self._timer = self._loop.call_later(delay, self._check, silence)

    def _check(self, silence: float) -> None:
        left = self.stamp + silence - perf_counter()
        if left > 0:
            self._watch(left, silence)
        else:
            self._fail(httpx.ReadTimeout(f"nothing received for {silence:g} s"))

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        self._parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        self.stamp = perf_counter()
        assert self._parser is not None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(httpx.RemoteProtocolError("the server switched protocols, unasked"))
        except httptools.HttpParserError as error:
            self._fail(httpx.RemoteProtocolError(f"not HTTP/1.1: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._until_close and exc is None:
            self._finish()
        else:
            self._fail(httpx.ReadError(f"the connection broke: {exc or 'closed by the server'}"))
        self._parser = None
        self._registry.discard(self)
        self.closed.set()

    # What the parser calls. Bytes that belong to no exchange end the connection.

    def on_message_begin(self) -> None:
        if self._exchange is None:
            self._headers, self._reads = [], []
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        status = self._parser.get_status_code()
        if self._exchange is None or status < 200:
            return
        self._exchange.status = status
        self._until_close = status not in _BODILESS and not any(map(_frames_body, self._headers))
        if self._is_head:
            self._keep = False  # httptools cannot be told that no body follows
            self._finish()

    def on_body(self, body: bytes) -> None:
        self._reads.append((self.stamp, body))

    def on_message_complete(self) -> None:
        assert self._parser is not None
        assert self._transport is not None
        if self._exchange is None:
            return
        if self._exchange.status is None:  # 1xx: the response proper follows
            self._headers.clear()
            return
        self._keep = (
            self._parser.should_keep_alive() and self._transport.get_write_buffer_size() == 0
        )
        self._finish()

    def _finish(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.ended, exchange.whole = self.stamp, True
            if not self._done.done():
                self._done.set_result(None)

    def _fail(self, error: httpx.TransportError) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.ended = perf_counter()
            if not self._done.done():
                self._done.set_exception(error)
        self.close()


class _Body(httpx.AsyncByteStream):
    """The body of a response that is already here."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._exchange.body()


def _message(request: httpx.Request, body: bytes) -> bytes:
    """The request as HTTP/1.1 bytes, its length known whatever its headers said."""
    lines = [b"%b %b HTTP/1.1" % (request.method.encode("ascii"), request.url.raw_path)]
    for name, value in request.headers.raw:
        if name.lower() == b"transfer-encoding":
            lines.append(b"Content-Length: %d" % len(body))
            continue
        if any(sign in value for sign in b"\r\n\0"):
            # The value may be a secret: name the header only.
            raise httpx.LocalProtocolError(
                f"header {name.decode('ascii')} holds a line end or NUL; remove it"
            )
        lines.append(b"%b: %b" % (name, value))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def _frames_body(header: tuple[bytes, bytes]) -> bool:
    """Whether this header tells where the body ends; without one it ends with the connection."""
    name, value = header
    return name == b"content-length" or (
        name == b"transfer-encoding" and value.lower().endswith(b"chunked")
    )
