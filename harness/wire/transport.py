"""An httpx transport that stamps every read in the protocol callback.

A client that wakes a task for each chunk pays for the wake-up (most of httpx's cost per token) and
stamps late, after whatever else the loop had to do. Here the callback stamps and stores; the caller
wakes once, when the response is whole or has failed. What was seen is kept in an ``Exchange`` that
the caller may hold, so a failure or a cancellation loses nothing that had arrived.

Runs on asyncio and uvloop.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from time import perf_counter
from typing import Final

import anyio
import httpx

from harness.wire.connection import Connection, Exchange

KEEP_ALIVE_SECONDS: Final = 4.0
"""How long an idle connection is used again: below uvicorn's 5 s, whose close it would race."""

Origin = tuple[str, bytes, int | None]


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
        self._idle: dict[Origin, list[Connection]] = {}
        self._open: set[Connection] = set()
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

    def _take(self, origin: Origin) -> Connection | None:
        """The idle connection used last, or None if none is fresh and open."""
        idle = self._idle.get(origin, [])
        oldest = perf_counter() - self._keep_alive
        while idle:
            connection = idle.pop()
            if connection.stamp >= oldest and connection.is_reusable():
                return connection
            connection.close()
        return None

    async def _connect(self, url: httpx.URL, limit: float | None) -> Connection:
        if url.scheme not in {"http", "https"}:
            raise httpx.UnsupportedProtocol(f"{url.scheme!r} is neither http nor https")
        context = self._context() if url.scheme == "https" else None
        host = url.raw_host.decode("ascii")
        loop = asyncio.get_running_loop()
        connection = Connection(self._open)
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
            reason = str(error) or f"none within {limit:g} s"
            raise httpx.ConnectTimeout(f"no connection to {host}: {reason}") from error
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
