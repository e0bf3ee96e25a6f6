"""Parts of vLLM that assume that a held block has a hash: mended here, or refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.simple_kv_offload.manager import TransferMeta

from vllm_keep_reset import auxiliary

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.simple_kv_offload.manager import SimpleCPUOffloadScheduler


def refusal(scheduler: Scheduler, reset_connector: bool) -> str | None:
    """Say why a keep reset of this scheduler would not be safe, or None if it is."""
    connector = scheduler.connector
    if reset_connector and connector is not None:
        return (
            "keep mode cannot reset an external cache: the connector "
            f"{type(connector).__qualname__} may have transfers in flight for the requests that "
            "keep running. Reset without reset_external, or without keep_running_requests."
        )
    deferred = getattr(scheduler, "deferred_loads", None)  # vLLM 0.33
    if deferred:
        return (
            f"keep mode cannot pass over {len(deferred)} KV loads that wait for a step in flight "
            "(HiSparse beside a KV consumer): the blocks they fill are found by having no hash. "
            "Ask again after the next step."
        )
    return auxiliary.refusal(scheduler)


def simple_offload_store_completion(original: Callable[..., None]) -> Callable[..., None]:
    """Replace `SimpleCPUOffloadScheduler._process_store_completion`."""

    def _process_store_completion(
        self: SimpleCPUOffloadScheduler,
        gpu_block_ids: list[int],
        cpu_block_ids: list[int],
        block_meta: list[Any] | None = None,
    ) -> None:
        """Register copied blocks in the CPU cache and release both references.

        A block that a keep reset passed over while it was being copied has no hash left to
        register it under (vLLM asserts one): its copy is dropped.
        """
        assert self._gpu_block_pool is not None
        blocks = self._gpu_block_pool.blocks
        hashed = [blocks[block_id].block_hash is not None for block_id in gpu_block_ids]
        if all(hashed):
            original(self, gpu_block_ids, cpu_block_ids, block_meta)
            return
        original(
            self,
            _where(hashed, gpu_block_ids),
            _where(hashed, cpu_block_ids),
            None if block_meta is None else _where(hashed, block_meta),
        )
        lost = [not has_hash for has_hash in hashed]
        self._release_transfer_refs(
            TransferMeta(_where(lost, gpu_block_ids), _where(lost, cpu_block_ids))
        )

    return _process_store_completion


def _where(wanted: list[bool], items: list[Any]) -> list[Any]:
    return [item for want, item in zip(wanted, items, strict=True) if want]
