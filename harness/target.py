"""Where a run's traffic goes: load, resets and scrapes, each with own headers, key and CA."""

from __future__ import annotations

import ssl
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from harness.errors import UsageError
from harness.records import ResetMode


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
        """Whether the address names this machine by ``localhost`` or a loopback address."""
        host = urlsplit(self.url).hostname or ""
        try:
            return ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"

    def scrub(self, text: str) -> str:
        """``text`` without the header values sent to this address, which some servers echo.

        Words of less than four characters are no secrets, and would be found in everything.
        """
        words = {word for value in self.headers.values() for word in (value, *value.split())}
        for word in sorted(words, key=len, reverse=True):
            if len(word) >= 4:
                text = text.replace(word, "***")
        return text

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
    resets_allowed: bool = True
    """Whether its caches may be wiped. If not, no reset is sent, and none before the load."""


class _EndpointTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    url: str
    key_env: str | None = None
    headers: dict[str, str] = {}
    header_env: dict[str, str] = {}
    ca: str | None = None


class _TargetTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    load: _EndpointTable
    control: tuple[_EndpointTable, ...] = ()
    metrics: tuple[_EndpointTable, ...] = ()
    model: str | None = None


def read_target(file: Path, environment: Mapping[str, str]) -> Target:
    """The target in ``file`` (TOML): ``[load]``, ``[[control]]``, ``[[metrics]]``, ``model``.

    Each table has ``url`` and may have ``key_env`` (name of the variable with its API key),
    ``headers``, ``header_env`` (header name -> variable with its value) and ``ca``.

    Raises:
        UsageError: the file cannot be read, has an unknown key, or names an unset variable.
    """
    try:
        table = msgspec.toml.decode(file.read_bytes(), type=_TargetTable)
    except OSError as error:
        raise UsageError(f"--target {file}: {error.strerror}.") from None
    except msgspec.DecodeError as error:
        raise UsageError(f"--target {file}: {error}.") from None

    def endpoint(entry: _EndpointTable) -> Endpoint:
        headers = dict(entry.headers)
        for header, variable in entry.header_env.items():
            headers[header] = _variable(environment, variable, file)
        if entry.key_env is not None:
            headers["Authorization"] = f"Bearer {_variable(environment, entry.key_env, file)}"
        return Endpoint(entry.url, headers, Path(entry.ca) if entry.ca else None)

    return target(
        endpoint(table.load),
        [endpoint(entry) for entry in table.control],
        [endpoint(entry) for entry in table.metrics],
        table.model,
    )


def target(
    load: Endpoint, control: Sequence[Endpoint], metrics: Sequence[Endpoint], model: str | None
) -> Target:
    """A target whose resets go to the load's address, and scrapes to the resets', if not said."""
    pods = tuple(control) or (load,)
    return Target(load, pods, tuple(metrics) or pods, model)


def permit_resets(where: Target, modes: Collection[ResetMode], allowed: bool) -> Target:
    """``where`` with resets allowed if it is on this machine, or if the user ``allowed`` them.

    Emptying the cache before the load is a reset too: a run with neither (a control or a sham on
    somebody else's host) leaves the cache as it finds it.

    Raises:
        UsageError: resets of ``modes`` would wipe the cache of another host, unallowed.
    """
    hosts = [urlsplit(each.url).hostname for each in where.control if not each.is_loopback]
    if hosts and not allowed and not {ResetMode.NONE, ResetMode.SHAM}.issuperset(modes):
        raise UsageError(
            f"resets wipe the prefix cache of {', '.join(dict.fromkeys(map(str, hosts)))} for "
            "everybody who uses it, and it is not this machine: give --allow-reset-on-remote if "
            "that is meant."
        )
    return replace(where, resets_allowed=allowed or not hosts)


def headers_from(lines: Sequence[str], key: str | None) -> dict[str, str]:
    """Headers from ``Name: value`` lines and an API key.

    Raises:
        UsageError: a line has no name or no colon; its value is not repeated.
    """
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise UsageError("--header takes 'Name: value'; one of them has no name or no colon.")
        headers[name.strip()] = value.strip()
    if key:
        headers["Authorization"] = f"Bearer {key}"
    return headers


def _variable(environment: Mapping[str, str], name: str, file: Path) -> str:
    try:
        return environment[name]
    except KeyError:
        raise UsageError(
            f"--target {file}: environment variable {name} is not set; export it first."
        ) from None
