"""Requests that hold blocks across a keep reset, and what they may cache afterwards.

A lookup of a full-attention group walks from the first block, so it hits nothing until somebody
caches that block again. Two things would break this after a keep reset. Groups of other kinds
(sliding window, Mamba) look from the last block, so in a model made only of them every block that
a straddler still caches can be hit at once, with all the work before it. And some blocks are
cached late: when an asynchronous load has arrived, when the copy on the host is durable, when the
prompt's tail is registered again. So after a keep reset a straddler

- caches neither its first block nor a block that it was loading or copying to the host then,
- gives its prompt's tail no hash again,
- and caches nothing at all if the model has no full-attention group.

Whatever is hit after a keep reset was then found through a block of a request that came later.
A straddler that is preempted starts afresh and is none any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager, HiSparseSourceManager
from vllm.v1.request import RequestStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vllm.v1.core.kv_cache_coordinator import KVCacheCoordinator
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.core.single_type_kv_cache_manager import SingleTypeKVCacheManager
    from vllm.v1.request import Request


_Tables = WeakKeyDictionary["SingleTypeKVCacheManager", "Mapping[str, list[KVCacheBlock]]"]

_silenced: _Tables = WeakKeyDictionary()
"""Block tables of straddlers that cache nothing, by the first manager of their coordinator."""
_tailless: _Tables = WeakKeyDictionary()
"""Block tables of straddlers whose prompt's tail gets no hash again, by their manager."""


def starts_at_first_block(coordinator: KVCacheCoordinator) -> bool:
    """Whether every hit of this model begins with a cached first block.

    A hit is the shortest over all cacheable groups
    (`HybridKVCacheCoordinator.find_longest_cache_hit`), so one full-attention group is enough.
    """
    return any(
        isinstance(manager, FullAttentionManager) and manager.kv_cache_spec.prefix_cacheable
        for manager in coordinator.single_type_managers
    )


def hold_back(coordinator: KVCacheCoordinator, requests: Mapping[str, Request]) -> None:
    """Keep what straddles this reset out of the emptied cache.

    Args:
        coordinator: whose pools were just cleared in keep mode.
        requests: every request the scheduler knows, by id.
    """
    if not starts_at_first_block(coordinator):
        manager = coordinator.single_type_managers[0]
        _silenced[manager] = _held(manager)
        return
    for manager in coordinator.single_type_managers:
        if not isinstance(manager, FullAttentionManager):
            continue
        held = _held(manager)
        _tailless[manager] = held
        for request_id in held:
            known = manager.num_cached_block.get(request_id, 0)
            never = _never_cached(manager, requests.get(request_id))
            manager.num_cached_block[request_id] = max(known, never)
        if isinstance(manager, HiSparseSourceManager):
            _drop_detached_publications(manager)


def _held(manager: SingleTypeKVCacheManager) -> dict[str, list[KVCacheBlock]]:
    return {request_id: table for request_id, table in manager.req_to_blocks.items() if table}


def _straddles(tables: _Tables, manager: SingleTypeKVCacheManager, request: Request) -> bool:
    """Whether a request still has a block table that it had at the reset.

    A table is known again by its identity: vLLM changes a request's table in place until it
    frees the request's blocks, and starts a new one if it gives it blocks again
    (`SingleTypeKVCacheManager.req_to_blocks`).
    """
    table = tables.get(manager, {}).get(request.request_id)
    return table is not None and manager.req_to_blocks.get(request.request_id) is table


def _never_cached(manager: FullAttentionManager, request: Request | None) -> int:
    """How many leading blocks of a straddler must not be cached after the reset.

    vLLM takes a request's blocks below `num_cached_block` for cached
    (`SingleTypeKVCacheManager.cache_blocks`). It caches a running request's blocks as it
    schedules them, so those that were full at the reset are below already.
    """
    if request is not None and (
        request.status is RequestStatus.WAITING_FOR_REMOTE_KVS
        or isinstance(manager, HiSparseSourceManager)
    ):
        return max(1, int(request.num_computed_tokens) // int(manager.block_size))
    return 1


def _drop_detached_publications(manager: HiSparseSourceManager) -> None:
    """Publish nothing for finished requests whose pages are still being copied to the host."""
    host = manager.coordinator
    if host is None:
        return
    for spill in host.pending_spills.values():
        publication = spill.request_state.publication
        if publication is not None and publication.detached_blocks is not None:
            publication.num_cached_blocks = publication.num_pages


def coordinator_cache_blocks(original: Callable[..., None]) -> Callable[..., None]:
    """Replace `KVCacheCoordinator.cache_blocks`."""

    def cache_blocks(self: KVCacheCoordinator, request: Request, num_computed_tokens: int) -> None:
        """Cache the request's blocks, unless it may cache none since a keep reset."""
        if not _straddles(_silenced, self.single_type_managers[0], request):
            original(self, request, num_computed_tokens)

    return cache_blocks


def full_attention_tail(original: Callable[..., None]) -> Callable[..., None]:
    """Replace `FullAttentionManager._cache_partial_tail_block`."""

    def _cache_partial_tail_block(
        self: FullAttentionManager, request: Request, num_tokens: int
    ) -> None:
        """Register the prompt's tail, unless a keep reset took its hash."""
        if not _straddles(_tailless, self, request):
            original(self, request, num_tokens)

    return _cache_partial_tail_block
