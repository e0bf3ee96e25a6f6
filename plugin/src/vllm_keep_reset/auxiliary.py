"""Room in vLLM 0.32's store of auxiliary outputs for what keep mode leaves behind.

The worker stores rows (routed experts) by block hash, a slot a block of the KV cache, and drops
the longest unused. vLLM 0.32 relies on the block pool evicting in the same order: the rows of a
cached block are then still there, and a hit whose rows are gone ends the engine
(`BlockObjectStore.get_concatenated`). A request that straddles a keep reset breaks the order:
when it ends, its blocks, which have no hash, are the first that the pool reuses, but its rows the
last that the store drops. Such rows are at most as many as there are blocks, and those of cached
and held blocks too, so twice the slots are enough. The store's memory is mapped when written.

vLLM 0.33 keeps the rows of cached blocks itself (`AuxOutputSchedulerConnector.request_finished`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.distributed.aux_output_connector.connector import AuxOutputSchedulerConnector
from vllm.distributed.aux_output_connector.store import BlockObjectStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm.config import VllmConfig
    from vllm.distributed.aux_output_connector.worker import AuxOutputWorkerConnector
    from vllm.v1.core.sched.scheduler import Scheduler

KEEPS_ROWS = hasattr(AuxOutputSchedulerConnector, "max_cache_hit")
"""Whether this vLLM keeps the rows of every cached block."""


def refusal(scheduler: Scheduler) -> str | None:
    """Say why the store may be too small for a keep reset of this scheduler, or None."""
    if KEEPS_ROWS or scheduler.aux_output_connector is None:
        return None
    if scheduler.vllm_config.aux_output_config.max_bytes is None:
        return None
    return (
        "keep mode needs twice the usual room for auxiliary outputs (routed experts) in this "
        "vLLM, and aux_output_config.max_bytes sets another: leave it unset, or use vLLM 0.33"
    )


def worker_init(original: Callable[..., None]) -> Callable[..., None]:
    """Replace `AuxOutputWorkerConnector.__init__`."""

    def __init__(  # noqa: N807
        self: AuxOutputWorkerConnector, *, vllm_config: VllmConfig, **more: object
    ) -> None:
        original(self, vllm_config=vllm_config, **more)
        background = self._store
        if background is None or KEEPS_ROWS:
            return
        if vllm_config.aux_output_config.max_bytes is None:
            widen(background._store)

    return __init__


def widen(store: BlockObjectStore) -> None:
    """Give an empty store twice the slots."""
    nbytes = store.object_nbytes
    twice = 2 * store.num_slots * nbytes
    store.close()
    BlockObjectStore.__init__(store, max_bytes=twice, object_nbytes=nbytes)
