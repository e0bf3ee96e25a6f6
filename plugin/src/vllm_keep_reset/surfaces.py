"""What the plugin replaces in vLLM, what it adds, and what it relies on.

Everything is named `module:qualified.name`. Nothing of vLLM is imported here, so that an
unknown vLLM can be examined without importing what would not fit it.
"""

from __future__ import annotations

from functools import reduce
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

ROUTE = "vllm.entrypoints.serve.dev.cache.api_router:reset_prefix_cache"

_CORE = "vllm.v1.core"
_SINGLE = f"{_CORE}.single_type_kv_cache_manager"
_ENGINE = "vllm.v1.engine"
_CLIENT = f"{_ENGINE}.core_client"
_OFFLOAD = "vllm.v1.simple_kv_offload.manager:SimpleCPUOffloadScheduler"
_AUXILIARY = "vllm.distributed.aux_output_connector"
_OURS = "vllm_keep_reset"

REPLACED = {
    f"{_CORE}.block_pool:BlockPool.reset_prefix_cache": f"{_OURS}.pool:block_pool_reset",
    f"{_CORE}.kv_cache_coordinator:KVCacheCoordinator.reset_prefix_cache": (
        f"{_OURS}.pool:coordinator_reset"
    ),
    f"{_CORE}.kv_cache_coordinator:KVCacheCoordinator.cache_blocks": (
        f"{_OURS}.straddlers:coordinator_cache_blocks"
    ),
    f"{_SINGLE}:FullAttentionManager._cache_partial_tail_block": (
        f"{_OURS}.straddlers:full_attention_tail"
    ),
    f"{_CORE}.kv_cache_manager:KVCacheManager.reset_prefix_cache": f"{_OURS}.pool:manager_reset",
    f"{_CORE}.sched.interface:SchedulerInterface.reset_prefix_cache": (f"{_OURS}.abstract:declare"),
    f"{_CORE}.sched.scheduler:Scheduler.reset_prefix_cache": f"{_OURS}.scheduler:scheduler_reset",
    f"{_ENGINE}.core:EngineCore.reset_prefix_cache": f"{_OURS}.engine:core_reset",
    f"{_CLIENT}:EngineCoreClient.reset_prefix_cache": f"{_OURS}.abstract:declare",
    f"{_CLIENT}:EngineCoreClient.reset_prefix_cache_async": f"{_OURS}.abstract:declare",
    f"{_CLIENT}:InprocClient.reset_prefix_cache": f"{_OURS}.engine:engine_reset",
    f"{_CLIENT}:SyncMPClient.reset_prefix_cache": f"{_OURS}.engine:sync_reset",
    f"{_CLIENT}:AsyncMPClient.reset_prefix_cache_async": f"{_OURS}.engine:async_reset",
    f"{_ENGINE}.llm_engine:LLMEngine.reset_prefix_cache": f"{_OURS}.engine:engine_reset",
    f"{_ENGINE}.async_llm:AsyncLLM.reset_prefix_cache": f"{_OURS}.engine:async_llm_reset",
    "vllm.engine.protocol:EngineClient.reset_prefix_cache": f"{_OURS}.abstract:declare",
    "vllm.entrypoints.llm:LLM.reset_prefix_cache": f"{_OURS}.engine:llm_reset",
    f"{_OFFLOAD}._process_store_completion": (
        f"{_OURS}.connectors:simple_offload_store_completion"
    ),
    f"{_AUXILIARY}.worker:AuxOutputWorkerConnector.__init__": f"{_OURS}.auxiliary:worker_init",
}
"""vLLM function -> our function that takes it and returns its replacement."""

ADDED = {
    f"{_ENGINE}.core:EngineCore.reset_prefix_cache_report": f"{_OURS}.engine:core_report",
    f"{_ENGINE}.async_llm:AsyncLLM.reset_prefix_cache_report": f"{_OURS}.engine:async_llm_report",
}
"""New vLLM method -> our function that becomes it."""

RELIED_ON = (
    f"{_CORE}.block_pool:BlockHashToBlockMap",
    f"{_CORE}.block_pool:BlockPool.__init__",
    f"{_CORE}.block_pool:BlockPool._insert_block_hash",
    f"{_CORE}.block_pool:BlockPool._notify_reuse",
    f"{_CORE}.block_pool:BlockPool._remove_cached_block_hashes",
    f"{_CORE}.block_pool:BlockPool.cache_full_blocks",
    f"{_CORE}.block_pool:BlockPool.cache_partial_block",
    f"{_CORE}.block_pool:BlockPool.free_blocks",
    f"{_CORE}.block_pool:BlockPool.move_block_hashes",
    f"{_CORE}.kv_cache_coordinator:HybridKVCacheCoordinator.find_longest_cache_hit",
    f"{_CORE}.kv_cache_metrics:KVCacheMetricsCollector.reset",
    f"{_CORE}.kv_cache_utils:KVCacheBlock",
    f"{_CORE}.sched.scheduler:Scheduler._preempt_request",
    f"{_CORE}.sched.scheduler:Scheduler.get_request_counts",
    f"{_CORE}.sched.scheduler:Scheduler.reset_connector_cache",
    f"{_SINGLE}:FullAttentionManager.find_longest_cache_hit",
    f"{_SINGLE}:SingleTypeKVCacheManager.add_local_computed_blocks",
    f"{_SINGLE}:SingleTypeKVCacheManager.cache_blocks",
    f"{_SINGLE}:SingleTypeKVCacheManager.pop_blocks_for_free",
    f"{_CLIENT}:AsyncMPClient.call_utility_all_async",
    f"{_CLIENT}:SyncMPClient.call_utility",
    f"{_ENGINE}.core:EngineCoreProc._handle_client_request",
    f"{_ENGINE}.core:EngineCoreProc._invoke_utility_method",
    f"{_OFFLOAD}._process_store_event",
    f"{_OFFLOAD}._release_transfer_refs",
    f"{_AUXILIARY}.connector:AuxOutputSchedulerConnector.request_finished",
    f"{_AUXILIARY}.connector:AuxOutputSchedulerConnector.reset",
    f"{_AUXILIARY}.store:BlockObjectStore",
    f"{_AUXILIARY}.worker:AuxOutputWorkerConnector.begin_step",
    "vllm.distributed.kv_events:AllBlocksCleared",
    "vllm.v1.hisparse.coordinator:HiSparseCoordinator._publish_detached_blocks",
)
"""vLLM code whose behaviour the replacements assume."""


def resolve(name: str) -> Callable[..., Any]:
    """Import what `module:qualified.name` names.

    Raises:
        ImportError: there is no such module.
        AttributeError: the module has no such name.
    """
    module, _, path = name.partition(":")
    found: Callable[..., Any] = attrgetter(path)(import_module(module))
    return found


def replace(name: str, value: Callable[..., Any]) -> None:
    """Set what `module:qualified.name` names."""
    module, _, path = name.partition(":")
    *holders, attribute = path.split(".")
    setattr(reduce(getattr, holders, import_module(module)), attribute, value)
