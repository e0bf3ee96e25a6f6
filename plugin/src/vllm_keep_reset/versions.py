"""Which vLLM this is, and whether it is one that the plugin knows.

A vLLM is known if its version is listed in `fingerprints.json` and everything that the plugin
replaces or relies on has the signature and the source text that is recorded there.

To support a further version: install it (or put its source first on PYTHONPATH), read what
changed in the functions that `python -m vllm_keep_reset` names, run the tests against it, then
record it with `python -m vllm_keep_reset --record`.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import textwrap
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_keep_reset.surfaces import RELIED_ON, REPLACED, ROUTE, resolve

if TYPE_CHECKING:
    from collections.abc import Callable

FINGERPRINTS = Path(__file__).with_name("fingerprints.json")
PARAMETERS = {
    "vllm.v1.core.block_pool:BlockPool.reset_prefix_cache": "allow_used_blocks",
    "vllm.v1.core.sched.scheduler:Scheduler.reset_prefix_cache": "keep_running_requests",
    "vllm.v1.engine.core:EngineCore.reset_prefix_cache": "keep_running_requests",
    ROUTE: "keep_running_requests",
}
"""Where keep mode shows if vLLM has it itself."""


class Status(Enum):
    """What the plugin does in this vLLM."""

    KNOWN = "known"
    """Keep mode can be added."""
    NATIVE = "native"
    """vLLM has keep mode itself; the plugin does nothing."""
    UNKNOWN = "unknown"
    """Only the HTTP route is replaced, to refuse keep mode with the reason."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What an examination found.

    Attributes:
        differences: one line for each thing that is not what the plugin knows.
    """

    status: Status
    vllm: str
    differences: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """Why keep mode cannot be added to this vLLM."""
        return (
            f"vllm-keep-reset does not know this vLLM ({self.vllm}) and adds no keep mode to it: "
            + "; ".join(self.differences)
        )


def fingerprint(thing: Callable[..., Any]) -> dict[str, str]:
    """Signature and SHA-256 of the source text of a function or class.

    Annotations are left out of the signature: their text depends on the Python version. The
    source is hashed as it stands, without indentation and trailing blanks.

    Raises:
        OSError: there is no source to read.
    """
    source = textwrap.dedent(inspect.getsource(thing))
    text = "\n".join(line.rstrip() for line in source.splitlines())
    return {
        "signature": _signature(thing),
        "source": hashlib.sha256(text.encode()).hexdigest(),
    }


def take_fingerprints() -> dict[str, dict[str, str]]:
    """Fingerprint everything in the installed vLLM that the plugin depends on."""
    return {name: fingerprint(resolve(name)) for name in (*REPLACED, ROUTE, *RELIED_ON)}


def examine() -> Finding:
    """Compare the installed, not yet changed vLLM with what the plugin knows."""
    version = _vllm_version()
    if _has_keep_mode():
        return Finding(Status.NATIVE, version)
    known = _recorded()
    release = _release(version)
    if release not in known:
        return Finding(
            Status.UNKNOWN,
            version,
            (f"its version is none of {', '.join(known)}",),
        )
    differences = tuple(
        line
        for name, recorded in known[release].items()
        if (line := _difference(name, recorded)) is not None
    )
    return Finding(Status.UNKNOWN if differences else Status.KNOWN, version, differences)


def _difference(name: str, recorded: dict[str, str]) -> str | None:
    try:
        found = fingerprint(resolve(name))
    except (ImportError, AttributeError, OSError, TypeError) as missing:
        return f"{name} cannot be read ({missing})"
    if found["signature"] != recorded["signature"]:
        return f"{name} takes {found['signature']} instead of {recorded['signature']}"
    if found["source"] != recorded["source"]:
        return f"{name} has other source text"
    return None


def _has_keep_mode() -> bool:
    for name, parameter in PARAMETERS.items():
        try:
            signature = inspect.signature(resolve(name))
        except (ImportError, AttributeError):
            continue
        if parameter in signature.parameters:
            return True
    return False


def _signature(thing: Callable[..., Any]) -> str:
    signature = inspect.signature(thing)
    bare = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
    ]
    text = str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def _vllm_version() -> str:
    return str(import_module("vllm.version").__version__)


def _release(version: str) -> str:
    return ".".join(version.split(".")[:2])


def record() -> str:
    """Record the installed vLLM as known, and return the release it is recorded under."""
    recorded = _recorded()
    release = _release(_vllm_version())
    recorded[release] = take_fingerprints()
    FINGERPRINTS.write_text(json.dumps(dict(sorted(recorded.items())), indent=1) + "\n")
    return release


def _recorded() -> dict[str, dict[str, dict[str, str]]]:
    recorded: dict[str, dict[str, dict[str, str]]] = json.loads(FINGERPRINTS.read_text())
    return recorded
