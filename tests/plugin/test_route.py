"""Keep mode over HTTP, on vLLM's own router and with its own error handlers."""

from __future__ import annotations

import asyncio
from argparse import Namespace

import httpx
import pytest
from fastapi import FastAPI

PATH = "/reset_prefix_cache"
KEEP = {"keep_running_requests": "true"}


def app_around(client):
    from vllm.entrypoints.serve.dev.cache import api_router
    from vllm.entrypoints.serve.exception_handling.register import init_exception_handler

    app = FastAPI()
    api_router.attach_router(app)
    init_exception_handler(app)
    app.state.engine_client = client
    app.state.args = Namespace(log_error_stack=False)
    app.state.server = Namespace(should_exit=False)
    return app


def ask(client, method="POST", path=PATH, **query):
    async def send():
        transport = httpx.ASGITransport(app_around(client), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://replica") as http:
            return await http.request(method, path, params=query)

    return asyncio.run(send())


def listed(client):
    schema = ask(client, "GET", "/openapi.json").json()
    return [parameter["name"] for parameter in schema["paths"][PATH]["post"]["parameters"]]


@pytest.fixture
def engine(core, fronts):
    engine = fronts.async_llm(core)
    engine.engine_core.resources = Namespace(engine_dead=False)
    engine.output_handler = None
    return engine


def test_keep_clears_and_says_what_it_found(core, engine):
    held, cached = core.replica.held, core.replica.cached
    reply = ask(engine, **KEEP)
    assert reply.status_code == 200
    body = reply.json()
    assert next(iter(body)) == "success"
    assert body.pop("stall_seconds") > 0
    assert body == {
        "success": True,
        "mode": "keep",
        "running": 3,
        "waiting": 0,
        "preempted": 0,
        "discarded_tokens": 0,
        "cached_blocks": cached,
        "held_blocks": held,
        "engines": 1,
    }
    assert core.replica.cached == 0
    assert len(core.scheduler.running) == 3


def test_a_default_reset_under_load_is_refused_with_200(engine):
    reply = ask(engine)
    assert (reply.status_code, reply.json()["success"]) == (200, False)
    assert reply.json()["mode"] == "default"


def test_a_preempting_reset_counts_its_victims(engine):
    body = ask(engine, reset_running_requests="true").json()
    assert (body["success"], body["mode"], body["preempted"]) == (True, "preempt", 3)
    assert body["discarded_tokens"] == 150


def test_a_preempting_reset_that_raises_is_500_and_tells_of_its_victims(core, engine):
    core.replica.pool.get_new_blocks(1)
    reply = ask(engine, reset_running_requests="true")
    body = reply.json()
    assert reply.status_code == 500
    assert (body["success"], body["preempted"]) == (False, 3)
    assert "Failed to reset KV cache" in body["error"]


def test_both_flags_are_400_before_the_engine_is_asked(core):
    reply = ask(None, reset_running_requests="true", **KEEP)
    assert reply.status_code == 400
    assert "exclude each other" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    "field", ["keep_running_requests", "reset_running_requests", "reset_external"]
)
@pytest.mark.parametrize("value", ["perhaps", "2", ""])
def test_a_wrong_type_is_400_and_names_the_field(field, value):
    reply = ask(None, **{field: value})
    assert reply.status_code == 400
    assert field in reply.json()["error"]["param"]


def test_keep_with_an_external_reset_is_409_and_names_the_connector(core, engine):
    core.scheduler.connector = Namespace()
    cached = core.replica.cached
    reply = ask(engine, reset_external="true", **KEEP)
    assert reply.status_code == 409
    assert "connector Namespace" in reply.json()["error"]["message"]
    assert core.replica.cached == cached


def test_keep_with_an_external_reset_and_no_connector_is_fine(engine):
    assert ask(engine, reset_external="true", **KEEP).json()["success"] is True


def test_openapi_lists_the_parameter(engine):
    assert listed(engine) == ["reset_running_requests", "reset_external", "keep_running_requests"]


class Foreign:
    """An engine client that is not vLLM's AsyncLLM."""

    errored = False

    def __init__(self):
        self.calls = []

    async def reset_prefix_cache(self, reset_running_requests, reset_connector):
        self.calls.append((reset_running_requests, reset_connector))
        return True


def test_a_foreign_engine_client_is_asked_as_ever_but_not_for_keep():
    client = Foreign()
    assert ask(client, reset_running_requests="true").json() == {"success": True}
    assert client.calls == [(True, False)]
    reply = ask(client, **KEEP)
    assert reply.status_code == 501
    assert "Foreign" in reply.json()["error"]["message"]
    assert len(client.calls) == 1


def test_an_engine_core_without_the_plugin_is_501(core, fronts):
    engine = fronts.async_llm(Namespace())
    reply = ask(engine, **KEEP)
    assert reply.status_code == 501
    assert "install it on every node" in reply.json()["error"]["message"]


def test_a_shutting_down_engine_core_is_a_500_with_vllms_words(core, engine):
    async def rejected(*args):
        # EngineCoreProc._reject_utility_in_shutdown, _process_utility_output
        raise Exception("Server shutting down")

    engine.engine_core.call_utility_all_async = rejected
    reply = ask(engine, **KEEP)
    assert reply.status_code == 500
    assert reply.json()["error"]["message"] == "Server shutting down"


class Dying(Foreign):
    """An engine whose core dies while it resets: vLLM never answers the call."""

    async def reset_prefix_cache_report(self, *args):
        self.errored = True
        await asyncio.Event().wait()

    @property
    def dead_error(self):
        from vllm.v1.engine.exceptions import EngineDeadError

        return EngineDeadError()

    is_running = False
    should_keep_api_server_alive = False  # asked by 0.33's launcher


def test_an_engine_that_dies_in_the_reset_is_a_500_and_not_a_hang(plugin):
    async def within_five_seconds():
        return await asyncio.wait_for(asyncio.to_thread(ask, Dying(), **KEEP), 5)

    reply = asyncio.run(within_five_seconds())
    assert reply.status_code == 500
    # 0.33 keeps an engine's own words from its clients.
    words = "EngineCore encountered an issue", "The server had an error"
    assert reply.json()["error"]["message"].startswith(words)
