"""What a lookup can hit after a keep reset, for each kind of attention."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm.v1.kv_cache_interface import KVCacheSpec

PROMPT = list(range(1, 201))
"""Twelve full blocks of 16 tokens and a tail."""


@dataclass(frozen=True)
class Model:
    """Cache groups, and what a lookup of `PROMPT` finds in an engine that has computed nothing."""

    specs: Callable[[Any], list[KVCacheSpec]]
    fresh: int = 0
    options: dict[str, Any] = field(default_factory=dict)


def _reference_window(kinds: Any) -> KVCacheSpec:
    from vllm.v1.kv_cache_interface import RSWASpec

    full = kinds.full()
    return RSWASpec(
        block_size=full.block_size,
        num_kv_heads=full.num_kv_heads,
        head_size=full.head_size,
        dtype=full.dtype,
        rswa_window=32,
    )


SPARSE = {"config": {"prefix_cache_retention_interval": 64}}
ANCHORED = {
    "full": Model(lambda kinds: [kinds.full()]),
    "reference window": Model(lambda kinds: [_reference_window(kinds)]),
    "full + sliding, sparse": Model(
        lambda kinds: [kinds.full(), kinds.sliding(32)], options=SPARSE
    ),
    "full + sliding": Model(lambda kinds: [kinds.full(), kinds.sliding(32)]),
    "full + chunked local": Model(lambda kinds: [kinds.full(), kinds.chunked(64)]),
    "full + mamba": Model(lambda kinds: [kinds.full(), kinds.mamba()]),
    "full + mamba, hits inside blocks": Model(
        lambda kinds: [kinds.full(64), kinds.mamba(64)], options={"hash_block": 16}
    ),
    "full + wider mamba, hits inside blocks": Model(
        lambda kinds: [kinds.full(16), kinds.mamba(64)], options={"hash_block": 16}
    ),
}
"""Every hit begins with a cached first block of the full-attention group."""
UNANCHORED = {
    "sliding, one block wide": Model(lambda kinds: [kinds.sliding(16)]),
    "sliding, three blocks wide": Model(lambda kinds: [kinds.sliding(48)]),
    "sliding, sparse": Model(lambda kinds: [kinds.sliding(32)], options=SPARSE),
    "mamba": Model(lambda kinds: [kinds.mamba()]),
    "sliding + mamba": Model(lambda kinds: [kinds.sliding(32), kinds.mamba()]),
    "sliding + chunked local": Model(lambda kinds: [kinds.sliding(32), kinds.chunked(64)]),
    "chunked local": Model(lambda kinds: [kinds.chunked(64)], fresh=192),
}
"""Lookups start at the last block."""
MODELS = ANCHORED | UNANCHORED


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def make(request, replica, kinds) -> Callable[..., Any]:
    def build(model: Model, **more: Any) -> Any:
        return replica(
            *model.specs(kinds),
            **{"budget": 80, "asynchronous": request.param, **model.options, **more},
        )

    return build


@pytest.mark.parametrize("name", MODELS)
def test_nothing_that_straddles_the_reset_is_ever_hit(make, name):
    """Reset in the middle of a prefill; nobody else computes anything afterwards."""
    model = MODELS[name]
    replica = make(model)
    assert replica.lookup(PROMPT) == model.fresh
    request = replica.add(PROMPT)
    replica.schedule()
    assert replica.lookup(PROMPT) >= 64

    assert replica.keep()

    assert replica.lookup(PROMPT) == model.fresh
    replica.finish()
    while not request.is_finished():
        assert replica.lookup(PROMPT) == model.fresh
        turn = list(request.all_token_ids)
        assert replica.lookup(turn) <= max(model.fresh, len(turn) // 64 * 64 * bool(model.fresh))
        replica.step()
    assert replica.lookup(PROMPT) == model.fresh
    replica.drain()


@pytest.mark.parametrize("name", UNANCHORED)
def test_without_the_mend_lookups_from_the_last_block_hit_a_straddler(make, name, monkeypatch):
    monkeypatch.setattr("vllm_keep_reset.scheduler.hold_back", lambda *_: None)
    replica = make(UNANCHORED[name])
    replica.add(PROMPT)
    replica.step()
    assert replica.keep()
    assert replica.lookup(PROMPT) == UNANCHORED[name].fresh
    replica.step(2)
    assert replica.lookup(PROMPT) == 192
    replica.drain()


@pytest.mark.parametrize("name", MODELS)
def test_a_later_request_warms_the_cache_as_in_a_fresh_engine(make, name):
    model = MODELS[name]
    fresh = make(model)
    fresh.add(PROMPT)
    fresh.step(8)
    replica = make(model)
    straddler = replica.add(PROMPT)
    replica.step(2)
    assert replica.keep()
    replica.step()
    replica.add(PROMPT)
    replica.step(8)
    assert replica.lookup(PROMPT) == fresh.lookup(PROMPT) > 0
    assert not straddler.is_finished()
    replica.drain()
    fresh.drain()


@pytest.mark.parametrize("name", MODELS)
def test_a_straddler_that_is_preempted_later_caches_again(make, name):
    model = MODELS[name]
    replica = make(model)
    request = replica.add(PROMPT)
    replica.step(4)
    assert replica.keep()
    replica.step()
    assert replica.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert request.num_preemptions == 1
    replica.step(8)
    assert replica.lookup(PROMPT) >= 128
    replica.drain()


@pytest.mark.parametrize("name", MODELS)
def test_a_keep_reset_before_every_step_lets_every_request_finish(make, name):
    replica = make(MODELS[name])
    shared = [replica.add(PROMPT, max_tokens=20) for _ in range(2)]
    other = replica.add(range(300, 340), max_tokens=90)
    while replica.scheduler.has_unfinished_requests():
        assert replica.keep()
        assert replica.cached == 0
        replica.schedule()
        assert replica.keep()
        replica.finish()
    replica.drain()
    assert all(request.num_output_tokens == 20 for request in shared)
    assert list(shared[0].output_token_ids) == list(shared[1].output_token_ids)
    assert other.num_output_tokens == 90


def test_the_first_block_of_a_straddler_is_not_cached_when_it_fills_later(replica, kinds):
    """Half a block was computed at the reset: too little for a hash, but no fresh work either."""
    made = replica(kinds.full(32), budget=16)
    made.add(PROMPT)
    made.step()
    assert (made.held, made.cached) == (1, 0)
    assert made.keep()
    made.step(13)
    assert made.cached == 5
    assert made.lookup(PROMPT) == 0
    made.drain()


def test_without_the_mend_the_first_block_of_a_straddler_is_cached(replica, kinds, monkeypatch):
    monkeypatch.setattr("vllm_keep_reset.scheduler.hold_back", lambda *_: None)
    made = replica(kinds.full(32), budget=16)
    made.add(PROMPT)
    made.step()
    assert made.keep()
    made.step(13)
    assert made.lookup(PROMPT) == 192
    made.drain()
