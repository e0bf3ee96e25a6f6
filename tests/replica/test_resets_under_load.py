"""A real vLLM under load, with resets in every mode from several connections at once."""

from __future__ import annotations

import random

import anyio
import pytest

from harness.records import AttemptOutcome, ResetMode
from harness.replica.reset import Resetter

from .test_resets import FULL_BLOCKS, assert_cached

pytestmark = pytest.mark.anyio

CONNECTIONS = 4
RESETS_EACH = 15
SECONDS = 20.0
STREAMS = 6
TOKENS = 60
TURN = (ResetMode.KEEP, ResetMode.DEFAULT, ResetMode.KEEP, ResetMode.PREEMPT, ResetMode.DEFAULT)
"""One in five preempts."""


async def test_sixty_resets_in_twenty_seconds_leave_it_serving(client) -> None:
    outcomes: list[tuple[ResetMode, AttemptOutcome]] = []
    streams = []
    shared = client.prompt()
    over = anyio.Event()

    async def load(place: int) -> None:
        while not over.is_set():
            prompt = shared if place % 2 else client.prompt()
            streams.append(await client.complete(prompt, TOKENS))

    async def resets(place: int) -> None:
        gaps = random.Random(place)
        async with Resetter([client.endpoint], 60) as resetter:
            for number in range(RESETS_EACH):
                mode = TURN[(number + place) % len(TURN)]
                attempt = await resetter.attempt(mode, external=False, zero=0.0)
                outcomes.append((mode, attempt.outcome))
                await anyio.sleep(gaps.uniform(0.5, 1.5) * SECONDS / RESETS_EACH)

    async with anyio.create_task_group() as loading:
        for place in range(STREAMS):
            loading.start_soon(load, place)
        async with anyio.create_task_group() as resetting:
            for place in range(CONNECTIONS):
                resetting.start_soon(resets, place)
        over.set()

    assert len(outcomes) == CONNECTIONS * RESETS_EACH
    for mode, outcome in outcomes:
        refusable = mode is ResetMode.DEFAULT and outcome is AttemptOutcome.REFUSED
        assert outcome is AttemptOutcome.CLEARED or refusable, (mode, outcome)
    assert len(streams) > STREAMS
    for stream in streams:
        assert len(stream.tokens) == TOKENS
        assert stream.finish_reason == "length"
    # The default reset clears only if no block is held: none was lost.
    await client.until_running(0)
    assert (await client.reset()).json()["success"] is True
    await assert_cached(client, shared, 0)
    await assert_cached(client, shared, FULL_BLOCKS)
