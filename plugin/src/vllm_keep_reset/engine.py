"""Keep mode in the engine core, its clients, and the Python front ends."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeVar

from vllm_keep_reset.report import ResetMode, ResetReport, combine
from vllm_keep_reset.scheduler import call_reset, report_reset

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from vllm.entrypoints.llm import LLM
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.engine.core_client import AsyncMPClient, InprocClient, SyncMPClient
    from vllm.v1.engine.llm_engine import LLMEngine

    Reset = Callable[..., bool]
    AsyncReset = Callable[..., Awaitable[bool]]

Owner = TypeVar("Owner")

logger = logging.getLogger("vllm.keep_reset")

REPORT = "reset_prefix_cache_report"
"""Name of the engine-core utility that resets and returns a report."""


class PluginMissing(NotImplementedError):
    """An engine core runs without this plugin, so it was not reset."""


def _in_keep_mode(keep: Callable[[Owner, bool], bool]) -> Callable[[Reset], Reset]:
    """Build replacements that call `keep(self, reset_connector)` in keep mode, else vLLM's own."""

    def replace(original: Reset) -> Reset:
        def reset_prefix_cache(
            self: Owner,
            reset_running_requests: bool = False,
            reset_connector: bool = False,
            keep_running_requests: bool = False,
        ) -> bool:
            """Reset the prefix cache; see `Scheduler.reset_prefix_cache`."""
            mode = ResetMode.of(reset_running_requests, keep_running_requests)
            if mode is not ResetMode.KEEP:
                return original(self, reset_running_requests, reset_connector)
            return keep(self, reset_connector)

        return reset_prefix_cache

    return replace


def _in_keep_mode_async(
    keep: Callable[[Owner, bool], Awaitable[bool]],
) -> Callable[[AsyncReset], AsyncReset]:
    """Do the same as `_in_keep_mode` for coroutine functions."""

    def replace(original: AsyncReset) -> AsyncReset:
        async def reset_prefix_cache(
            self: Owner,
            reset_running_requests: bool = False,
            reset_connector: bool = False,
            keep_running_requests: bool = False,
        ) -> bool:
            """Reset the prefix cache of every engine; see `Scheduler.reset_prefix_cache`."""
            mode = ResetMode.of(reset_running_requests, keep_running_requests)
            if mode is not ResetMode.KEEP:
                return await original(self, reset_running_requests, reset_connector)
            return await keep(self, reset_connector)

        return reset_prefix_cache

    return replace


def _keep_in_process(core: EngineCore, reset_connector: bool) -> bool:
    return call_reset(core.scheduler, ResetMode.KEEP, reset_connector)


def _keep_in_engine(owner: InprocClient | LLMEngine, reset_connector: bool) -> bool:
    return bool(owner.engine_core.reset_prefix_cache(False, reset_connector, True))


def _keep_in_llm_engine(owner: LLM, reset_connector: bool) -> bool:
    return bool(owner.llm_engine.reset_prefix_cache(False, reset_connector, True))


def _keep_by_utility(client: SyncMPClient, reset_connector: bool) -> bool:
    report = ResetReport.from_wire(client.call_utility(REPORT, False, reset_connector, True))
    report.raise_if_refused()
    return report.success


async def _keep_everywhere(client: AsyncMPClient, reset_connector: bool) -> bool:
    report = await ask_every_engine(client, ResetMode.KEEP, reset_connector)
    report.raise_if_refused()
    return report.success


async def _keep_in_async_engine(owner: AsyncLLM, reset_connector: bool) -> bool:
    return bool(await owner.engine_core.reset_prefix_cache_async(False, reset_connector, True))


core_reset = _in_keep_mode(_keep_in_process)
"""For `EngineCore`."""
engine_reset = _in_keep_mode(_keep_in_engine)
"""For whoever asks an `engine_core`: `InprocClient` and `LLMEngine`."""
llm_reset = _in_keep_mode(_keep_in_llm_engine)
"""For the offline `LLM`."""
sync_reset = _in_keep_mode(_keep_by_utility)
"""For `SyncMPClient`."""
async_reset = _in_keep_mode_async(_keep_everywhere)
"""For `AsyncMPClient`, from which the data-parallel clients inherit."""
async_llm_reset = _in_keep_mode_async(_keep_in_async_engine)
"""For `AsyncLLM`."""


def core_report(
    self: EngineCore,
    reset_running_requests: bool = False,
    reset_connector: bool = False,
    keep_running_requests: bool = False,
) -> dict[str, Any]:
    """Reset as `reset_prefix_cache` does and return `ResetReport.to_wire`.

    Added to `EngineCore`, where clients find it by name.
    """
    mode = ResetMode.of(reset_running_requests, keep_running_requests)
    report = report_reset(self.scheduler, mode, reset_connector)
    if report.error is not None:
        logger.error("The preempting reset failed: %s", report.error)
    return report.to_wire()


async def async_llm_report(
    self: AsyncLLM,
    reset_running_requests: bool = False,
    reset_connector: bool = False,
    keep_running_requests: bool = False,
) -> ResetReport:
    """Reset as `reset_prefix_cache` does and say what every engine did, added up.

    Added to `AsyncLLM`.
    """
    mode = ResetMode.of(reset_running_requests, keep_running_requests)
    return await ask_every_engine(self.engine_core, mode, reset_connector)


async def ask_every_engine(
    client: AsyncMPClient, mode: ResetMode, reset_connector: bool
) -> ResetReport:
    """Reset every engine core of a client and add up what they did.

    Raises:
        PluginMissing: an engine core does not have this plugin.
    """
    preempt, keep = mode is ResetMode.PREEMPT, mode is ResetMode.KEEP
    try:
        wires = await client.call_utility_all_async(REPORT, preempt, reset_connector, keep)
    except Exception as failure:
        # A missing utility arrives as a bare Exception that quotes the AttributeError
        # (`EngineCoreProc._invoke_utility_method`).
        if f"no attribute '{REPORT}'" not in str(failure):
            raise
        raise PluginMissing(
            "an engine core runs without vllm-keep-reset and was not reset: install it on every "
            "node, and name keep_reset in VLLM_PLUGINS where that is set"
        ) from failure
    return combine([ResetReport.from_wire(wire) for wire in wires])
