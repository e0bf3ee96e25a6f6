"""How a request ended: what was seen on the wire and read in the stream -> ``Outcome``, reason."""

from __future__ import annotations

from typing import Final

import httpx
import msgspec

from harness.records import Outcome
from harness.wire.chunks import Answer, error_text
from harness.wire.connection import Exchange

_TEXT_BYTES: Final = 2000
"""How much of a body is looked at for a reason: well over what a record keeps, since secrets are
taken out in between, and half a secret would not be recognised."""

_NOT_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_GIVEN_UP: Final = frozenset({"abort", "error"})
"""Finish reasons with which vLLM says that it gave the request up."""


def judge(
    exchange: Exchange, answer: Answer, failure: httpx.TransportError | None
) -> tuple[Outcome, str | None]:
    """Outcome and its reason (None if ``ok``): the first cause that the client can see.

    Args:
        exchange: The request and its response.
        answer: What was read of the response, if its status was 200.
        failure: Why the response is not whole, or None if it is.
    """
    if exchange.status is not None and exchange.status != 200:
        return Outcome.HTTP_ERROR, _http_reason(exchange)
    if answer.fault is not None:
        return Outcome.STREAM_ERROR, answer.fault
    if answer.nonsense is not None:
        return Outcome.MALFORMED, answer.nonsense
    if failure is not None:
        return _broken(failure), str(failure)
    return _whole(exchange, answer)


def _whole(exchange: Exchange, answer: Answer) -> tuple[Outcome, str | None]:
    """Of a whole response, status 200, that holds no error object."""
    encoding = (exchange.header(b"content-encoding") or b"identity").decode("latin-1")
    if encoding != "identity":
        # Decoding would give events, but at the times of a compressor's buffer.
        return Outcome.MALFORMED, f"Content-Encoding {encoding} though identity was asked for"
    if answer.events == 0 and exchange.pieces:
        return _no_stream(exchange.body())
    if answer.finish_reason is None:
        return Outcome.TRUNCATED, "the stream ended without a finish reason"
    if answer.finish_reason in _GIVEN_UP:
        return Outcome.STREAM_ERROR, f"finish reason {answer.finish_reason!r}"
    if not answer.token_times:
        return Outcome.NO_TOKENS, f"finish reason {answer.finish_reason!r} without any content"
    return Outcome.OK, None


def _broken(failure: httpx.TransportError) -> Outcome:
    match failure:
        case httpx.ConnectError() | httpx.ConnectTimeout():
            return Outcome.CONNECT_FAILED
        case httpx.ReadTimeout():
            return Outcome.TIMEOUT
        case httpx.RemoteProtocolError():
            return Outcome.MALFORMED
        case httpx.ReadError():
            return Outcome.DISCONNECTED
    raise failure


def _no_stream(body: bytes) -> tuple[Outcome, str]:
    """A 200 whose body holds no event: a plain error object, or something else altogether."""
    try:
        document = msgspec.json.decode(body)
    except _NOT_JSON:
        document = None
    if isinstance(document, dict) and "error" in document:
        return Outcome.STREAM_ERROR, error_text(document)
    return Outcome.MALFORMED, f"not an event stream: {_text(body)}"


def _http_reason(exchange: Exchange) -> str:
    """Status, the headers that explain it, and the server's own words."""
    body = exchange.body()
    try:
        words = error_text(msgspec.json.decode(body))
    except _NOT_JSON:
        words = _text(body)
    hints = [
        f"{name}: {value.decode('latin-1')}"
        for name in ("Location", "Retry-After", "Content-Encoding")
        if (value := exchange.header(name.lower().encode())) is not None
    ]
    return ", ".join([f"HTTP {exchange.status}", *hints]) + (f": {words}" if words else "")


def _text(body: bytes) -> str:
    return body[:_TEXT_BYTES].decode(errors="replace").strip()
