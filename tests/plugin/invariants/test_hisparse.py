"""HiSparse keeps KV pages on the host, names them late, and reads GPU pages it has let go of."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

PROMPT = range(1, 101)
"""Six full pages of 16 tokens and a tail."""
LONG = [token % 251 + 1 for token in range(300)]
"""More pages than HiSparse admits with: the request must learn to read from the host."""


class Transfers:
    """The worker's copies to the host, which finish when they are told to."""

    def __init__(self) -> None:
        self.hold = True
        self.under_way: list[int] = []

    def run(self, step: Any, sampled: dict[str, list[int]], output: Any) -> None:
        from vllm.distributed.kv_transfer.kv_connector.v1.hisparse.connector import (
            HiSparseConnectorWorkerMetadata,
        )
        from vllm.v1.outputs import KVConnectorOutput

        command = step.kv_connector_metadata.command
        if command is not None:
            self.under_way += [copy.transfer_id for copy in command.page_transfers]
        if not self.hold and self.under_way:
            done = dict.fromkeys(self.under_way, 1)
            output.kv_connector_output = KVConnectorOutput(
                kv_connector_worker_meta=HiSparseConnectorWorkerMetadata(done, done)
            )
            self.under_way = []


@pytest.fixture
def make(replica, kinds) -> Callable[..., Any]:
    def build(blocks: int = 64) -> Any:
        from vllm.config import KVTransferConfig
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.kv_cache_interface import (
            HiSparseHotSpec,
            HiSparseResidentSpec,
            KVCacheConfig,
            KVCacheGroupRole,
            KVCacheGroupSpec,
        )

        made = replica()
        config = copy(made.scheduler.vllm_config)
        config.kv_transfer_config = KVTransferConfig(
            kv_connector="HiSparseConnector", kv_role="kv_both"
        )
        page = {"block_size": 16, "page_size": 1024}
        made.scheduler = Scheduler(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(
                num_blocks=blocks,
                kv_cache_tensors=[],
                kv_cache_groups=[
                    KVCacheGroupSpec(
                        ["source"],
                        kinds.full(),
                        role=KVCacheGroupRole.HISPARSE_SOURCE,
                        host_resident=True,
                    ),
                    KVCacheGroupSpec(
                        ["indexer"], kinds.full(), role=KVCacheGroupRole.HISPARSE_INDEXER
                    ),
                    KVCacheGroupSpec(
                        ["resident"], HiSparseResidentSpec(**page), enable_kv_transfer=False
                    ),
                    KVCacheGroupSpec(
                        ["hot"],
                        HiSparseHotSpec(**page, blocks_per_request=2),
                        enable_kv_transfer=False,
                    ),
                ],
                hisparse_host_num_blocks=200,
            ),
            block_size=16,
            log_stats=True,
            structured_output_manager=made.scheduler.structured_output_manager,
        )
        made.worker = Transfers()
        return made

    return build


def _host(replica: Any) -> Any:
    return replica.scheduler.connector.connector_scheduler.coordinator


def _published(replica: Any) -> int:
    return len(_host(replica).get_host_block_pool().cached_block_hash_to_block)


def _host_held(replica: Any) -> int:
    pool = _host(replica).get_host_block_pool()
    return int(pool.num_gpu_blocks - pool.get_num_free_blocks() - 1)


def test_both_pools_are_cleared(make):
    replica = make()
    replica.worker.hold = False
    replica.add(PROMPT)
    replica.step(3)
    assert (replica.cached, _published(replica)) == (6, 6)
    assert replica.lookup(PROMPT) == 96
    assert replica.keep()
    assert (replica.cached, _published(replica)) == (0, 0)
    replica.step(3)
    assert replica.lookup(PROMPT) == 0
    replica.drain()
    assert _host_held(replica) == 0


def test_reuse_watchers_make_a_running_request_read_its_pages_from_the_host(make):
    replica = make(blocks=128)
    replica.worker.hold = False
    request = replica.add(LONG, max_tokens=100)
    replica.step(6)
    state = _host(replica).request_states[request.request_id]
    unpinned = set(state.unpinned_pages)
    assert len(unpinned) >= 10
    assert len(replica.pool._reuse_watchers) == len(unpinned)
    held = replica.held

    assert replica.keep()

    assert not replica.pool._reuse_watchers
    assert not state.unpinned_pages
    assert state.stale_pages == unpinned
    assert replica.held == held
    step = replica.schedule()
    update = step.kv_connector_metadata.residency_updates[request.request_id]
    null = replica.pool.null_block.block_id
    told = dict(zip(update.pages, update.block_ids[0], strict=True))
    assert {page for page, block in told.items() if block == null} >= unpinned
    replica.finish()
    replica.drain()
    assert request.num_output_tokens == 100
    assert _host_held(replica) == 0


def test_pages_computed_before_the_reset_are_not_published_after_it(make):
    replica = make()
    replica.add(PROMPT)
    replica.step()
    assert len(_host(replica).pending_spills) == 6
    assert replica.keep()
    replica.worker.hold = False
    replica.step(2)
    assert not _host(replica).pending_spills
    replica.worker.hold = True
    replica.add(PROMPT)
    replica.step()
    assert replica.cached == 6
    assert _published(replica) == 0
    assert replica.lookup(PROMPT) == 0
    replica.worker.hold = False
    replica.step(2)
    assert replica.lookup(PROMPT) == 96
    replica.drain()
    assert _host_held(replica) == 0


def test_without_the_mend_they_are_hit_as_soon_as_another_request_runs(make, monkeypatch):
    monkeypatch.setattr("vllm_keep_reset.scheduler.hold_back", lambda *_: None)
    replica = make()
    replica.add(PROMPT)
    replica.step()
    assert replica.keep()
    replica.worker.hold = False
    replica.step(2)
    assert _published(replica) == 6
    replica.worker.hold = True
    replica.add(PROMPT)
    replica.step()
    assert replica.lookup(PROMPT) == 96
    replica.worker.hold = False
    replica.drain()


@pytest.mark.parametrize(("mended", "published"), [(True, 0), (False, 6)])
def test_nor_are_those_of_a_request_that_finished_before_the_reset(
    make, monkeypatch, mended, published
):
    if not mended:
        monkeypatch.setattr("vllm_keep_reset.scheduler.hold_back", lambda *_: None)
    replica = make()
    request = replica.add(PROMPT, max_tokens=1)
    replica.step()
    assert request.is_finished()
    assert len(_host(replica).pending_spills) == 6
    other = replica.add(range(300, 320))
    replica.step()

    assert replica.keep()
    replica.worker.hold = False
    replica.step(2)

    host_pool = _host(replica).get_host_block_pool()
    names = set(host_pool.cached_block_hash_to_block._cache)
    own = {
        name
        for name in names
        if any(name.startswith(block_hash) for block_hash in request.block_hashes)
    }
    assert len(own) == published
    assert not other.is_finished()
    replica.drain()
    assert _host_held(replica) == 0


def test_a_keep_reset_before_every_step_lets_every_request_finish(make):
    replica = make(blocks=128)
    replica.worker.hold = False
    requests = [replica.add(LONG, max_tokens=40), replica.add(PROMPT, max_tokens=40)]
    while replica.scheduler.has_unfinished_requests():
        assert replica.keep()
        replica.step()
    replica.drain()
    assert [request.num_output_tokens for request in requests] == [40, 40]
    assert _host_held(replica) == 0


def test_a_hit_of_a_held_prefix_looks_like_blocks_to_fill_after_the_reset(replica):
    """Why keep mode does not pass over a KV load that waits to be started."""
    made = replica()
    made.add(PROMPT)
    made.step()
    request = made.add(PROMPT)
    made.step()
    blocks = made.manager.get_blocks(request.request_id)
    shared = blocks.get_block_ids()[0][:6]
    assert not set(shared) & set(blocks.get_unhashed_block_ids())
    assert made.keep()
    assert set(shared) < set(blocks.get_unhashed_block_ids())
    assert set(shared) < set(blocks.get_unhashed_block_ids_all_groups()[0])
    made.drain()


def test_keep_refuses_while_a_kv_load_waits_for_a_step_in_flight(replica, plugin):
    made = replica()
    made.add(PROMPT)
    made.step()
    if not hasattr(made.scheduler, "deferred_loads"):
        pytest.skip("this vLLM starts every KV load when it allocates its blocks")
    made.scheduler.deferred_loads["request-1"] = (1, 16, 0, 0)
    with pytest.raises(plugin.KeepRefused, match="HiSparse"):
        made.keep()
    assert made.cached == 6
    del made.scheduler.deferred_loads["request-1"]
    assert made.keep()
    made.drain()
