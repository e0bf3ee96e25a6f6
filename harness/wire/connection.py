"""One HTTP/1.1 connection, and what is seen of the exchanges it carries.

Stamps are ``time.perf_counter`` seconds: ``CLOCK_MONOTONIC`` on Linux, the same in every process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from time import perf_counter
from typing import Final, cast

import anyio
import httptools
import httpx

STALE_SECONDS: Final = 0.5
"""A kept connection that closes this soon after a request, with no byte of an answer, was closed
before the request reached it. Later, the server had the request, and it is not sent again."""

_BODILESS: Final = frozenset({204, 304})


class Exchange:
    """What was seen of one request and its response, true at every instant.

    Pass one as ``extensions={"exchange": exchange}`` to keep it whatever happens; a response's own
    is ``response.extensions["exchange"]``.

    Attributes:
        sent: When the request was handed to the socket, or None if it never was.
        status: HTTP status, or None until the response's headers are complete.
        headers: The response's headers, names in lower case.
        stamps: When each piece of the body arrived.
        pieces: The pieces, transfer coding removed. Two lists and no list of pairs, since each
            pair would be one more object for the garbage collector to look at.
        ended: When the last byte arrived, or when a failure was seen; None until then.
        whole: True once the response is complete.
    """

    __slots__ = ("ended", "headers", "pieces", "sent", "stamps", "status", "whole")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything, to be used again."""
        self.sent: float | None = None
        self.status: int | None = None
        self.headers: list[tuple[bytes, bytes]] = []
        self.stamps: list[float] = []
        self.pieces: list[bytes] = []
        self.ended: float | None = None
        self.whole = False

    def header(self, name: bytes) -> bytes | None:
        """First value of the response header ``name`` (in lower case), or None."""
        return next((value for key, value in self.headers if key == name), None)

    def reads(self) -> Iterator[tuple[float, bytes]]:
        """``(stamp, piece)`` of the body, in order."""
        return zip(self.stamps, self.pieces, strict=True)

    def body(self) -> bytes:
        """The body received so far."""
        return b"".join(self.pieces)


class Connection(asyncio.Protocol):
    """One connection, which carries one exchange at a time.

    Attributes:
        closed: Set when the socket is closed.
        stamp: When something was last sent or received.
    """

    def __init__(self, registry: set[Connection]) -> None:
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
        self._stamps: list[float] = []
        self._pieces: list[bytes] = []
        self._is_head = self._until_close = False

    # What the transport calls.

    async def carry(
        self, exchange: Exchange, message: bytes, silence: float | None, is_head: bool
    ) -> None:
        """Send ``message`` and return when its response is whole; close on any failure."""
        if self._transport is None or self._transport.is_closing():
            raise httpx.ConnectError("the server closed the connection before it could be used")
        self._exchange = exchange
        self._headers, self._stamps, self._pieces = (
            exchange.headers, exchange.stamps, exchange.pieces
        )  # fmt: skip
        self._is_head, self._until_close = is_head, False
        self._done = self._loop.create_future()
        self._transport.write(message)
        exchange.sent = self.stamp = perf_counter()
        if silence is not None:
            self._watch(silence, silence)
        try:
            await self._done
        except BaseException:
            self._detach()
            self.close()
            raise
        finally:
            if silence is not None:
                self._timer.cancel()
        if not self._keep:
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
        """Part of asyncio's protocol."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        self._parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        """Part of asyncio's protocol: stamp, then parse."""
        self.stamp = perf_counter()
        assert self._parser is not None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(httpx.RemoteProtocolError("the server switched protocols, unasked"))
        except httptools.HttpParserError as error:
            self._fail(httpx.RemoteProtocolError(f"not HTTP/1.1: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Part of asyncio's protocol."""
        if self._until_close and exc is None:
            self._finish()
        else:
            self._fail(httpx.ReadError(f"the connection broke: {exc or 'closed by the server'}"))
        self._parser = None
        self._registry.discard(self)
        self.closed.set()

    # What the parser calls. Bytes that belong to no exchange end the connection.

    def on_message_begin(self) -> None:
        """Part of the parser's protocol, as are the ``on_`` methods that follow."""
        if self._exchange is None:
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header, or a trailer."""
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Note the status, and whether the body runs until the connection ends."""
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
        """Keep a piece of the body with the stamp of the read that brought it."""
        self._stamps.append(self.stamp)
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        """End the exchange, unless this was an interim response (1xx)."""
        assert self._parser is not None
        assert self._transport is not None
        if self._exchange is None:
            return
        if self._exchange.status is None:
            self._headers.clear()
            return
        self._keep = (
            self._parser.should_keep_alive() and self._transport.get_write_buffer_size() == 0
        )
        self._finish()

    def _finish(self) -> None:
        exchange = self._detach()
        if exchange is not None:
            exchange.ended, exchange.whole = self.stamp, True
            if not self._done.done():
                self._done.set_result(None)

    def _fail(self, error: httpx.TransportError) -> None:
        exchange = self._detach()
        if exchange is not None:
            exchange.ended = perf_counter()
            if not self._done.done():
                self._done.set_exception(error)
        self.close()

    def _detach(self) -> Exchange | None:
        """The exchange that is carried, if any; from here on this connection leaves it alone."""
        exchange, self._exchange = self._exchange, None
        self._headers, self._stamps, self._pieces = [], [], []
        return exchange


def _frames_body(header: tuple[bytes, bytes]) -> bool:
    """Whether this header tells where the body ends; without one it ends with the connection."""
    name, value = header
    return name == b"content-length" or (
        name == b"transfer-encoding" and value.lower().endswith(b"chunked")
    )
