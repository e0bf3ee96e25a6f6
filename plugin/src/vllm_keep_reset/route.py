"""Keep mode on the HTTP route `POST /reset_prefix_cache` of vLLM's development endpoints."""

from __future__ import annotations

import asyncio
import inspect
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from fastapi import Query, Request
from fastapi.responses import JSONResponse
from vllm.entrypoints.serve.dev.cache import api_router

from vllm_keep_reset.report import ResetMode, ResetReport

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fastapi.responses import Response
    from vllm.engine.protocol import EngineClient

PATH = "/reset_prefix_cache"
LIVENESS_CHECK_SECONDS = 0.5
KEEP_FLAG = "keep_running_requests"


async def reset_prefix_cache(
    raw_request: Request,
    reset_running_requests: bool = Query(default=False),
    reset_external: bool = Query(default=False),
    keep_running_requests: bool = Query(
        default=False, description="Clear the cache under the running requests."
    ),
) -> JSONResponse:
    """Reset the local prefix cache.

    - without a flag: refused (`"success": false`) while any block is held, e.g. by running
      requests or by offload transfers in flight; callers may try again;
    - `reset_running_requests=true`: running requests are preempted first, and lose their
      computed tokens. 500 if something else holds a block: what was preempted stays so;
    - `keep_running_requests=true`: running requests keep their blocks and computed tokens,
      and the cache is cleared under them. 409 where that is not safe.

    With `reset_external=true` the KV connector's cache is reset too.

    The reply says what was found and done: `success`, `mode`, then as they were just before
    the reset `running`, `waiting`, `cached_blocks`, `held_blocks`, and `preempted`,
    `discarded_tokens`, `stall_seconds`, `engines`.

    Example: `POST /reset_prefix_cache?keep_running_requests=true`
    """
    try:
        mode = ResetMode.of(reset_running_requests, keep_running_requests)
    except ValueError as both:
        return _error(HTTPStatus.BAD_REQUEST, str(both))
    api_router.logger.info("Resetting prefix cache...")
    client = api_router.engine_client(raw_request)
    try:
        report = await _unless_dead(client, _reset(client, mode, reset_external))
    except NotImplementedError as missing:
        return _error(HTTPStatus.NOT_IMPLEMENTED, str(missing))
    if report.refused is not None:
        return _error(HTTPStatus.CONFLICT, report.refused)
    status = HTTPStatus.OK if report.error is None else HTTPStatus.INTERNAL_SERVER_ERROR
    return JSONResponse(report.reply(), status)


def serve_keep_mode() -> None:
    """Make the route above vLLM's own, before vLLM attaches its routes to the app."""
    _mount(reset_prefix_cache)


def serve_refusal(reason: str) -> None:
    """Refuse keep mode on vLLM's own route with 501 and the reason, and change nothing else.

    The parameter stays out of `/openapi.json`, where clients look for it.
    """
    original = api_router.reset_prefix_cache
    signature = inspect.signature(original, eval_str=True)
    flag = inspect.Parameter(
        KEEP_FLAG,
        inspect.Parameter.KEYWORD_ONLY,
        default=Query(default=False, include_in_schema=False),
        annotation=bool,
    )

    async def refusing(**arguments: bool) -> Response:
        if arguments.pop(KEEP_FLAG):
            return _error(HTTPStatus.NOT_IMPLEMENTED, reason)
        reply: Response = await original(**arguments)
        return reply

    refusing.__doc__ = original.__doc__
    refusing.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), flag]
    )
    _mount(refusing)


def _mount(endpoint: Callable[..., Awaitable[Any]]) -> None:
    routes = api_router.router.routes
    [current] = [route for route in routes if getattr(route, "path", None) == PATH]
    routes.remove(current)
    api_router.router.add_api_route(
        PATH, endpoint, methods=["POST"], name="reset_prefix_cache", response_model=None
    )
    api_router.reset_prefix_cache = endpoint


def _error(status: HTTPStatus, message: str) -> JSONResponse:
    """Answer in the form of vLLM's `ErrorResponse`, without the stack that raising would log."""
    error = {"message": message, "type": status.phrase, "param": KEEP_FLAG, "code": status.value}
    return JSONResponse({"error": error}, status)


async def _reset(client: EngineClient, mode: ResetMode, reset_external: bool) -> ResetReport:
    preempt, keep = mode is ResetMode.PREEMPT, mode is ResetMode.KEEP
    if hasattr(client, "reset_prefix_cache_report"):
        report: ResetReport = await client.reset_prefix_cache_report(preempt, reset_external, keep)
        return report
    if keep:
        raise NotImplementedError(
            f"keep mode is not defined for the engine client {type(client).__qualname__}"
        )
    success = await client.reset_prefix_cache(preempt, reset_external)
    return ResetReport(bool(success), mode, None, 0, 0, 0.0)


async def _unless_dead(client: EngineClient, call: Awaitable[ResetReport]) -> ResetReport:
    """Await an engine's answer, but not for ever if the engine dies first.

    vLLM leaves the futures of utility calls pending when its engine core dies
    (`AsyncMPClient`, `process_outputs_socket`).
    """
    task = asyncio.ensure_future(call)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=LIVENESS_CHECK_SECONDS)
            if not task.done() and client.errored:
                raise client.dead_error
        return task.result()
    finally:
        task.cancel()
