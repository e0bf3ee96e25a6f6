"""Where a run's traffic goes: load, resets and scrapes, each with own headers, key and CA."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from harness.errors import UsageError


@dataclass(frozen=True)
class Endpoint:
    """One HTTP address. ``url`` may have a base path; a trailing slash or ``/v1`` is dropped.

    ``headers`` may hold secrets, so they stay out of every repr; they are never journaled.

    Raises:
        UsageError: the address is not http or https, or has no host.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    ca: Path | None = None
    """PEM file of the authorities to trust instead of the system's."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"{self.url!r} is not an http:// or https:// address with a host.")
        if parts.username or parts.password:
            raise UsageError("put credentials into a header or a key, not into the address.")
        object.__setattr__(self, "url", self.url.rstrip("/").removesuffix("/v1").rstrip("/"))

    @property
    def is_loopback(self) -> bool:
        """Whether the address names this machine by its loopback name."""
        host = urlsplit(self.url).hostname or ""
        return host in {"localhost", "::1"} or host.startswith("127.")

    def verify(self) -> ssl.SSLContext | bool:
        """What ``httpx`` takes as ``verify``.

        Raises:
            UsageError: the CA file cannot be read.
        """
        if self.ca is None:
            return True
        try:
            return ssl.create_default_context(cafile=str(self.ca))
        except (OSError, ssl.SSLError) as error:
            raise UsageError(f"CA file {self.ca}: {error}.") from None


@dataclass(frozen=True)
class Target:
    """The addresses of one replica, or of a router and the pods behind it.

    ``control`` takes resets and ``metrics`` is sampled, one address a pod.
    """

    load: Endpoint
    control: tuple[Endpoint, ...]
    metrics: tuple[Endpoint, ...]
    model: str | None = None
    """The model to ask for; None asks the server what it serves."""
