"""Bringing the cache to its starting state: emptied, every prefix primed once, then checked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from statistics import median
from time import perf_counter
from typing import NamedTuple

import anyio
import msgspec

from harness.errors import TargetError
from harness.records import (
    Arrival,
    AttemptOutcome,
    Outcome,
    Phase,
    Progress,
    RequestRecord,
    ResetAttempt,
    ResetMode,
)

EMPTYING_SECONDS = 30.0
"""How long a refused reset is tried again before the run starts on a cache that is not empty."""


class Pool(NamedTuple):
    """What is to be cached before the load: prefixes of equal size."""

    prefixes: int
    prefix_tokens: int
    unique_tokens: int
    """Tokens of the tail behind a prefix in a priming prompt."""
    branches: int = 1
    """How many prefixes in turn begin alike: of those only the first finds nothing cached."""


class Priming(msgspec.Struct, frozen=True):
    """How the cache was brought to its starting state; ``preparation`` of the manifest.

    Two rounds send every prefix once with a tail of its own and ask for one token. The first
    (cold) shows whether the cache was empty, the second (hot) whether it now holds every prefix.
    """

    emptied: bool
    """Whether the server said that it cleared its cache."""
    seconds: float
    prefixes: int
    cold_cached_share: float | None
    """Prompt tokens of the first round that were cached, of all; 0 proves the cache was empty.

    Of prefixes that begin alike only the first counts.
    """
    hot_cached_share: float | None
    """Prefix tokens of the second round that were cached, of all; near 1 if all prefixes fit."""
    cold_ttft: float
    """Median TTFT of the first round, seconds."""
    hot_ttft: float
    """Median TTFT of the second round, seconds."""
    warnings: tuple[str, ...] = ()


async def prime(
    pool: Pool,
    send: Callable[[Arrival, int], Awaitable[RequestRecord]],
    reset: Callable[[ResetMode], Awaitable[ResetAttempt]] | None,
    watch: Callable[[Progress], None],
) -> Priming:
    """Empty the cache, prime every prefix, and check both.

    ``send(arrival, visit)`` sends the priming prompt of ``arrival.prefix`` for the given round;
    ``reset`` is None where the server's cache is not to be touched.

    Raises:
        TargetError: a priming request failed, so the load would too.
    """
    began = perf_counter()
    emptied = reset is not None and await _empty(reset)
    rounds: list[list[RequestRecord]] = []
    for visit in (0, 1):
        records: list[RequestRecord] = []
        for prefix in range(pool.prefixes):
            record = await send(Arrival(-1 - prefix, perf_counter() - began, prefix, 1), visit)
            _check(record)
            records.append(record)
            done = visit * pool.prefixes + prefix + 1
            watch(Progress(Phase.PREPARING, done / (2 * pool.prefixes), 1.0, sent=done, done=done))
        rounds.append(records)
    cold, hot = rounds
    priming = Priming(
        emptied=emptied,
        seconds=perf_counter() - began,
        prefixes=pool.prefixes,
        cold_cached_share=_cached_share(
            cold[:: pool.branches], pool.prefix_tokens + pool.unique_tokens
        ),
        hot_cached_share=_cached_share(hot, pool.prefix_tokens),
        cold_ttft=_ttft(cold),
        hot_ttft=_ttft(hot),
    )
    return msgspec.structs.replace(priming, warnings=tuple(_doubts(priming)))


async def _empty(reset: Callable[[ResetMode], Awaitable[ResetAttempt]]) -> bool:
    """Reset until the server says that it cleared: with nothing running, the first time."""
    deadline = perf_counter() + EMPTYING_SECONDS
    while True:
        attempt = await reset(ResetMode.DEFAULT)
        if attempt.outcome is AttemptOutcome.CLEARED:
            return True
        if attempt.outcome is not AttemptOutcome.REFUSED or perf_counter() > deadline:
            return False
        await anyio.sleep(0.5)


def _check(record: RequestRecord) -> None:
    if record.outcome is not Outcome.OK:
        raise TargetError(
            f"a priming request failed before any load ({record.outcome}): {record.error}. The "
            "load would fail the same way; correct the prompt's size or form, the model, or the "
            "server."
        )


def _cached_share(records: list[RequestRecord], tokens: int) -> float | None:
    cached = [record.cached_tokens for record in records]
    if tokens == 0 or any(count is None for count in cached):
        return None
    return sum(min(count or 0, tokens) for count in cached) / (tokens * len(records))


def _ttft(records: list[RequestRecord]) -> float:
    return median(r.first_token - r.sent for r in records if r.first_token and r.sent)


def _doubts(priming: Priming) -> list[str]:
    doubts = []
    if not priming.emptied:
        doubts.append(
            "the cache was not emptied before the run: something else holds blocks (stop other "
            "traffic), the reset route is not there (start the server with "
            "VLLM_SERVER_DEV_MODE=1), or the host is not this machine and nobody allowed it "
            "(--allow-reset-on-remote)."
        )
    if priming.hot_cached_share is None:
        doubts.append(
            "the server does not report cached tokens, so cleared resets cannot be verified. "
            "Start it with --enable-prompt-tokens-details."
        )
        return doubts
    if priming.emptied and priming.cold_cached_share:
        doubts.append(
            f"the server said that it cleared its cache, yet {priming.cold_cached_share:.0%} of "
            "the first round was cached. An external tier keeps it: use --reset-external."
        )
    if priming.hot_cached_share < 0.9:
        doubts.append(
            f"only {priming.hot_cached_share:.0%} of the primed prefix tokens were cached: the "
            "cache does not hold all prefixes. Use fewer or shorter prefixes, or a larger cache."
        )
    return doubts
