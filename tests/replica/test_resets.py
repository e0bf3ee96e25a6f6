"""The three resets on a real vLLM, while requests run."""

from __future__ import annotations

import anyio
import pytest

from harness.records import AttemptOutcome, ResetAttempt, ResetMode
from harness.replica.reset import Resetter

pytestmark = pytest.mark.anyio

RUNNING = 4
TOKENS = 400
FULL_BLOCKS = 608
"""Of a 640-token prompt all but the last block can be hit: one token must be computed."""


async def reset(client, mode: ResetMode) -> ResetAttempt:
    async with Resetter([client.endpoint], 60) as resetter:
        return await resetter.attempt(mode, external=False, zero=0.0)


async def assert_cached(client, prompt: list[int], tokens: int) -> None:
    assert (await client.complete(prompt, 1)).cached_tokens == tokens


async def test_keep_empties_the_cache_and_leaves_running_requests_alone(client) -> None:
    before = await client.metric("num_preemptions_total")
    prompt = client.prompt()
    await client.complete(prompt, 1)
    await assert_cached(client, prompt, FULL_BLOCKS)
    async with client.running(RUNNING, TOKENS) as streams:
        attempt = await reset(client, ResetMode.KEEP)
        assert attempt.outcome is AttemptOutcome.CLEARED
        assert attempt.preemptions == 0
        assert attempt.reply["running"] == RUNNING
        assert attempt.reply["held_blocks"] >= RUNNING * 20
        assert attempt.reply["discarded_tokens"] == 0
        await assert_cached(client, prompt, 0)
        await assert_cached(client, prompt, FULL_BLOCKS)  # and it fills again
    for stream in streams:
        assert len(stream.tokens) == TOKENS
        assert stream.finish_reason == "length"
    assert await client.metric("num_preemptions_total") == before


async def test_what_ran_during_a_keep_reset_is_not_hit_afterwards(client) -> None:
    prompts = [client.prompt() for _ in range(RUNNING)]
    async with anyio.create_task_group() as tasks:
        for prompt in prompts:
            tasks.start_soon(client.complete, prompt, TOKENS)
        await client.until_running(RUNNING)
        await anyio.sleep(0.5)
        attempt = await reset(client, ResetMode.KEEP)
    assert attempt.outcome is AttemptOutcome.CLEARED
    for prompt in prompts:
        await assert_cached(client, prompt, 0)


async def test_preempt_preempts_what_runs(client) -> None:
    before = await client.metric("num_preemptions_total")
    prompt = client.prompt()
    await client.complete(prompt, 1)
    async with client.running(RUNNING, TOKENS) as streams:
        attempt = await reset(client, ResetMode.PREEMPT)
        assert attempt.outcome is AttemptOutcome.CLEARED
        assert attempt.preemptions == attempt.reply["running"] == RUNNING
        assert attempt.reply["discarded_tokens"] >= RUNNING * 640
        assert attempt.reply["held_blocks"] >= RUNNING * 20  # as it was just before
        await assert_cached(client, prompt, 0)
    assert [len(stream.tokens) for stream in streams] == [TOKENS] * RUNNING
    assert await client.metric("num_preemptions_total") == before + RUNNING


async def test_default_is_refused_while_a_request_runs_and_clears_when_idle(client) -> None:
    prompt = client.prompt()
    await client.complete(prompt, 1)
    async with client.running(1, TOKENS) as (stream,):
        refused = await reset(client, ResetMode.DEFAULT)
        assert len(stream.tokens) < TOKENS, "it ended before the reset: too short for this machine"
    assert refused.outcome is AttemptOutcome.REFUSED
    assert (refused.http_status, refused.preemptions) == (200, 0)
    await assert_cached(client, prompt, FULL_BLOCKS)
    cleared = await reset(client, ResetMode.DEFAULT)
    assert cleared.outcome is AttemptOutcome.CLEARED
    await assert_cached(client, prompt, 0)


@pytest.mark.parametrize("mode", [ResetMode.DEFAULT, ResetMode.PREEMPT, ResetMode.KEEP])
async def test_the_reply_tells_what_was_done(client, mode: ResetMode) -> None:
    await client.complete(client.prompt(), 1)
    attempt = await reset(client, mode)
    assert attempt.outcome is AttemptOutcome.CLEARED
    reply = attempt.reply
    assert reply["success"] is True
    assert reply["mode"] == mode
    assert reply["engines"] == 1
    for name in ("running", "waiting", "preempted", "discarded_tokens", "held_blocks"):
        assert reply[name] == 0, name
    assert reply["cached_blocks"] >= 20
    assert 0 < reply["stall_seconds"] < attempt.replied - attempt.called


async def test_both_flags_are_refused_before_anything_happens(client) -> None:
    before = await client.metric("num_preemptions_total")
    prompt = client.prompt()
    await client.complete(prompt, 1)
    async with client.running(RUNNING, TOKENS) as streams:
        both = await client.reset(keep_running_requests=True, reset_running_requests=True)
        assert both.status_code == 400
        await assert_cached(client, prompt, FULL_BLOCKS)
    assert [len(stream.tokens) for stream in streams] == [TOKENS] * RUNNING
    assert await client.metric("num_preemptions_total") == before
