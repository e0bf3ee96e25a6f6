"""`simple_kv_offload` names CPU blocks by the hashes of GPU blocks, long after it chose them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

PROMPT = range(1, 51)
"""Three full blocks of 16 tokens and a tail."""


@dataclass
class Copies:
    """The worker's copies between GPU and CPU, which finish when they are told to.

    Attributes:
        stores: store events under way.
        loads: requests whose load is under way.
        broken: GPU blocks that the next load leaves unfilled.
    """

    stores: list[int] = field(default_factory=list)
    loads: set[str] = field(default_factory=set)
    hold: bool = True
    broken: set[int] = field(default_factory=set)

    def run(self, step: Any, sampled: dict[str, list[int]], output: Any) -> None:
        from vllm.v1.outputs import KVConnectorOutput
        from vllm.v1.simple_kv_offload.metadata import SimpleCPUOffloadWorkerMetadata

        metadata = step.kv_connector_metadata
        if metadata.store_event >= 0:
            self.stores.append(metadata.store_event)
        if metadata.load_event >= 0:
            self.loads |= set(metadata.load_event_to_reqs[metadata.load_event])
        if self.hold:
            return
        output.kv_connector_output = KVConnectorOutput(
            finished_recving=self.loads,
            invalid_block_ids=self.broken,
            kv_connector_worker_meta=SimpleCPUOffloadWorkerMetadata(dict.fromkeys(self.stores, 1)),
        )
        self.stores, self.loads, self.broken = [], set(), set()


@pytest.fixture
def offloading(replica: Callable[..., Any]) -> Callable[..., Any]:
    def make(**more: Any) -> Any:
        made = replica(
            connector="SimpleCPUOffloadConnector",
            connector_options={"cpu_bytes_to_use": 64 * 1024, **more.pop("options", {})},
            **more,
        )
        made.worker = Copies()
        return made

    return make


def _cpu(replica: Any) -> Any:
    return replica.scheduler.connector.scheduler_manager


def _on_cpu(replica: Any) -> int:
    return len(_cpu(replica).cpu_block_pool.cached_block_hash_to_block)


def _cpu_held(replica: Any) -> int:
    pool = _cpu(replica).cpu_block_pool
    return int(pool.num_gpu_blocks - pool.get_num_free_blocks() - 1)


def _warm_cpu(replica: Any) -> None:
    """Leave the prompt's blocks on the CPU and nothing on the GPU."""
    replica.worker.hold = False
    replica.add(PROMPT, max_tokens=4)
    replica.drain()
    assert replica.scheduler.reset_prefix_cache()
    assert _on_cpu(replica) == 3
    replica.worker.hold = True


@pytest.mark.parametrize("events", [False, True])
def test_a_store_that_straddles_the_reset_registers_nothing_and_frees_both_sides(
    offloading, events
):
    replica = offloading(events=events)
    request = replica.add(PROMPT)
    replica.step(2)
    assert replica.worker.stores == [0]
    assert _cpu_held(replica) == 3

    assert replica.keep()
    replica.worker.hold = False
    replica.step()

    assert _on_cpu(replica) == 0
    assert _cpu_held(replica) == 0
    assert not _cpu(replica)._in_flight_store_gpu_blocks
    assert all(
        block.ref_cnt == 1 for block in replica.manager.get_blocks(request.request_id).blocks[0]
    )
    replica.drain()


def test_a_finished_request_whose_last_store_waits_for_a_step(offloading):
    replica = offloading()
    request = replica.add(PROMPT, max_tokens=1)
    replica.step()
    assert request.is_finished()
    assert len(_cpu(replica)._pending_finished_stores) == 1
    assert replica.held == 3

    assert replica.keep()
    replica.worker.hold = False
    replica.drain()

    assert _on_cpu(replica) == 0
    assert _cpu_held(replica) == 0


def test_a_lazy_store_that_straddles_the_reset(offloading):
    replica = offloading(options={"lazy_offload": True})
    replica.add(PROMPT, max_tokens=1)
    replica.step()
    other = replica.add(range(100, 130))
    replica.step()
    assert replica.worker.stores
    assert _cpu_held(replica) == 3

    assert replica.keep()
    replica.worker.hold = False
    replica.step(2)

    assert _on_cpu(replica) == 0
    assert _cpu_held(replica) == 0
    assert not other.is_finished()
    replica.drain()


def test_the_lazy_cursor_stays_in_the_free_queue(offloading):
    replica = offloading(options={"lazy_offload": True})
    replica.worker.hold = False
    replica.add(PROMPT, max_tokens=1)
    replica.step()
    replica.add(range(100, 130))
    replica.step(2)
    cursor = _cpu(replica)._cursor
    assert cursor is not None
    assert cursor.ref_cnt == 0
    queue = [block.block_id for block in replica.pool.free_block_queue.get_all_free_blocks()]

    assert replica.keep()

    assert [
        block.block_id for block in replica.pool.free_block_queue.get_all_free_blocks()
    ] == queue
    replica.drain()


def test_after_the_reset_only_a_headless_tail_of_a_straddler_is_offloaded(offloading):
    """A block without a hash moves the eager cursor on and is never looked at again."""
    replica = offloading()
    replica.worker.hold = False
    request = replica.add(PROMPT)
    replica.step()
    assert replica.keep()
    replica.step(40)
    cached = [
        block.block_hash is not None
        for block in replica.manager.get_blocks(request.request_id).blocks[0]
    ]
    assert cached[:5] == [False, False, False, True, True]
    assert _on_cpu(replica) == 2
    assert _cpu(replica)._reqs_to_store[request.request_id].num_stored_blocks == [5]
    request_like_it = replica.request(PROMPT)
    assert _cpu(replica).get_num_new_matched_tokens(request_like_it, 0) == (0, False)
    replica.drain()


def test_a_load_that_straddles_the_reset_is_not_cached_when_it_arrives(offloading):
    replica = offloading()
    _warm_cpu(replica)
    request = replica.add(PROMPT)
    replica.step()
    assert request.status.name == "WAITING_FOR_REMOTE_KVS"
    assert replica.worker.loads == {request.request_id}

    assert replica.keep()
    replica.worker.hold = False
    replica.step(2)

    assert request.status.name == "RUNNING"
    assert request.num_computed_tokens == 50
    assert replica.lookup(PROMPT) == 0
    replica.drain()


def test_without_the_mend_such_a_load_is_hit_from_its_first_block(offloading, monkeypatch):
    monkeypatch.setattr("vllm_keep_reset.scheduler.hold_back", lambda *_: None)
    replica = offloading()
    _warm_cpu(replica)
    replica.add(PROMPT)
    replica.step()
    assert replica.keep()
    replica.worker.hold = False
    replica.step(2)
    assert replica.lookup(PROMPT) == 48
    replica.drain()


@pytest.mark.parametrize(("computed", "hit"), [(32, 0), (0, 48)])
def test_a_load_that_straddles_the_reset_and_fails(offloading, computed, hit):
    """What had arrived is not cached; a request that starts afresh is no straddler any more."""
    replica = offloading()
    replica.scheduler.recompute_kv_load_failures = True
    _warm_cpu(replica)
    request = replica.add(PROMPT)
    replica.step()
    assert replica.keep()
    replica.worker.hold = False
    (blocks,) = replica.manager.get_block_ids(request.request_id)
    replica.worker.broken = {blocks[computed // 16]}
    replica.step()
    assert request.num_computed_tokens == computed
    replica.scheduler.connector.scheduler_manager.cpu_block_pool.reset_prefix_cache()
    replica.step(3)
    assert request.num_output_tokens > 0
    assert replica.lookup(PROMPT) == hit
    replica.drain()


def test_a_load_that_came_after_the_reset_is_cached(offloading):
    """Keep mode leaves the CPU tier alone, so what it holds comes back at once."""
    replica = offloading()
    _warm_cpu(replica)
    replica.add(range(100, 130))
    replica.step()
    assert replica.keep()
    replica.worker.hold = False
    replica.add(PROMPT)
    replica.step(3)
    assert replica.lookup(PROMPT) == 48
    replica.drain()


def test_keep_refuses_to_reset_the_external_cache_by_the_connectors_name(offloading, plugin):
    replica = offloading()
    replica.worker.hold = False
    replica.add(PROMPT)
    replica.step(3)
    before = replica.cached, _on_cpu(replica)
    assert before == (3, 3)
    with pytest.raises(plugin.KeepRefused, match="SimpleCPUOffloadConnector"):
        replica.scheduler.reset_prefix_cache(reset_connector=True, keep_running_requests=True)
    assert (replica.cached, _on_cpu(replica)) == before
    replica.drain()
