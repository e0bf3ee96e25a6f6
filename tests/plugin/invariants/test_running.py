"""Requests that run, wait or have just finished with blocks in their hands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

PROMPT = range(1, 51)
"""Three full blocks of 16 tokens and a tail."""


def _tokens(count: int) -> list[int]:
    return [token * 7 % 250 + 1 for token in range(count)]


def _hashes(replica: Any, request: Any) -> list[bool]:
    """Which of a request's blocks have a hash."""
    (blocks,) = replica.manager.get_blocks(request.request_id).blocks
    return [block.block_hash is not None for block in blocks]


def _outputs(requests: Iterable[Any]) -> list[list[int]]:
    return [list(request.output_token_ids) for request in requests]


def test_a_running_request_never_gets_its_hashes_back_and_its_next_turn_misses(replica):
    made = replica()
    request = made.add(PROMPT, max_tokens=60)
    made.step(3)
    assert made.keep()
    made.step(40)
    assert _hashes(made, request) == [False, False, False, True, True, False]
    made.drain()
    turn = [*request.all_token_ids, *range(200, 220)]
    assert made.lookup(turn) == 0

    made.add(turn)
    made.step()
    assert made.lookup([*turn, 5]) == len(turn) // 16 * 16
    made.drain()


@pytest.mark.parametrize(("keep", "held"), [(False, 116), (True, 216)])
def test_a_shared_prefix_is_held_twice_after_the_reset(replica, keep, held):
    made = replica(blocks=400, budget=2000)
    prefix = _tokens(100 * 16)
    for own in (7, 8):
        made.add([*prefix, *[own] * 125])
        made.step()
        if own == 7 and keep:
            assert made.keep()
    assert made.held == held
    made.drain()


@pytest.mark.parametrize(("keep", "preempted"), [(False, 0), (True, 1)])
def test_so_the_reset_can_lead_to_memory_pressure_preemptions(replica, keep, preempted):
    made = replica(blocks=90, budget=1000)
    prefix = _tokens(40 * 16)
    requests = [made.add([*prefix, 7], max_tokens=100)]
    made.step()
    if keep:
        assert made.keep()
    requests.append(made.add([*prefix, 8], max_tokens=100))
    while made.scheduler.has_unfinished_requests():
        made.step()
    assert sum(request.num_preemptions for request in requests) == preempted
    made.drain()


@pytest.mark.parametrize(
    ("mode", "hit"), [("reset_running_requests", 1984), ("keep_running_requests", 0)]
)
def test_preempted_requests_warm_the_cache_again_and_kept_ones_do_not(replica, mode, hit):
    made = replica(blocks=400, budget=500)
    prompt = _tokens(2000)
    request = made.add(prompt, max_tokens=40)
    made.step(6)
    assert request.num_output_tokens > 0
    assert made.scheduler.reset_prefix_cache(**{mode: True})
    assert made.lookup(prompt) == 0
    made.step(10)
    assert not request.is_finished()
    assert made.lookup(prompt) == hit
    made.drain()


def test_with_a_step_in_flight(replica):
    made = replica(asynchronous=True)
    request = made.add(PROMPT)
    made.schedule()
    made.schedule()
    computed, held = request.num_computed_tokens, made.held

    assert made.keep()

    assert (request.num_computed_tokens, made.held) == (computed, held)
    assert request in made.scheduler.running
    assert made.lookup(PROMPT) == 0
    while made.in_flight:
        made.finish()
    assert request.num_output_tokens == 2
    for _ in range(14):
        made.schedule()
        made.finish()
    assert _hashes(made, request)[:4] == [False, False, False, True]
    assert made.lookup(PROMPT) == 0
    made.drain()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_outputs_and_order_are_those_of_a_run_without_resets(replica, asynchronous):
    def run(keep: bool) -> tuple[list[list[int]], list[dict[str, int]]]:
        made = replica(asynchronous=asynchronous, budget=40)
        prompts = [PROMPT, range(60, 150), range(200, 219)]
        requests = [made.add(prompt, max_tokens=30) for prompt in prompts]
        steps = []
        while made.scheduler.has_unfinished_requests():
            if keep:
                assert made.keep()
            steps.append(made.schedule().num_scheduled_tokens)
            made.finish()
        made.drain()
        return _outputs(requests), steps

    assert run(keep=True) == run(keep=False)


def test_without_prefix_caching_there_is_nothing_to_forget(replica):
    made = replica(caching=False)
    request = made.add(PROMPT, max_tokens=20)
    made.step()
    assert made.keep()
    assert made.held == 4
    made.drain()
    assert request.num_output_tokens == 20


def test_a_request_that_waits_for_its_session_keeps_its_blocks(replica):
    made = replica()
    session = made.add(PROMPT, max_tokens=4, resumable=True)
    made.step(4)
    assert session.status.name == "WAITING_FOR_STREAMING_REQ"
    held, computed = made.held, session.num_computed_tokens
    assert held == 4

    assert made.keep()

    more = made.request(range(100, 140), max_tokens=4, resumable=True)
    more.request_id = session.request_id
    made.scheduler.add_request(more)
    made.schedule()
    assert session.num_computed_tokens == computed + 40
    made.finish()
    assert made.lookup(PROMPT) == 0
    made.step(4)
    made.scheduler.finish_requests(session.request_id, _aborted())
    made.drain()


def _aborted() -> Any:
    from vllm.v1.request import RequestStatus

    return RequestStatus.FINISHED_ABORTED


@pytest.mark.parametrize("paused", ["PAUSED_NEW", "PAUSED_ALL"])
def test_a_paused_scheduler_resumes_after_the_reset(replica, paused):
    from vllm.v1.core.sched.interface import PauseState

    made = replica()
    running = made.add(PROMPT, max_tokens=8)
    made.step(2)
    made.scheduler.set_pause_state(PauseState[paused])
    waiting = made.add(PROMPT, max_tokens=8)
    assert made.keep()
    assert made.scheduler.pause_state is PauseState[paused]
    made.step(2)
    made.scheduler.set_pause_state(PauseState.UNPAUSED)
    made.drain()
    assert _outputs([running]) == _outputs([waiting])


def test_blocks_that_a_connector_still_sends_stay_held(replica, monkeypatch):
    """`default` refuses such a moment and `preempt` raises in it."""
    made = replica()
    monkeypatch.setattr(made.scheduler, "_connector_finished", lambda _: (True, None))
    request = made.add(PROMPT, max_tokens=1)
    made.step()
    assert request.is_finished()
    assert made.held == 4
    assert not made.scheduler.reset_prefix_cache()
    assert made.keep()
    assert (made.held, made.cached) == (4, 0)
    made.scheduler._free_blocks(request)
    made.drain()


def test_blocks_whose_free_waits_for_a_step_in_flight_stay_held(replica):
    """As with a KV consumer where several batches are in flight."""
    made = replica(asynchronous=True)
    made.scheduler.defer_block_free = True
    request = made.add(PROMPT)
    made.schedule()
    made.scheduler.finish_requests(request.request_id, _aborted())
    assert made.scheduler.deferred_frees
    assert made.held == 4
    assert made.keep()
    assert made.held == 4
    made.finish()
    assert made.held == 0


def test_evicting_blocks_that_lost_their_hash_changes_nothing(replica):
    """What the scheduler does when a KV load failed (`KVCacheManager.evict_blocks`)."""
    made = replica()
    request = made.add(PROMPT)
    made.step()
    (ids,) = made.manager.get_block_ids(request.request_id)
    assert made.keep()
    made.manager.evict_blocks(set(ids))
    assert (made.held, made.cached) == (4, 0)
    made.drain()


def test_the_residency_metrics_start_again_under_running_requests(replica):
    from vllm.v1.core.kv_cache_metrics import KVCacheMetricsCollector

    made = replica(blocks=12)
    made.pool.metrics_collector = KVCacheMetricsCollector(sample_rate=1.0)
    made.add(PROMPT, max_tokens=30)
    made.step()
    assert made.pool.metrics_collector.block_metrics
    assert made.keep()
    assert not made.pool.metrics_collector.block_metrics
    made.add(range(100, 180), max_tokens=30)
    made.drain()


@pytest.mark.parametrize(("keep", "created"), [(False, 48), (True, 0)])
def test_what_a_request_wrote_to_the_cache_is_counted_as_gone(replica, monkeypatch, keep, created):
    """`estimate_cached_tokens` reads the hashes of the request's blocks."""
    from vllm.v1.metrics.stats import PrefillStats

    seen: list[int] = []
    finalize = PrefillStats.finalize

    def watch(self: PrefillStats, num_cached_tokens: int) -> None:
        finalize(self, num_cached_tokens)
        seen.append(self.num_cache_creation_tokens)

    monkeypatch.setattr(PrefillStats, "finalize", watch)
    made = replica(asynchronous=True)
    made.add(PROMPT)
    made.schedule()
    if keep:
        assert made.keep()
    made.finish()
    assert seen == [created]
    made.drain()


def test_the_encoder_cache_is_another_cache(replica):
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
    from vllm.v1.core.encoder_cache_manager import EncoderCacheManager

    def picture() -> Any:
        feature = MultiModalFeatureSpec(
            data=None,
            modality="image",
            identifier="picture",
            mm_position=PlaceholderRange(offset=0, length=8),
        )
        return made.request(PROMPT, mm_features=[feature])

    made = replica()
    made.scheduler.encoder_cache_manager = cache = EncoderCacheManager(cache_size=100)
    first = picture()
    cache.allocate(first, 0)
    cache.free(first)
    assert made.keep()
    assert cache.check_and_update_cache(picture(), 0)
    made.scheduler.reset_encoder_cache()
    assert not cache.check_and_update_cache(picture(), 0)


def test_drafts_of_which_some_are_rejected(replica):
    """Blocks are cached up to the accepted tokens only; a reset before every step changes none."""

    class Verifier:
        """Accepts the first drafts of a request and rejects the others, in turn."""

        def run(self, step: Any, sampled: dict[str, list[int]], output: Any) -> None:
            for index, request_id in enumerate(output.req_ids):
                drafts = step.scheduled_spec_decode_tokens.get(request_id, [])
                request = made.scheduler.requests[request_id]
                accepted = drafts[: request.num_output_tokens % 4]
                output.sampled_token_ids[index] = [*accepted, *sampled[request_id]]

    def run(keep: bool) -> list[list[int]]:
        nonlocal made
        made = replica()
        made.scheduler.num_spec_tokens = 3
        made.worker = Verifier()
        requests = [made.add(PROMPT, max_tokens=50), made.add(range(60, 90), max_tokens=50)]
        while made.scheduler.has_unfinished_requests():
            for request in requests:
                if request.num_output_tokens:
                    request.spec_token_ids = [5, 6, 7]
            if keep:
                assert made.keep()
            made.step()
        made.drain()
        return _outputs(requests)

    made: Any = None
    assert run(keep=True) == run(keep=False)
