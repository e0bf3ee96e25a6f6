"""The HTTP client of the control side: plain httpx, connections of its own."""

from __future__ import annotations

import ssl
from http import HTTPStatus

import anyio
import httpx
import msgspec

from harness.errors import TargetError
from harness.target import Endpoint

TIMEOUT = 10.0
"""Seconds to wait for a route that only tells something."""
NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises for a body that is not the JSON expected."""


def control_client(endpoint: Endpoint, timeout: float, kept: int = 0) -> httpx.AsyncClient:
    """A client for ``endpoint`` alone: its headers and CA, no redirects, no proxy.

    Unless ``kept`` connections may wait for the next request (for 2 s: vLLM's server closes idle
    ones after 5), every request has one of its own. On a kept one, what the server still had to say
    to the last request, a second reply, is taken for the answer to the next; and it may close just
    as a reset goes out, which must not be sent twice. Bodies are asked for uncompressed: the
    replica has better things to do.

    ``timeout`` bounds each wait of a request, in seconds. A server that trickles keeps every one
    short, so callers bound the whole request besides.
    """
    return httpx.AsyncClient(
        headers={"Accept-Encoding": "identity", **endpoint.headers},
        verify=endpoint.verify(),
        timeout=timeout,
        limits=httpx.Limits(max_keepalive_connections=kept, keepalive_expiry=2.0),
        trust_env=False,
    )


async def get(endpoint: Endpoint, route: str) -> httpx.Response:
    """The answer of ``route``.

    Raises:
        TargetError: there is no answer of status 200; the message says which kind of wrong it is.
    """
    response = await reach(endpoint, route)
    status, url = response.status_code, endpoint.url
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        given = "authorization" in map(str.lower, endpoint.headers)
        raise TargetError(
            f"{url} refuses the key (HTTP {status}): "
            + ("give the one it was started with" if given else "it wants one and none was given")
        )
    if response.is_redirect:
        raise TargetError(
            f"{url}{route} redirects to {endpoint.scrub(response.headers.get('location', ''))}: "
            "give the final address itself; redirects are refused, so that no key goes elsewhere"
        )
    if status == HTTPStatus.NOT_FOUND:
        raise TargetError(
            f"{url} answers in HTTP and has no {route}: this is not vLLM, or its base path is "
            "missing from the address"
        )
    if status != HTTPStatus.OK:
        words = endpoint.scrub(response.text)[:500]
        raise TargetError(f"{url}{route} answers HTTP {status}: {words}")
    return response


async def reach(endpoint: Endpoint, route: str) -> httpx.Response:
    """The answer of ``route``, whatever its status.

    Raises:
        TargetError: there is none.
    """
    url = endpoint.url
    try:
        with anyio.fail_after(TIMEOUT):
            async with control_client(endpoint, TIMEOUT) as client:
                return await client.get(f"{url}{route}")
    except (httpx.TimeoutException, TimeoutError) as failure:
        raise TargetError(
            f"{url} gave no whole answer to {route} in {TIMEOUT:.0f} s "
            f"({type(failure).__name__}): is the server up, and not behind a firewall?"
        ) from failure
    except httpx.ConnectError as failure:
        raise TargetError(_unreachable(url, failure)) from failure
    except httpx.ProtocolError as failure:
        raise TargetError(
            f"{url} accepts connections and does not speak HTTP there ({failure}): check the port, "
            "and http:// against https://"
        ) from failure
    except httpx.TransportError as failure:
        raise TargetError(
            f"{url}{route}: the connection broke ({type(failure).__name__}: {failure}); check the "
            "port, and http:// against https://"
        ) from failure
    except httpx.DecodingError as failure:
        raise TargetError(
            f"{url}{route} answers with a body that is not of the coding it names ({failure}): is "
            "something between here and the server?"
        ) from failure


def _unreachable(url: str, failure: BaseException) -> str:
    cause: BaseException | None = failure
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return (
            f"the certificate of {url} does not verify ({cause.verify_message}): name the "
            "authority that signed it with the address's CA option"
        )
    if cause is not None:
        return f"{url} does not speak TLS ({cause.reason}): is it http:// instead?"
    return f"{url} cannot be reached ({failure}): is the server up, and the address right?"
