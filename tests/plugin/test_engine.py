"""Keep mode in the engine core, its clients and the Python front ends."""

from __future__ import annotations

import asyncio
import inspect
from types import SimpleNamespace

import pytest

PROMPT = list(range(1, 49))


def calling(surface):
    """The reset function of a surface, as a plain function."""
    if inspect.iscoroutinefunction(getattr(surface, "reset_prefix_cache_async", None)):
        surface.reset_prefix_cache = surface.reset_prefix_cache_async

    def call(*args, **kwargs):
        reply = surface.reset_prefix_cache(*args, **kwargs)
        return asyncio.run(reply) if inspect.isawaitable(reply) else reply

    return call


@pytest.fixture(params=["core", "inproc_client", "sync_client", "async_client", "llm", "async_llm"])
def reset(request, core, fronts):
    return calling(core if request.param == "core" else getattr(fronts, request.param)(core))


def test_keep_returns_true_and_keeps_the_running_requests(core, reset):
    assert reset(keep_running_requests=True) is True
    assert core.replica.cached == 0
    assert len(core.scheduler.running) == 3
    assert all(r.num_computed_tokens == 50 for r in core.scheduler.running)


def test_old_positional_calls_keep_working(core, reset):
    assert reset() is False
    assert reset(False, False) is False
    assert core.replica.cached > 0
    assert reset(True, False) is True
    assert len(core.scheduler.running) == 0


def test_both_flags_are_a_value_error(core, reset):
    cached = core.replica.cached
    with pytest.raises(ValueError, match="exclude each other"):
        reset(reset_running_requests=True, keep_running_requests=True)
    assert core.replica.cached == cached


def test_a_refusal_keeps_its_type_and_its_words(plugin, core, reset):
    core.scheduler.connector = object()
    cached = core.replica.cached
    with pytest.raises(plugin.KeepRefused, match="connector object"):
        reset(reset_connector=True, keep_running_requests=True)
    assert core.replica.cached == cached


def test_async_surfaces_stay_coroutine_functions(plugin):
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.core_client import AsyncMPClient

    assert inspect.iscoroutinefunction(AsyncLLM.reset_prefix_cache)
    assert inspect.iscoroutinefunction(AsyncMPClient.reset_prefix_cache_async)


@pytest.mark.parametrize(
    "name",
    [
        "vllm.v1.core.sched.interface:SchedulerInterface.reset_prefix_cache",
        "vllm.v1.engine.core_client:EngineCoreClient.reset_prefix_cache",
        "vllm.v1.engine.core_client:EngineCoreClient.reset_prefix_cache_async",
        "vllm.engine.protocol:EngineClient.reset_prefix_cache",
    ],
)
def test_what_is_abstract_declares_the_parameter_and_stays_abstract(plugin, name):
    from vllm_keep_reset.surfaces import resolve

    declared, own = resolve(name), plugin.original(name)
    assert list(inspect.signature(declared).parameters)[-1] == "keep_running_requests"
    assert getattr(declared, "__isabstractmethod__", False) == getattr(
        own, "__isabstractmethod__", False
    )
    assert declared.__doc__ == own.__doc__


def test_data_parallel_clients_inherit_keep_mode(plugin):
    from vllm.v1.engine.core_client import AsyncMPClient, DPAsyncMPClient, DPLBAsyncMPClient

    for client in (DPAsyncMPClient, DPLBAsyncMPClient):
        assert client.reset_prefix_cache_async is AsyncMPClient.reset_prefix_cache_async


def two_cores(replica, core):
    from vllm.v1.engine.core import EngineCore

    other = EngineCore.__new__(EngineCore)
    other.replica = replica(blocks=64)
    other.scheduler = other.replica.scheduler
    other.replica.add(PROMPT)
    other.replica.step()
    return core, other


def test_every_data_parallel_engine_resets_and_the_reports_add_up(replica, core, fronts):
    cores = two_cores(replica, core)
    cached = sum(each.replica.cached for each in cores)
    held = sum(each.replica.held for each in cores)
    report = asyncio.run(
        fronts.async_llm(*cores).reset_prefix_cache_report(keep_running_requests=True)
    )
    reply = report.reply()
    assert reply.pop("stall_seconds") > 0
    assert reply == {
        "success": True,
        "mode": "keep",
        "running": 4,
        "waiting": 0,
        "preempted": 0,
        "discarded_tokens": 0,
        "cached_blocks": cached,
        "held_blocks": held,
        "engines": 2,
    }
    assert [each.replica.cached for each in cores] == [0, 0]


def test_one_data_parallel_engine_that_refuses_makes_the_reset_fail(replica, core, fronts):
    cores = two_cores(replica, core)
    cores[1].replica.drain()
    assert asyncio.run(fronts.async_client(*cores).reset_prefix_cache_async()) is False
    report = asyncio.run(fronts.async_llm(*cores).reset_prefix_cache_report())
    assert (report.success, report.engines) == (False, 2)


def test_an_engine_core_without_the_plugin_is_named(core, fronts):
    stock = SimpleNamespace()
    with pytest.raises(NotImplementedError, match="runs without vllm-keep-reset"):
        asyncio.run(
            fronts.async_client(core, stock).reset_prefix_cache_async(keep_running_requests=True)
        )


def test_other_failures_of_an_engine_core_come_through(core, fronts):
    core.scheduler.connector = SimpleNamespace()
    with pytest.raises(Exception, match="has no attribute 'reset_cache'"):
        asyncio.run(fronts.async_llm(core).reset_prefix_cache_report(reset_connector=True))


def test_the_report_counts_what_a_preempting_reset_threw_away(core):
    tokens = sum(request.num_computed_tokens for request in core.scheduler.running)
    report = core.reset_prefix_cache_report(reset_running_requests=True)
    assert (report["success"], report["mode"]) == (True, "preempt")
    assert (report["preempted"], report["discarded_tokens"]) == (3, tokens)
    assert report["before"]["running"] == 3
    assert report["before"]["waiting"] == 0


def test_a_preempting_reset_that_raises_still_reports_its_preemptions(core):
    [pinned] = core.replica.pool.get_new_blocks(1)
    report = core.reset_prefix_cache_report(reset_running_requests=True)
    assert report["success"] is False
    assert "Failed to reset KV cache" in report["error"]
    assert report["preempted"] == 3
    assert report["discarded_tokens"] > 0
    core.replica.pool.free_blocks([pinned])
    core.replica.drain()


def test_a_refused_default_reset_reports_what_is_held(core):
    held, cached = core.replica.held, core.replica.cached
    report = core.reset_prefix_cache_report()
    assert (report["success"], report["refused"], report["error"]) == (False, None, None)
    assert (report["before"]["held_blocks"], report["before"]["cached_blocks"]) == (held, cached)


class Foreign:
    """A scheduler class of somebody else's."""

    def __init__(self):
        self.calls = []

    def reset_prefix_cache(self, reset_running_requests=False, reset_connector=False):
        self.calls.append((reset_running_requests, reset_connector))
        return True


def test_a_foreign_scheduler_is_reset_by_its_own_rules_and_refuses_keep(plugin, core):
    core.scheduler = foreign = Foreign()
    assert core.reset_prefix_cache_report(True, True)["before"] is None
    assert foreign.calls == [(True, True)]
    with pytest.raises(plugin.KeepRefused, match="Foreign"):
        core.reset_prefix_cache(keep_running_requests=True)
    assert core.reset_prefix_cache_report(keep_running_requests=True)["refused"]
    assert len(foreign.calls) == 1
