"""Each function that the plugin replaces is needed: with vLLM's own in its place, something fails.

The mends outside the reset path have their tests under `invariants/`.
"""

from __future__ import annotations

import asyncio

import pytest

CORE = "vllm.v1.core"
CLIENT = "vllm.v1.engine.core_client"


def reset(surface):
    return surface.reset_prefix_cache(keep_running_requests=True)


async def reset_async(surface):
    return await surface.reset_prefix_cache(keep_running_requests=True)


SURFACES = {
    f"{CORE}.block_pool:BlockPool.reset_prefix_cache": lambda core, fronts: reset(
        core.scheduler.kv_cache_manager
    ),
    f"{CORE}.kv_cache_coordinator:KVCacheCoordinator.reset_prefix_cache": lambda core, fronts: (
        reset(core.scheduler.kv_cache_manager)
    ),
    f"{CORE}.kv_cache_manager:KVCacheManager.reset_prefix_cache": lambda core, fronts: reset(
        core.scheduler
    ),
    f"{CORE}.sched.scheduler:Scheduler.reset_prefix_cache": lambda core, fronts: reset(core),
    "vllm.v1.engine.core:EngineCore.reset_prefix_cache": lambda core, fronts: reset(
        fronts.inproc_client(core)
    ),
    f"{CLIENT}:InprocClient.reset_prefix_cache": lambda core, fronts: reset(fronts.llm(core)),
    f"{CLIENT}:SyncMPClient.reset_prefix_cache": lambda core, fronts: reset(
        fronts.sync_client(core)
    ),
    f"{CLIENT}:AsyncMPClient.reset_prefix_cache_async": lambda core, fronts: asyncio.run(
        reset_async(fronts.async_llm(core))
    ),
    "vllm.v1.engine.llm_engine:LLMEngine.reset_prefix_cache": lambda core, fronts: reset(
        fronts.llm(core)
    ),
    "vllm.v1.engine.async_llm:AsyncLLM.reset_prefix_cache": lambda core, fronts: asyncio.run(
        reset_async(fronts.async_llm(core))
    ),
    "vllm.entrypoints.llm:LLM.reset_prefix_cache": lambda core, fronts: reset(fronts.llm(core)),
}


@pytest.mark.parametrize("name", SURFACES)
def test_keep_mode_ends_where_a_surface_is_vllms_own(core, fronts, reverted, name):
    call = SURFACES[name]
    cached = core.replica.cached
    with reverted(name), pytest.raises(TypeError, match=r"unexpected keyword|positional argument"):
        call(core, fronts)
    assert core.replica.cached == cached
    assert call(core, fronts) is True
    assert core.replica.cached == 0


def test_no_replaced_function_is_left_out(plugin):
    from vllm_keep_reset.surfaces import REPLACED

    mends = {name for name in REPLACED if not name.rpartition(".")[2].startswith("reset_prefix")}
    declarations = {name for name, ours in REPLACED.items() if ours.endswith("abstract:declare")}
    assert set(REPLACED) == {*SURFACES, *declarations, *mends}
    assert mends == {
        f"{CORE}.kv_cache_coordinator:KVCacheCoordinator.cache_blocks",
        f"{CORE}.single_type_kv_cache_manager:FullAttentionManager._cache_partial_tail_block",
        "vllm.v1.simple_kv_offload.manager:SimpleCPUOffloadScheduler._process_store_completion",
        "vllm.distributed.aux_output_connector.worker:AuxOutputWorkerConnector.__init__",
    }
