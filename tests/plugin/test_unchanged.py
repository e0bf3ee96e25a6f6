"""Default and preempting resets are vLLM's own: compared with vLLM as it was before the plugin."""

from __future__ import annotations

import logging
from contextlib import ExitStack, contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

PREFIX = list(range(1, 13))

STEPS = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 12), st.integers(1, 12)),
    st.tuples(st.just("schedule")),
    st.tuples(st.just("finish")),
    st.tuples(st.just("abort"), st.integers(0, 5)),
    st.tuples(st.just("pin")),
    st.tuples(st.just("unpin")),
    st.tuples(st.just("reset"), st.booleans(), st.booleans()),
)


class Lines(logging.Handler):
    """What vLLM logs, without the place it logs from."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append((record.levelname, record.name, record.getMessage()))


@contextmanager
def log_lines():
    handler, logger = Lines(), logging.getLogger("vllm")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield handler.lines
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


class Connector:
    """Counts resets and succeeds at every second one."""

    def __init__(self):
        self.resets = 0

    def reset_cache(self):
        self.resets += 1
        return self.resets % 2 == 0


def outcome(call):
    try:
        return call()
    except RuntimeError as raised:
        return f"{type(raised).__name__}: {raised}"


def perform(replica, steps, asynchronous, connected):
    """Everything that can be seen of a scheduler through a sequence of steps."""
    one = replica(blocks=16, budget=24, asynchronous=asynchronous, events=True)
    scheduler, pool, pinned = one.scheduler, one.pool, []
    if connected:
        scheduler.reset_connector_cache = Connector().reset_cache
    seen = []
    with log_lines() as lines:
        for name, *arguments in steps:
            if name == "add" and len(scheduler.requests) < 6:
                tail, tokens = arguments
                one.add([*PREFIX, *range(50, 50 + tail)], tokens)
            elif name == "schedule" and len(one.in_flight) < 1 + asynchronous:
                one.schedule()
            elif name == "finish" and one.in_flight:
                one.finish()
            elif name == "abort" and len(scheduler.requests) > arguments[0]:
                from vllm.v1.request import RequestStatus

                victim = list(scheduler.requests)[arguments[0]]
                scheduler.finish_requests(victim, RequestStatus.FINISHED_ABORTED)
            elif name == "pin" and pool.get_num_free_blocks() > 4:
                pinned += pool.get_new_blocks(1)
            elif name == "unpin" and pinned:
                pool.free_blocks([pinned.pop()])
            elif name == "reset":
                seen.append(outcome(lambda given=arguments: scheduler.reset_prefix_cache(*given)))
            seen.append(one.manager.take_events())
            seen.append(
                [
                    (r.request_id, r.status, r.num_computed_tokens, r.num_preemptions)
                    for r in scheduler.requests.values()
                ]
            )
            seen.append([(b.block_hash, b.block_hash_num_tokens, b.ref_cnt) for b in pool.blocks])
            seen.append([b.block_id for b in pool.free_block_queue.get_all_free_blocks()])
            seen.append(one.manager.make_prefix_cache_stats().reset)
    return seen, lines


@pytest.fixture(scope="session")
def stock(reverted):
    """A context in which every function that the plugin replaced is vLLM's own."""
    from vllm_keep_reset.surfaces import REPLACED

    @contextmanager
    def all_reverted():
        with ExitStack() as stack:
            for name in REPLACED:
                stack.enter_context(reverted(name))
            yield

    return all_reverted


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_resets_without_the_new_flag_are_vllms_own(replica, stock, asynchronous):
    @settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
    @given(steps=st.lists(STEPS, min_size=10, max_size=60), connected=st.booleans())
    def compare(steps, connected):
        ours, our_lines = perform(replica, steps, asynchronous, connected)
        with stock():
            theirs, their_lines = perform(replica, steps, asynchronous, connected)
        assert ours == theirs
        assert our_lines == their_lines

    compare()


def test_the_comparison_sees_refusals_successes_and_errors(replica, stock):
    steps = [
        ("add", 4, 3),
        ("schedule",),
        ("finish",),
        ("reset", False, False),
        ("pin",),
        ("reset", True, False),
        ("unpin",),
        ("reset", True, False),
    ]
    for context in (ExitStack, stock):
        with context():
            seen, lines = perform(replica, steps, asynchronous=False, connected=False)
        assert sum(isinstance(entry, str) and "RuntimeError" in entry for entry in seen) == 1
        assert [message.partition(" because")[0] for _, _, message in lines] == [
            "Failed to reset prefix cache",
            "Failed to reset prefix cache",
            "Successfully reset prefix cache",
        ]
