"""The HTTP client of the control side: plain httpx, connections of its own."""

from __future__ import annotations

import httpx

from harness.target import Endpoint


def control_client(endpoint: Endpoint, timeout: float) -> httpx.AsyncClient:
    """A client for ``endpoint`` alone: its headers and CA, no redirects, no proxy.

    The server may close an idle connection (vLLM's does so after 5 s) just as a request goes out
    on it, and a reset must not be sent twice; so one that was idle for 2 s is not used again.
    Bodies are asked for uncompressed: the replica has better things to do.
    """
    return httpx.AsyncClient(
        headers={"Accept-Encoding": "identity", **endpoint.headers},
        verify=endpoint.verify(),
        timeout=timeout,
        limits=httpx.Limits(keepalive_expiry=2.0),
        trust_env=False,
    )
