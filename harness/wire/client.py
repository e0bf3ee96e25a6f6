"""How a server is reached: the client, its key and its certificates, and the API's addresses."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path

import httpx

from harness.errors import UsageError
from harness.plan import TimeoutSpec
from harness.wire.transport import StampedTransport


def open_client(
    timeouts: TimeoutSpec,
    *,
    ca: Path | None = None,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> httpx.AsyncClient:
    """Client for ``Completions``: stamped, direct (no proxy), redirects reported.

    Args:
        timeouts: Its ``connect`` and ``idle`` apply.
        ca: PEM file of a certificate authority to trust besides the usual ones.
        key: API key, sent as a bearer token.
        headers: Further headers of every request.

    Raises:
        UsageError: The key or a header cannot be sent, or the CA file cannot be read. The message
            never holds the value.
    """
    fields = dict(headers or {})
    if key is not None:
        fields["Authorization"] = f"Bearer {key}"
    for name, value in fields.items():
        if not (value.isascii() and value.isprintable()):
            raise UsageError(
                f"the value of header {name} has a line end or a sign outside ASCII: "
                "check the API key or header for stray white space"
            )
    context: ssl.SSLContext | None = None
    if ca is not None:
        context = httpx.create_ssl_context()
        try:
            context.load_verify_locations(ca)
        except OSError as error:
            raise UsageError(f"CA file {ca} cannot be used: {error}") from error
    return httpx.AsyncClient(
        transport=StampedTransport(verify=context),
        headers=fields,
        timeout=httpx.Timeout(timeouts.idle, connect=timeouts.connect),
        trust_env=False,
    )


def endpoint(url: str, route: str) -> httpx.URL:
    """Address of an API route: ``/v1/<route>`` below ``url``, which may end in ``/v1`` itself."""
    base = httpx.URL(url)
    path = base.path.rstrip("/").removesuffix("/v1")
    return base.copy_with(path=f"{path}/v1/{route}")
