"""Blocks that are named before they are full, copied on write, or moved within a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

PROMPT = range(1, 41)
"""Forty tokens: two hash blocks of 16 and a tail, all inside one block of 64."""
TAIL = "vllm.v1.core.single_type_kv_cache_manager:FullAttentionManager._cache_partial_tail_block"
LONGER = [token % 250 + 1 for token in range(200)]


@pytest.fixture
def make(replica, kinds) -> Callable[..., Any]:
    """A model whose hits may end inside a block: full attention beside aligned Mamba states."""

    def build(**more: Any) -> Any:
        return replica(
            kinds.full(64),
            kinds.mamba(64, speculative=more.pop("speculative", 0)),
            **{"hash_block": 16, **more},
        )

    return build


def _hashes(replica: Any, request: Any, group: int) -> list[bool]:
    blocks = replica.manager.get_blocks(request.request_id).blocks[group]
    return [block.block_hash is not None for block in blocks]


def test_the_prompts_tail_is_named_while_its_block_is_not_full(make):
    """What the following tests start from."""
    made = make()
    request = made.add(PROMPT)
    made.step()
    assert request.num_computed_tokens == 32
    assert _hashes(made, request, 0) == _hashes(made, request, 1) == [True]
    assert made.lookup(PROMPT) == 32
    made.step(2)
    assert made.lookup(PROMPT) == 32
    made.drain()


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_the_tail_of_a_straddler_gets_no_name_again(make, steps):
    made = make()
    request = made.add(PROMPT)
    made.step(steps)
    assert made.keep()
    made.step()
    assert not any(_hashes(made, request, 0))
    assert made.cached == 0
    made.drain()


def test_without_the_mend_the_tail_gets_its_name_again_one_step_later(make, reverted):
    made = make()
    request = made.add(PROMPT)
    made.step(2)
    with reverted(TAIL):
        assert made.keep()
        made.step()
        assert _hashes(made, request, 0) == [True]
        assert made.cached == 1
    made.drain()


@pytest.mark.parametrize(("mended", "hit"), [(True, 0), (False, 32)])
def test_a_straddler_whose_tail_is_computed_after_the_reset(make, reverted, mended, hit):
    """Its first half was computed before, so without the mend a lookup would hit that too."""
    made = make(budget=16)
    request = made.add(PROMPT)
    made.step()
    assert request.num_computed_tokens == 16
    assert made.keep()
    if mended:
        made.step(2)
    else:
        with reverted(TAIL):
            made.step(2)
    assert made.lookup(PROMPT) == hit
    made.drain()


def test_copy_on_write_of_a_state_that_lost_its_name(make):
    """`move_block_hashes` then moves nothing, and both ends of the copy come back."""
    made = make()
    request = made.add(PROMPT)
    made.step()
    mamba = made.manager.coordinator.single_type_managers[1]
    assert request.request_id in mamba._partial_hit_reqs
    assert made.keep()
    step = made.schedule()
    (copy,) = step.kv_cache_block_copies
    source, target = (made.pool.blocks[block] for block in copy)
    assert source.block_hash is None
    assert target.block_hash is None
    made.finish()
    assert made.cached == 0
    assert (source.ref_cnt, target.ref_cnt) == (1, 0)
    made.drain()


def test_a_hit_inside_a_block_after_the_reset_is_copied_as_ever(make):
    made = make()
    made.add(PROMPT)
    made.step(3)
    assert made.keep()
    made.add(PROMPT)
    made.step(3)
    assert made.lookup(PROMPT) == 32
    third = made.add(PROMPT)
    step = made.schedule()
    assert len(step.kv_cache_block_copies) == 2
    assert third.prefill_stats.num_local_cached_tokens == 32
    made.finish()
    made.drain()


def test_a_state_promoted_from_partial_to_full_after_the_reset(make):
    """vLLM asserts that a block that gets a full hash had none or a shorter one."""
    made = make()
    request = made.add(range(1, 61), max_tokens=100)
    made.step(3)
    assert made.keep()
    made.step(80)
    assert request.num_computed_tokens > 128
    assert _hashes(made, request, 0)[:2] == [False, True]
    assert made.lookup([*request.all_token_ids, 1]) == 0
    made.drain()


@pytest.mark.parametrize("group", ["mamba", "full + mamba"])
def test_speculative_states_are_moved_only_if_nobody_else_may_read_them(replica, kinds, group):
    """`_relocate_speculative_block` asserts `is_block_writable`: one holder and no hash."""
    specs = [kinds.mamba(speculative=2)]
    if group != "mamba":
        specs.insert(0, kinds.full())
    made = replica(*specs, budget=48)
    requests = [made.add(LONGER, max_tokens=50), made.add(LONGER[:70], max_tokens=50)]
    while made.scheduler.has_unfinished_requests():
        assert made.keep()
        made.step()
    made.drain()
    assert [request.num_output_tokens for request in requests] == [50, 50]


def test_states_named_in_the_step_before_the_reset_do_not_hold_up_a_later_request(replica, kinds):
    """Mamba defers a hit on a state that this step computes (`cached_blocks_this_step`)."""
    made = replica(kinds.mamba())
    made.add(LONGER)
    made.step()
    mamba = made.manager.coordinator.single_type_managers[0]
    assert mamba.cached_blocks_this_step
    assert made.keep()
    later = made.add(LONGER)
    made.step(2)
    assert later.num_computed_tokens >= 192
    made.drain()


def test_a_state_offered_to_a_connector_before_the_reset(make):
    """The offer names a block and a boundary, not a hash, and the request still holds the block."""
    made = make()
    request = made.request(LONGER)
    mamba = made.manager.coordinator.single_type_managers[1]
    assert made.manager.allocate_slots(request, 192) is not None
    ((_, _, block, boundary),) = mamba._pending_boundary_state_offloads
    assert boundary == 192
    assert block.block_hash is not None

    assert made.keep()

    assert block.block_hash is None
    assert block in mamba.req_to_blocks[request.request_id]
    offers = made.manager.take_boundary_state_offloads()
    assert offers == {request.request_id: [(1, block.block_id, 192)]}
    made.manager.free(request)
    assert made.held == 0


def test_the_map_is_replaced_and_extra_names_are_gone(make):
    made = make()
    made.add(LONGER)
    made.step(4)
    before = made.pool.cached_block_hash_to_block
    assert made.keep()
    assert made.pool.cached_block_hash_to_block is not before
    assert not made.pool.cached_block_hashes_by_block
    assert all(block.block_hash is None for block in made.pool.blocks)
    assert all(block.block_hash_num_tokens is None for block in made.pool.blocks)
    made.drain()
