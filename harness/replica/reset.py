"""Reset mode -> one call of the reset route on every pod -> ``ResetAttempt``.

The route is ``POST /reset_prefix_cache`` (``vllm/entrypoints/serve/dev/cache/api_router.py``).
Stock vLLM answers 200 with ``{"success": bool}``; with the keep-mode plugin the reply also tells
``mode``, ``running``, ``waiting``, ``preempted``, ``discarded_tokens``, ``cached_blocks``,
``held_blocks``, ``stall_seconds`` and ``engines``, and ``error`` beside a status of 500.

A reset waits for the running engine step (12 to 286 ms were seen), takes effect, and is answered a
few milliseconds later; so of all that is seen here ``replied`` is nearest to the wipe.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self

import anyio
import httpx
import msgspec

from harness.records import AttemptOutcome, ResetAttempt, ResetMode
from harness.replica.client import NOT_JSON, control_client
from harness.target import Endpoint

ROUTE = "/reset_prefix_cache"
PARAMETERS: Mapping[ResetMode, Mapping[str, str]] = {
    ResetMode.DEFAULT: {},
    ResetMode.PREEMPT: {"reset_running_requests": "true"},
    ResetMode.KEEP: {"keep_running_requests": "true"},
}
BEST_TO_WORST = (
    AttemptOutcome.CLEARED,
    AttemptOutcome.REFUSED,
    AttemptOutcome.REJECTED,
    AttemptOutcome.IGNORED,
    AttemptOutcome.FAILED,
)
REASON_CHARACTERS = 500


class Resetter:
    """Resets the prefix cache of every pod at once, each on its own connection.

    Use as an async context manager. ``timeout`` is the longest wait for a whole reply in seconds:
    a reset waits for the running engine step.
    """

    def __init__(self, endpoints: Sequence[Endpoint], timeout: float) -> None:
        self._endpoints = tuple(endpoints)
        self._timeout = timeout
        self._clients: list[httpx.AsyncClient] = []
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for endpoint in self._endpoints:
            client = control_client(endpoint, self._timeout)
            self._clients.append(await self._open.enter_async_context(client))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._open.aclose()

    async def attempt(self, mode: ResetMode, *, external: bool, zero: float) -> ResetAttempt:
        """Call the route once on every pod and return what came of it, never raising for a pod.

        With several pods the outcome is the worst one, ``replied`` the last reply,
        ``preemptions`` the sum if every pod told it, and ``reply`` holds one object a pod. Stamps
        are seconds since ``zero`` on ``time.perf_counter``.

        Raises:
            KeyError: ``mode`` is one that calls nothing.
        """
        attempts: dict[int, ResetAttempt] = {}

        async def call_pod(pod: int) -> None:
            attempts[pod] = await _call(
                self._clients[pod], self._endpoints[pod], mode, external, zero, self._timeout
            )

        async with anyio.create_task_group() as pods:
            for pod in range(len(self._clients)):
                pods.start_soon(call_pod, pod)
        return combine([(endpoint.url, attempts[i]) for i, endpoint in enumerate(self._endpoints)])


async def _call(
    client: httpx.AsyncClient,
    endpoint: Endpoint,
    mode: ResetMode,
    external: bool,
    zero: float,
    limit: float,
) -> ResetAttempt:
    parameters = dict(PARAMETERS[mode]) | ({"reset_external": "true"} if external else {})
    called = time.perf_counter() - zero
    try:
        with anyio.fail_after(limit):
            response = await client.post(endpoint.url + ROUTE, params=parameters)
    except (httpx.RequestError, TimeoutError) as failure:
        words = str(failure) or f"no whole answer within {limit:g} s"
        reason = f"{type(failure).__name__}: {words}"[:REASON_CHARACTERS]
        return ResetAttempt(called, None, AttemptOutcome.FAILED, error=reason)
    replied = time.perf_counter() - zero
    attempt = judge(mode, called, replied, response.status_code, response.content)
    return msgspec.structs.replace(
        attempt,
        reply=_scrubbed(attempt.reply, endpoint.scrub),
        error=None if attempt.error is None else endpoint.scrub(attempt.error)[:REASON_CHARACTERS],
    )


def _scrubbed(value: Any, scrub: Callable[[str], str]) -> Any:  # noqa: ANN401 - parsed JSON
    """``value`` with ``scrub`` done to every string in it."""
    match value:
        case str():
            return scrub(value)
        case list():
            return [_scrubbed(each, scrub) for each in value]
        case dict():
            return {scrub(key): _scrubbed(each, scrub) for key, each in value.items()}
    return value


def judge(mode: ResetMode, called: float, replied: float, status: int, body: bytes) -> ResetAttempt:
    """The attempt that a reply of HTTP ``status`` with ``body`` makes.

    A server that tells a mode other than the asked one did something else: ``ignored``. One that
    tells no mode is believed; whether it knows ``keep`` was read from its schema before.
    """
    reply = _object(body)
    told = reply or {}
    outcome, error = _outcome(mode, status, body, reply)
    return ResetAttempt(
        called=called,
        replied=replied,
        outcome=outcome,
        http_status=status,
        preemptions=_count(told.get("preempted")),
        reply=reply,
        error=error,
    )


def _outcome(
    mode: ResetMode, status: int, body: bytes, reply: dict[str, Any] | None
) -> tuple[AttemptOutcome, str | None]:
    text = body.decode("utf-8", errors="replace")
    if status == httpx.codes.NOT_FOUND:
        return AttemptOutcome.REJECTED, (
            f"HTTP 404: no reset route; start the server with VLLM_SERVER_DEV_MODE=1 ({text})"
        )
    if status != httpx.codes.OK:
        return AttemptOutcome.REJECTED, f"HTTP {status}: {text}"
    if not body:
        return AttemptOutcome.FAILED, (
            "HTTP 200 with an empty body, as vLLM before 0.26 answers whether or not it cleared "
            "anything: use vLLM 0.26 or newer"
        )
    if reply is None or not isinstance(reply.get("success"), bool):
        return AttemptOutcome.FAILED, f"HTTP 200 without a boolean 'success': {text}"
    if reply.get("mode", mode) != mode:
        return AttemptOutcome.IGNORED, (
            f"asked for {mode}, the server did {reply['mode']!r}: it does not know the mode"
        )
    return (AttemptOutcome.CLEARED if reply["success"] else AttemptOutcome.REFUSED), None


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except NOT_JSON:
        return None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def combine(attempts: Sequence[tuple[str, ResetAttempt]]) -> ResetAttempt:
    """One attempt from one of every pod, each beside its address."""
    if len(attempts) == 1:
        return attempts[0][1]
    pods = [attempt for _, attempt in attempts]
    worst = max(pods, key=lambda attempt: BEST_TO_WORST.index(attempt.outcome))
    replies = [attempt.replied for attempt in pods if attempt.replied is not None]
    counts = [attempt.preemptions for attempt in pods if attempt.preemptions is not None]
    errors = [f"{url}: {attempt.error}" for url, attempt in attempts if attempt.error]
    return ResetAttempt(
        called=min(attempt.called for attempt in pods),
        replied=max(replies) if len(replies) == len(pods) else None,
        outcome=worst.outcome,
        http_status=worst.http_status,
        preemptions=sum(counts) if len(counts) == len(pods) else None,
        reply={"pods": [{"url": url, **_pod(attempt)} for url, attempt in attempts]},
        error="; ".join(errors)[:REASON_CHARACTERS] or None,
    )


def _pod(attempt: ResetAttempt) -> dict[str, Any]:
    return {"outcome": attempt.outcome.value, "replied": attempt.replied, "reply": attempt.reply}
