"""How a server is reached: the client and the addresses of the API."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

import httpx

from harness.errors import UsageError
from harness.scenario import TimeoutSpec
from harness.wire.transport import StampedTransport


class _NoCookies(httpx.Cookies):
    """Keeps none: a gateway's sticky session must not steer the requests that follow."""

    def extract_cookies(self, response: httpx.Response) -> None:
        """Leave them (and save what reading them costs, a quarter of a request's work)."""


class _Client(httpx.AsyncClient):
    @property
    def cookies(self) -> httpx.Cookies:
        return _NO_COOKIES

    @cookies.setter
    def cookies(self, cookies: object) -> None:
        raise NotImplementedError("this client keeps no cookies; send a Cookie header")


_NO_COOKIES = _NoCookies()


def open_client(
    timeouts: TimeoutSpec,
    *,
    headers: Mapping[str, str] | None = None,
    verify: ssl.SSLContext | bool = True,
) -> httpx.AsyncClient:
    """Client for ``Completions``: stamped, direct (no proxy), no cookies, redirects reported.

    Args:
        timeouts: Its ``connect`` and ``idle`` apply.
        headers: Headers of every request, the API key among them.
        verify: TLS settings as httpx takes them.

    Raises:
        UsageError: A header cannot be sent. The message does not hold its value.
    """
    for name, value in (headers or {}).items():
        if not (value.isascii() and value.isprintable()):
            raise UsageError(
                f"the value of header {name} has a line end or a sign outside ASCII: "
                "check the key or header for stray white space"
            )
    return _Client(
        transport=StampedTransport(verify=verify),
        headers=headers,
        timeout=httpx.Timeout(timeouts.idle, connect=timeouts.connect),
        trust_env=False,
    )


def endpoint(url: str, route: str) -> httpx.URL:
    """Address of an API route: ``/v1/<route>`` below ``url``, which may end in ``/v1`` itself."""
    base = httpx.URL(url)
    path = base.path.rstrip("/").removesuffix("/v1")
    return base.copy_with(path=f"{path}/v1/{route}")
