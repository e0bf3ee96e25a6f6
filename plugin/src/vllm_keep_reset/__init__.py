"""Keep mode for vLLM: a prefix-cache reset that leaves running requests alone.

vLLM loads `register` through the entry point group `vllm.general_plugins` in the API server,
the engine core and every worker.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from vllm_keep_reset.report import KeepRefused, ResetMode, ResetReport
from vllm_keep_reset.surfaces import ADDED, REPLACED, ROUTE, replace, resolve
from vllm_keep_reset.versions import Finding, Status, examine

if TYPE_CHECKING:
    from collections.abc import Callable

__version__ = "0.1.0"
__all__ = [
    "Finding",
    "KeepRefused",
    "ResetMode",
    "ResetReport",
    "Status",
    "finding",
    "original",
    "register",
]

logger = logging.getLogger("vllm.keep_reset")
_found: Finding | None = None
_originals: dict[str, Callable[..., Any]] = {}


def finding() -> Finding:
    """What the plugin found in this vLLM: as it was before `register`, if that ran."""
    return examine() if _found is None else _found


def original(name: str) -> Callable[..., Any]:
    """Return the function of vLLM that `register` replaced, by its name in `surfaces.REPLACED`."""
    return _originals[name]


def register() -> None:
    """Add keep mode to this process's vLLM if it is a known one. Calling it again does nothing."""
    global _found  # noqa: PLW0603
    if _found is not None:
        return
    _found = examine()
    if _found.status is Status.KNOWN:
        _install()
        logger.info("vllm-keep-reset %s: keep mode added to vLLM %s", __version__, _found.vllm)
    elif _found.status is Status.NATIVE:
        logger.info(
            "vllm-keep-reset %s: vLLM %s has keep mode itself, nothing is replaced",
            __version__,
            _found.vllm,
        )
    else:
        logger.warning("%s", _found.reason)
        _refuse(_found.reason)


def _install() -> None:
    for name, builder in REPLACED.items():
        _originals[name] = resolve(name)
        replace(name, resolve(builder)(_originals[name]))
    for name, function in ADDED.items():
        replace(name, resolve(function))
    _originals[ROUTE] = resolve(ROUTE)
    import_module("vllm_keep_reset.route").serve_keep_mode()


def _refuse(reason: str) -> None:
    try:
        resolve(ROUTE)
    except (ImportError, AttributeError):
        logger.warning("This vLLM has no route %s: nothing is replaced", ROUTE)
        return
    import_module("vllm_keep_reset.route").serve_refusal(reason)
