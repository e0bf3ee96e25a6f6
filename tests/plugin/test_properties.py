"""What holds after every step of random sequences, whatever mode the resets have.

The block pool is driven by itself, and under a scheduler with its cache manager: sync and async,
with full-attention and sliding-window groups, in a pool that is too small for the load.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

MODES = ["default", "preempt", "keep"]
WORK = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def assert_blocks_are_whole(pool, holders):
    """Reference counts, the free queue, the map and the hashes agree.

    `holders` counts, for each block id, who holds the block.
    """
    free = [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]
    assert len(free) == len(set(free)) == pool.get_num_free_blocks()
    for block in pool.blocks:
        if block.is_null:
            assert block.block_id not in free
            assert block.block_hash is None
            continue
        assert block.ref_cnt == holders[block.block_id]
        assert (block.block_id in free) == (block.ref_cnt == 0)
    assert mapped(pool) == hashed(pool)


def mapped(pool):
    """Every (hash, block id) that a lookup can find."""
    return {
        (key, block.block_id)
        for key, value in pool.cached_block_hash_to_block._cache.items()
        for block in (value.values() if isinstance(value, dict) else [value])
    }


def hashed(pool):
    """Every (hash, block id) that a block carries."""
    primary = {(b.block_hash, b.block_id) for b in pool.blocks if b.block_hash is not None}
    further = {
        (key, block_id)
        for block_id, keys in pool.cached_block_hashes_by_block.items()
        for key in keys
    }
    return primary | further


def make_pool_machine():
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id

    class Pool(RuleBasedStateMachine):
        """A block pool in the hands of holders that do anything vLLM's managers do."""

        @initialize(events=st.booleans())
        def start(self, events):
            self.pool = BlockPool(12, True, 16, enable_kv_cache_events=events)
            self.held = []
            self.watched = Counter()
            self.told = Counter()

        def pick(self, data):
            return self.held[data.draw(st.integers(0, len(self.held) - 1))]

        @rule(count=st.integers(1, 4))
        def allocate(self, count):
            if count <= self.pool.get_num_free_blocks():
                self.held += self.pool.get_new_blocks(count)

        @precondition(lambda self: self.held)
        @rule(data=st.data(), content=st.integers(0, 5), tokens=st.integers(1, 4))
        def fill(self, data, content, tokens):
            block = self.pick(data)
            key = make_block_hash_with_group_id(bytes([content]), 0)
            self.pool._insert_block_hash(key, block, num_tokens=tokens)

        @rule(content=st.integers(0, 5))
        def hit(self, content):
            if found := self.pool.get_cached_block(bytes([content]), [0]):
                self.pool.touch(found)
                self.held += found

        @precondition(lambda self: self.held)
        @rule(data=st.data())
        def free(self, data):
            block = self.pick(data)
            self.held.remove(block)
            self.pool.free_blocks([block])

        @precondition(lambda self: self.held)
        @rule(data=st.data())
        def unpin(self, data):
            block = self.pick(data)
            self.held.remove(block)
            self.watched[block.block_id] += block.block_id not in self.pool._reuse_watchers
            self.pool.unpin_blocks([block], self.tell)

        def tell(self, block):
            self.told[block.block_id] += 1

        @rule(ids=st.sets(st.integers(1, 11), max_size=3))
        def evict(self, ids):
            self.pool.evict_blocks(ids)

        @precondition(lambda self: self.held)
        @rule(data=st.data())
        def move_hashes(self, data):
            fresh = [b for b in self.held if b.block_hash is None]
            source = self.pick(data)
            if fresh and fresh[0] is not source:
                self.pool.move_block_hashes(source, fresh[0])

        @rule()
        def reset_default(self):
            assert self.pool.reset_prefix_cache() is (not self.held)

        @rule()
        def reset_keep(self):
            from vllm.distributed.kv_events import AllBlocksCleared

            pool = self.pool
            pool.take_events()
            counts = [block.ref_cnt for block in pool.blocks]
            free = pool.free_block_queue.get_all_free_blocks()
            assert pool.reset_prefix_cache(allow_used_blocks=True) is True
            assert not mapped(pool)
            assert not hashed(pool)
            assert all(block.block_hash_num_tokens is None for block in pool.blocks)
            assert [block.ref_cnt for block in pool.blocks] == counts
            assert pool.free_block_queue.get_all_free_blocks() == free
            assert self.told == self.watched
            cleared = [AllBlocksCleared] if pool.enable_kv_cache_events else []
            assert [type(event) for event in pool.take_events()] == cleared

        @invariant()
        def blocks_are_whole(self):
            if hasattr(self, "pool"):
                assert_blocks_are_whole(self.pool, Counter(b.block_id for b in self.held))

        def teardown(self):
            if hasattr(self, "pool"):
                self.pool.free_blocks(self.held)
                assert self.pool.get_num_free_blocks() == 11

    return Pool


def test_a_block_pool_stays_whole(plugin):
    run_state_machine_as_test(make_pool_machine(), settings=WORK)


BLOCK = 4
PREFIXES = [list(range(1, 13)), [*range(1, 9), *range(21, 29)], list(range(31, 36))]


@dataclass
class Written:
    """One token's KV: all tokens up to it, and how many resets had been when it was computed."""

    tokens: tuple[int, ...]
    resets: int


class Memory:
    """What the model has written into every block, by group: it writes as steps are scheduled."""

    def __init__(self, replica):
        self.replica = replica
        self.written = {}
        self.resets = 0
        self._known = {}

    def tokens(self, request, count):
        """The request's first `count` tokens, also those that it has not sampled yet."""
        tokens = self._known.setdefault(request.request_id, list(request.prompt_token_ids))
        while len(tokens) < count:
            tokens.append(sum(tokens) % 251 + 1)
        return tokens[:count]

    def slots(self, request, start, stop):
        """(group, block, offset) of every token in a range that still has a block."""
        for group, manager in enumerate(self.replica.manager.coordinator.single_type_managers):
            table = manager.req_to_blocks[request.request_id]
            for position in range(start, stop):
                block = table[position // BLOCK]
                if not block.is_null:
                    yield position, (group, block.block_id, position % BLOCK)

    def run(self, step):
        requests = self.replica.scheduler.requests
        for request_id, count in step.num_scheduled_tokens.items():
            request = requests[request_id]
            stop = request.num_computed_tokens
            tokens = self.tokens(request, stop)
            for position, slot in self.slots(request, stop - count, stop):
                self.written[slot] = Written(tuple(tokens[: position + 1]), self.resets)
            self.check(request, stop)

    def check(self, request, stop):
        tokens = tuple(self.tokens(request, stop))
        for position, slot in self.slots(request, 0, stop):
            assert self.written[slot].tokens == tokens[: position + 1], "a block of other tokens"


def make_scheduler_machine(replica, specs, asynchronous, first_block_leads):
    class Scheduling(RuleBasedStateMachine):
        """A scheduler in a pool too small for its load."""

        @initialize()
        def start(self):
            self.one = replica(*specs, blocks=24, budget=24, asynchronous=asynchronous)
            self.memory = Memory(self.one)
            self.finished = []

        @property
        def requests(self):
            return list(self.one.scheduler.requests.values())

        @rule(
            prefix=st.sampled_from(PREFIXES),
            tail=st.integers(0, 3),
            max_tokens=st.sampled_from([1, 3, 12]),
        )
        def add(self, prefix, tail, max_tokens):
            if len(self.requests) < 6:
                self.one.add([*prefix, *range(50, 50 + tail)], max_tokens)

        @precondition(lambda self: len(self.one.in_flight) < 1 + asynchronous)
        @rule()
        def schedule(self):
            step = self.one.schedule()
            self.memory.run(step)
            for new in step.scheduled_new_reqs:
                self.check_hit(new.req_id, new.num_computed_tokens)
            cached = step.scheduled_cached_reqs
            for request_id, hit in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
                if request_id in cached.resumed_req_ids:
                    self.check_hit(request_id, hit)

        def check_hit(self, request_id, hit):
            """What is hit was computed after the last wipe: all of it, or where lookups start at
            the first block and so cannot reach the others without it, at least that one.
            """
            for position, slot in self.memory.slots(
                self.one.scheduler.requests[request_id], 0, hit
            ):
                fresh = self.memory.written[slot].resets == self.memory.resets
                assert fresh or (first_block_leads and position >= BLOCK)

        @precondition(lambda self: self.one.in_flight)
        @rule()
        def finish(self):
            self.one.finish()

        @precondition(lambda self: self.requests)
        @rule(data=st.data())
        def abort(self, data):
            from vllm.v1.request import RequestStatus

            victim = data.draw(st.sampled_from([r.request_id for r in self.requests]))
            self.one.scheduler.finish_requests(victim, RequestStatus.FINISHED_ABORTED)

        @rule(ids=st.sets(st.integers(1, 23), max_size=3))
        def evict(self, ids):
            self.one.manager.evict_blocks(ids)

        @rule(mode=st.sampled_from(MODES))
        def reset(self, mode):
            before = [(r.status, r.num_computed_tokens, r.num_preemptions) for r in self.requests]
            held = self.one.held
            cleared = self.one.scheduler.reset_prefix_cache(
                reset_running_requests=mode == "preempt", keep_running_requests=mode == "keep"
            )
            assert cleared is (mode != "default" or held == 0)
            if not cleared:
                return
            self.memory.resets += 1
            assert self.one.cached == 0
            assert [self.one.lookup([*prefix, 99]) for prefix in PREFIXES] == [0, 0, 0]
            if mode == "preempt":
                assert not self.one.scheduler.running
                return
            after = [(r.status, r.num_computed_tokens, r.num_preemptions) for r in self.requests]
            assert after == before

        @invariant()
        def blocks_are_whole(self):
            if not hasattr(self, "one"):
                return
            holders = Counter(
                block.block_id
                for manager in self.one.manager.coordinator.single_type_managers
                for table in manager.req_to_blocks.values()
                for block in table
                if not block.is_null
            )
            assert_blocks_are_whole(self.one.pool, holders)

        def teardown(self):
            if not hasattr(self, "one"):
                return
            while self.one.in_flight:
                self.one.finish()
            while self.one.scheduler.has_unfinished_requests():
                self.schedule()
                self.one.finish()
            assert self.one.held == 0

    return Scheduling


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("groups", ["full", "full+sliding", "sliding"])
def test_a_scheduler_stays_whole_and_never_mixes_contexts(replica, kinds, groups, asynchronous):
    specs = {
        "full": [kinds.full(BLOCK)],
        "full+sliding": [kinds.full(BLOCK), kinds.sliding(2 * BLOCK, BLOCK)],
        "sliding": [kinds.sliding(2 * BLOCK, BLOCK)],
    }[groups]
    machine = make_scheduler_machine(replica, specs, asynchronous, groups != "sliding")
    run_state_machine_as_test(machine, settings=WORK)
