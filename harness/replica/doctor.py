"""What a server is and can do, read from routes that change nothing; never by sending a reset.

The load address needs ``/v1/models`` only, since it may be a router's. Control addresses are read
at ``/version``, ``/health`` and ``/openapi.json``, metrics addresses at ``/metrics``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus
from typing import Any

import httpx
import msgspec

from harness.errors import KeepUnsupported, TargetError
from harness.records import ResetMode
from harness.replica.client import NOT_JSON, get, reach
from harness.replica.metrics import cache_config, server_samples
from harness.replica.reset import PARAMETERS, ROUTE
from harness.replica.schema import read_schema
from harness.target import Endpoint, Target

FIRST_TOLD = 26
"""vLLM 0.26 was the first to say in a reset's reply whether it cleared."""
ADD_PLUGIN = (
    "install the keep-mode plugin (distribution vllm-keep-reset, this project's plugin/ folder) in "
    "the server's environment and restart it; if VLLM_PLUGINS is set there, add keep_reset to it"
)


class Level(StrEnum):
    """How much a finding matters to the run at hand."""

    OK = "ok"
    WARNING = "warning"
    """The run is possible and something will be missing."""
    PROBLEM = "problem"
    """The run is not possible."""


@dataclass(frozen=True)
class Finding:
    """One thing found out, in words; a problem says what to set on the server."""

    level: Level
    text: str
    keep: bool = False
    """It is the keep reset that is missing."""


@dataclass
class Diagnosis:
    """What was found; what could not be read is None or empty."""

    model: str | None = None
    """The name to ask for."""
    models: tuple[str, ...] = ()
    max_model_len: int | None = None
    versions: tuple[str, ...] = ()
    """vLLM's own version at each control address that tells it."""
    reset_modes: frozenset[ResetMode] = frozenset()
    """What every control address lists in its schema."""
    reset_external: bool = False
    engines: tuple[str, ...] = ()
    """As the samples of ``/metrics`` will name them."""
    cache: dict[str, dict[str, str]] = field(default_factory=dict)
    """Cache configuration by engine, as vLLM words it."""
    findings: list[Finding] = field(default_factory=list)

    def raise_problem(self) -> None:
        """Raise the first problem, if there is one.

        Raises:
            KeepUnsupported: a control address does not list the keep reset.
            TargetError: any other problem.
        """
        for finding in self.findings:
            if finding.level is Level.PROBLEM:
                raise (KeepUnsupported if finding.keep else TargetError)(finding.text)

    def lines(self) -> list[str]:
        """The findings, one a line, to be printed."""
        return [f"{finding.level.value:<8} {finding.text}" for finding in self.findings]

    def warnings(self) -> tuple[str, ...]:
        """The texts of the warnings."""
        return tuple(found.text for found in self.findings if found.level is Level.WARNING)

    def server(self) -> dict[str, Any]:
        """The manifest's description of the server."""
        return {
            "version": ", ".join(dict.fromkeys(self.versions)) or None,
            "model": self.model,
            "models": list(self.models),
            "max_model_len": self.max_model_len,
            "engines": list(self.engines),
            "reset_modes": sorted(self.reset_modes),
            "reset_external": self.reset_external,
            "cache_config": self.cache,
        }

    def note(self, level: Level, text: str, *, keep: bool = False) -> None:
        """Add a finding."""
        self.findings.append(Finding(level, text, keep))


async def inspect(target: Target, needed: Collection[ResetMode]) -> Diagnosis:
    """Read what ``target`` is and whether it can serve a run with resets of the ``needed`` modes.

    Sends nothing but GET requests, and raises for nothing that a server does: see
    ``Diagnosis.raise_problem``.
    """
    diagnosis = Diagnosis()
    needed = frozenset(needed) & PARAMETERS.keys()
    try:
        await _read_load(diagnosis, target)
    except TargetError as problem:
        diagnosis.note(Level.PROBLEM, str(problem))
    severity = Level.PROBLEM if needed else Level.WARNING
    known: list[frozenset[str]] = []
    for endpoint in target.control:
        try:
            known.append(await _read_control(diagnosis, endpoint, needed))
        except TargetError as problem:
            diagnosis.note(severity, str(problem))
            known.append(frozenset())
    shared = frozenset[str]().union(*known).intersection(*known)
    diagnosis.reset_modes = frozenset(_modes(shared))
    diagnosis.reset_external = "reset_external" in shared
    for index, endpoint in enumerate(target.metrics):
        prefix = f"{index}/" if len(target.metrics) > 1 else ""
        try:
            await _read_metrics(diagnosis, endpoint, prefix, severity)
        except TargetError as problem:
            diagnosis.note(Level.WARNING, f"{problem} (the run will have no server samples)")
    return diagnosis


async def _read_load(diagnosis: Diagnosis, target: Target) -> None:
    endpoint = target.load
    response = await get(endpoint, "/v1/models")
    listed = _json(response).get("data")
    if not isinstance(listed, list) or not all(
        isinstance(entry, dict) and isinstance(entry.get("id"), str) for entry in listed
    ):
        raise TargetError(
            f"{endpoint.url}/v1/models does not list models: this is not vLLM or a router to it"
        )
    models = {entry["id"]: entry for entry in listed}
    diagnosis.models = tuple(models)
    served = ", ".join(models) or "none"
    # adapters (LoRA) name a parent; a plain run asks for the model itself
    own = [name for name, entry in models.items() if not entry.get("parent")]
    name = target.model or next(iter(own or models), None)
    if name is None or name not in models:
        wanted = f"{target.model!r}" if target.model else "any model"
        raise TargetError(f"{endpoint.url} does not serve {wanted}; it serves {served}")
    diagnosis.model = name
    length = models[name].get("max_model_len")
    diagnosis.max_model_len = length if isinstance(length, int) else None
    key = "; the key is accepted" if "authorization" in map(str.lower, endpoint.headers) else ""
    diagnosis.note(Level.OK, f"{endpoint.url} serves {served}; asking for {name}{key}")


async def _read_control(
    diagnosis: Diagnosis, endpoint: Endpoint, needed: frozenset[ResetMode]
) -> frozenset[str]:
    """What the reset route of ``endpoint`` knows: its parameters, and "" for the route itself."""
    version = await _version(endpoint)
    schema = await read_schema(endpoint)
    if version is None and schema is None:
        raise TargetError(
            f"{endpoint.url} is not vLLM: it has neither /version nor /openapi.json; give the "
            "address of the replica itself with --control-url if this is a router"
        )
    health = await reach(endpoint, "/health")
    if health.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise TargetError(
            f"{endpoint.url}/health answers {health.status_code}: the engine is dead; see the "
            "server's log and restart it"
        )
    if version is not None:
        diagnosis.versions += (version,)
        _check_version(diagnosis, endpoint, version, needed)
    if schema is None:
        _without_schema(diagnosis, endpoint, needed)
        return frozenset()
    route = schema.operation(ROUTE)
    if route is None:
        raise TargetError(
            f"{endpoint.url} has no {ROUTE}: start the server with VLLM_SERVER_DEV_MODE=1 (and let "
            "only this machine reach it: no API key guards that route)"
        )
    known = frozenset({""} | {parameter.name for parameter in route.parameters})
    diagnosis.note(
        Level.OK,
        f"{endpoint.url} is vLLM {version or 'of unknown version'} in development mode; "
        f"resets: {', '.join(mode for mode in _modes(known))}",
    )
    for mode in sorted(needed - set(_modes(known))):
        diagnosis.note(
            Level.PROBLEM,
            f"{endpoint.url} does not know the {mode} reset ({ROUTE} has no parameter "
            f"{next(iter(PARAMETERS[mode]))}): "
            + (ADD_PLUGIN if mode is ResetMode.KEEP else "use a newer vLLM"),
            keep=mode is ResetMode.KEEP,
        )
    return known


def _check_version(
    diagnosis: Diagnosis, endpoint: Endpoint, version: str, needed: frozenset[ResetMode]
) -> None:
    release = re.match(
        r"0\.(\d+)\.", version
    )  # a build from source is 0.1.dev...: it tells nothing
    if needed and release and "dev" not in version and int(release[1]) < FIRST_TOLD:
        diagnosis.note(
            Level.PROBLEM,
            f"{endpoint.url} is vLLM {version}, whose resets answer 200 without saying whether "
            f"anything was cleared: use 0.{FIRST_TOLD} or newer",
        )


def _without_schema(diagnosis: Diagnosis, endpoint: Endpoint, needed: frozenset[ResetMode]) -> None:
    text = (
        f"{endpoint.url} hides its schema, so which resets it knows cannot be read: start it "
        "without --disable-fastapi-docs"
    )
    if ResetMode.KEEP in needed:
        # A server that does not know the parameter drops it and wipes: never try.
        diagnosis.note(Level.PROBLEM, f"{text}; for the keep reset, {ADD_PLUGIN}", keep=True)
    else:
        diagnosis.note(Level.WARNING, text)


def _modes(known: frozenset[str]) -> Iterator[ResetMode]:
    """The modes a reset route with these parameters ("" for the route itself) knows."""
    for mode, parameters in PARAMETERS.items():
        if "" in known and known.issuperset(parameters):
            yield mode


async def _version(endpoint: Endpoint) -> str | None:
    response = await reach(endpoint, "/version")
    version = _object(response).get("version") if response.is_success else None
    return version if isinstance(version, str) else None


async def _read_metrics(
    diagnosis: Diagnosis, endpoint: Endpoint, prefix: str, severity: Level
) -> None:
    response = await get(endpoint, "/metrics")
    try:
        samples = server_samples(response.text, 0.0)
        configurations = cache_config(response.text)
    except ValueError as error:
        raise TargetError(f"{endpoint.url}/metrics is not Prometheus text: {error}") from error
    if not samples:
        raise TargetError(
            f"{endpoint.url}/metrics has none of vLLM's counters: start the server without "
            "--disable-log-stats, or give the replica's own address with --metrics-url"
        )
    diagnosis.engines += tuple(f"{prefix}{sample.engine}" for sample in samples)
    diagnosis.cache |= {f"{prefix}{engine}": c for engine, c in configurations.items()}
    for engine, configuration in configurations.items():
        if configuration.get("enable_prefix_caching") == "False":
            diagnosis.note(
                severity,
                f"{endpoint.url} (engine {engine}) runs without a prefix cache: start the server "
                "with --enable-prefix-caching",
            )
    diagnosis.note(
        Level.OK, f"{endpoint.url}/metrics has vLLM's counters of {len(samples)} engine(s)"
    )


def _json(response: httpx.Response) -> dict[str, Any]:
    body = _object(response)
    if not body:
        raise TargetError(f"{response.url} answers without a JSON object: this is not vLLM")
    return body


def _object(response: httpx.Response) -> dict[str, Any]:
    """The JSON object in ``response``, empty if there is none."""
    try:
        return msgspec.json.decode(response.content, type=dict[str, Any])
    except NOT_JSON:
        return {}
