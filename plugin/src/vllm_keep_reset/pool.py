"""Keep mode in the block pool and in the layers that own one.

Each function here takes the vLLM function that it replaces and returns the replacement.
A call without the new flag goes to vLLM's own function.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from vllm.distributed.kv_events import AllBlocksCleared
from vllm.v1.core.block_pool import BlockHashToBlockMap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_coordinator import KVCacheCoordinator
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import KVCacheBlock

CACHED_SHARE_TO_WALK_ALL = 3
"""All blocks are visited if more than one in this many is cached."""

logger = logging.getLogger("vllm.keep_reset")


def pools_of(coordinator: KVCacheCoordinator) -> list[BlockPool]:
    """Each pool once, in the order in which vLLM's coordinator resets them."""
    return list(dict.fromkeys(manager.block_pool for manager in coordinator.single_type_managers))


def held_blocks(pool: BlockPool) -> int:
    """Blocks with a holder. The null block is always out of the free queue and not counted."""
    return int(pool.num_gpu_blocks - pool.get_num_free_blocks() - 1)


def block_pool_reset(original: Callable[[BlockPool], bool]) -> Callable[..., bool]:
    """Replace `BlockPool.reset_prefix_cache`."""

    def reset_prefix_cache(self: BlockPool, allow_used_blocks: bool = False) -> bool:
        """Forget every cached prefix. True if the cache is empty now.

        With `allow_used_blocks` it is cleared although blocks are held: they stay allocated
        with their contents, lose their hash and can no longer be hit. Reference counts and the
        order of the free queue do not change. Without it the reset is vLLM's own, which
        refuses while any block is held.
        """
        if not allow_used_blocks:
            return original(self)
        _clear(self)
        return True

    return reset_prefix_cache


def coordinator_reset(original: Callable[[KVCacheCoordinator], bool]) -> Callable[..., bool]:
    """Replace `KVCacheCoordinator.reset_prefix_cache`."""

    def reset_prefix_cache(self: KVCacheCoordinator, keep_running_requests: bool = False) -> bool:
        """Reset each pool once. In keep mode no pool can refuse, so all of them are cleared."""
        if not keep_running_requests:
            return original(self)
        cleared = [pool.reset_prefix_cache(allow_used_blocks=True) for pool in pools_of(self)]
        return all(cleared)

    return reset_prefix_cache


def manager_reset(original: Callable[[KVCacheManager], bool]) -> Callable[..., bool]:
    """Replace `KVCacheManager.reset_prefix_cache`."""

    def reset_prefix_cache(self: KVCacheManager, keep_running_requests: bool = False) -> bool:
        """Reset the pools and mark the prefix-cache statistics as reset."""
        if not keep_running_requests:
            return original(self)
        if not self.coordinator.reset_prefix_cache(keep_running_requests=True):
            return False
        if self.log_stats:
            assert self.prefix_cache_stats is not None
            self.prefix_cache_stats.reset = True
        return True

    return reset_prefix_cache


def _clear(pool: BlockPool) -> None:
    """Do what `BlockPool.reset_prefix_cache` does after its check, for held blocks too."""
    held = held_blocks(pool)
    hashed = _replace_map(pool)
    pool.cached_block_hashes_by_block.clear()
    if pool._reuse_watchers:
        pool._notify_reuse([pool.blocks[block_id] for block_id in list(pool._reuse_watchers)])
    # `KVCacheBlock.reset_hash` written out, which saves a call a block.
    for block in hashed:
        block._block_hash = None
        block._block_hash_num_tokens = None
    if pool.metrics_collector:
        pool.metrics_collector.reset()
    logger.info("Successfully reset prefix cache; %d held blocks stay allocated", held)
    if pool.enable_kv_cache_events:
        pool.kv_event_queue.append(AllBlocksCleared())


def _replace_map(pool: BlockPool) -> list[KVCacheBlock]:
    """Replace the map by an empty one. The blocks whose hash is to be cleared, at least.

    A block has a hash exactly if the map leads to it (`BlockPool._insert_block_hash` and
    `_remove_cached_block_hashes` see to that), so it is enough to visit what the map held: the
    engine stands still meanwhile, and this costs what was cached instead of what exists. The map
    leads all over the memory, though: if much was cached, walking the blocks in order, as vLLM
    does, is faster, and the map must be gone by then. If it is freed after the walk instead, it
    is what frees the hashes, out of their order, which doubled the time of a full pool.
    """
    cached = pool.cached_block_hash_to_block
    pool.cached_block_hash_to_block = BlockHashToBlockMap()
    sparse = CACHED_SHARE_TO_WALK_ALL * len(cached) < pool.num_gpu_blocks
    return list(_blocks_in(cached)) if sparse else pool.blocks


def _blocks_in(cached: BlockHashToBlockMap) -> Iterator[KVCacheBlock]:
    for blocks in cached._cache.values():
        if isinstance(blocks, dict):
            yield from blocks.values()
        else:
            yield blocks
