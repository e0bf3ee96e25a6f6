"""What each mode does to a scheduler with requests in it."""

from __future__ import annotations

import pytest

PREFIX = list(range(1, 49))


def prompts(count):
    return [[*PREFIX, 100 + index] for index in range(count)]


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def asynchronous(request):
    return request.param


class Auxiliary:
    """Counts what the scheduler asks of an auxiliary-output connector."""

    def __init__(self):
        self.resets = 0
        self.finished = []

    def reset(self):
        self.resets += 1

    def request_finished(self, request):
        self.finished.append(request.request_id)


def ten_running(replica, **options):
    one = replica(blocks=128, **options)
    requests = [one.add(prompt) for prompt in prompts(10)]
    one.step(3)
    assert len(one.scheduler.running) == 10
    return one, requests


def state(requests):
    return [
        (r.request_id, r.status, r.num_computed_tokens, r.num_preemptions, list(r.all_token_ids))
        for r in requests
    ]


def tables(one, requests):
    return [one.manager.get_block_ids(r.request_id) for r in requests]


def test_keep_empties_the_map_under_ten_running_requests(replica, asynchronous):
    one, requests = ten_running(replica, asynchronous=asynchronous)
    one.scheduler.aux_output_connector = auxiliary = Auxiliary()
    before, blocks, held = state(requests), tables(one, requests), one.held
    free = [block.block_id for block in one.pool.free_block_queue.get_all_free_blocks()]
    counts = [block.ref_cnt for block in one.pool.blocks]
    assert one.cached > 0

    assert one.keep() is True

    assert one.cached == 0
    assert not one.pool.cached_block_hashes_by_block
    assert all(block.block_hash is None for block in one.pool.blocks)
    assert (state(requests), tables(one, requests), one.held) == (before, blocks, held)
    assert [b.block_id for b in one.pool.free_block_queue.get_all_free_blocks()] == free
    assert [block.ref_cnt for block in one.pool.blocks] == counts
    assert [r.request_id for r in one.scheduler.running] == [r.request_id for r in requests]
    assert auxiliary.resets == 0
    assert auxiliary.finished == []


def test_requests_end_as_they_would_have_without_a_keep_reset(replica, asynchronous):
    outputs = []
    for keep in (False, True):
        one, requests = ten_running(replica, asynchronous=asynchronous)
        assert not keep or one.keep()
        one.drain()
        outputs.append([list(request.all_token_ids) for request in requests])
    assert outputs[0] == outputs[1]


def test_keep_with_an_asynchronous_step_in_flight(replica):
    one = replica(asynchronous=True)
    prompt = list(range(1, 41))
    running = one.add(prompt, max_tokens=40)
    one.step()
    one.schedule()
    assert one.lookup([*prompt, 7]) == 32
    computed = running.num_computed_tokens

    assert one.keep()

    assert running.num_computed_tokens == computed
    assert one.lookup([*prompt, 7]) == 0
    one.finish()
    one.step(16)
    assert running.num_computed_tokens >= 48
    third = one.manager.coordinator.single_type_managers[0].req_to_blocks[running.request_id][2]
    assert third.block_hash is not None, "the block filled after the reset is cached"
    assert one.lookup([*prompt, 7]) == 0, "what was filled before it is not"
    one.drain()
    assert one.lookup([*prompt, 7]) == 0


def test_the_prefix_is_hit_again_once_somebody_else_has_computed_it(replica, asynchronous):
    one, _ = ten_running(replica, asynchronous=asynchronous)
    one.keep()
    later = one.add([*PREFIX, 200])
    assert one.lookup([*PREFIX, 201]) == 0
    step = one.schedule()
    one.finish()
    assert [(new.req_id, new.num_computed_tokens) for new in step.scheduled_new_reqs] == [
        (later.request_id, 0)
    ]
    assert one.lookup([*PREFIX, 201]) == len(PREFIX)
    one.drain()


def test_keep_flags_the_statistics(replica):
    one, _ = ten_running(replica)
    one.manager.make_prefix_cache_stats()
    one.keep()
    assert one.manager.make_prefix_cache_stats().reset is True
    assert one.manager.make_prefix_cache_stats().reset is False


def test_keep_resets_the_residency_metrics(replica):
    from vllm.v1.core.kv_cache_metrics import KVCacheMetricsCollector

    one = replica()
    one.pool.metrics_collector = KVCacheMetricsCollector(sample_rate=1.0)
    one.add(PREFIX)
    one.step()
    assert one.pool.metrics_collector.block_metrics
    one.keep()
    assert not one.pool.metrics_collector.block_metrics


def test_keep_appends_one_event(replica):
    from vllm.distributed.kv_events import AllBlocksCleared

    one, _ = ten_running(replica, events=True)
    one.manager.take_events()
    one.keep()
    assert [type(event) for event in one.manager.take_events()] == [AllBlocksCleared]


def test_keep_notifies_reuse_watchers_once(replica):
    one = replica()
    told = []
    blocks = one.pool.get_new_blocks(3)
    one.pool.unpin_blocks(blocks[:2], told.append)
    one.keep()
    one.keep()
    assert told == blocks[:2]


def test_both_flags_are_an_error_that_changes_nothing(replica):
    one, requests = ten_running(replica)
    before, cached = state(requests), one.cached
    with pytest.raises(ValueError, match="keep_running_requests and reset_running_requests"):
        one.scheduler.reset_prefix_cache(reset_running_requests=True, keep_running_requests=True)
    assert (state(requests), one.cached) == (before, cached)


def test_positional_calls_mean_what_they_meant(replica):
    one, requests = ten_running(replica)
    assert one.scheduler.reset_prefix_cache(False, False) is False
    assert one.scheduler.reset_prefix_cache(True, False) is True
    assert [request.num_computed_tokens for request in requests] == [0] * 10
    assert one.scheduler.reset_prefix_cache(False, False, False) is True
    assert one.scheduler.reset_prefix_cache(False, False, True) is True
    assert one.pool.reset_prefix_cache() is True
    assert one.manager.coordinator.reset_prefix_cache() is True
    assert one.manager.reset_prefix_cache() is True


def test_every_pool_is_cleared(replica):
    from vllm.v1.core.block_pool import BlockPool

    one, _ = ten_running(replica)
    [manager] = one.manager.coordinator.single_type_managers
    one.manager.coordinator.single_type_managers = (manager, second := SecondManager(BlockPool))
    assert one.manager.coordinator.reset_prefix_cache(keep_running_requests=True)
    assert one.cached == len(second.block_pool.cached_block_hash_to_block) == 0
    assert second.block_pool.get_num_free_blocks() == 6


class SecondManager:
    """Holds one cached block of a pool of its own."""

    def __init__(self, pool):
        from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id

        self.block_pool = pool(8, True, 16)
        [block] = self.block_pool.get_new_blocks(1)
        self.block_pool._insert_block_hash(make_block_hash_with_group_id(b"h", 1), block, 16)


class Connector:
    """A connector that must not be reached."""

    def reset_cache(self):
        raise AssertionError("the external cache was asked to reset")


def test_keep_with_an_external_reset_is_refused_by_the_connectors_name(plugin, replica):
    one, requests = ten_running(replica)
    one.scheduler.connector = Connector()
    before, cached = state(requests), one.cached
    with pytest.raises(plugin.KeepRefused, match="Connector"):
        one.scheduler.reset_prefix_cache(reset_connector=True, keep_running_requests=True)
    assert (state(requests), one.cached) == (before, cached)
    assert one.keep(), "the local reset alone is fine"


def test_keep_with_an_external_reset_and_no_connector_is_fine(replica):
    one, _ = ten_running(replica)
    assert one.scheduler.reset_prefix_cache(reset_connector=True, keep_running_requests=True)
    assert one.cached == 0


@pytest.mark.parametrize("pause", ["UNPAUSED", "PAUSED_NEW", "PAUSED_ALL"])
def test_keep_in_every_pause_state(replica, pause):
    from vllm.v1.core.sched.interface import PauseState

    one, requests = ten_running(replica)
    one.scheduler.set_pause_state(PauseState[pause])
    before = state(requests)
    assert one.keep()
    assert state(requests) == before
    one.scheduler.set_pause_state(PauseState.UNPAUSED)
    one.drain()


def test_keep_without_prefix_caching(replica):
    one, _ = ten_running(replica, caching=False)
    assert one.keep()
    one.drain()
