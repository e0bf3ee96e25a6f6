"""The plugin never guesses: what it does in a vLLM that is not what it knows."""

from __future__ import annotations

import asyncio
import importlib
import json
import pkgutil
import subprocess
import sys
from argparse import Namespace

import httpx
import pytest
from fastapi import APIRouter, FastAPI

PATH = "/reset_prefix_cache"
POOL = "vllm.v1.core.block_pool:BlockPool.reset_prefix_cache"


def owner(name):
    holder, _, attribute = name.rpartition(".")
    return pkgutil.resolve_name(holder), attribute


@pytest.fixture
def stock(plugin, monkeypatch):
    """This process's vLLM as it was before the plugin came; the plugin is not registered yet."""
    from vllm_keep_reset.surfaces import ADDED, REPLACED, ROUTE

    for name in REPLACED:
        monkeypatch.setattr(*owner(name), plugin.original(name))
    for name in ADDED:
        monkeypatch.delattr(*owner(name))
    api_router = importlib.import_module("vllm.entrypoints.serve.dev.cache.api_router")
    monkeypatch.setattr(api_router, "reset_prefix_cache", plugin.original(ROUTE))
    monkeypatch.setattr(api_router, "router", APIRouter())
    api_router.router.post(PATH)(api_router.reset_prefix_cache)
    monkeypatch.setattr(plugin, "_found", None)
    monkeypatch.setattr(plugin, "_originals", {})
    yield plugin
    for name in ADDED:
        holder, attribute = owner(name)
        if attribute in vars(holder):
            delattr(holder, attribute)


@pytest.fixture
def recorded(monkeypatch, tmp_path):
    """Change what the plugin knows, instead of changing vLLM."""
    from vllm_keep_reset import versions

    known = json.loads(versions.FINGERPRINTS.read_text())

    def change(edit):
        edit(known)
        path = tmp_path / "fingerprints.json"
        path.write_text(json.dumps(known))
        monkeypatch.setattr(versions, "FINGERPRINTS", path)

    return change


def release():
    from vllm.version import __version__

    return ".".join(__version__.split(".")[:2])


def is_stock(plugin):
    from vllm_keep_reset.surfaces import ADDED, REPLACED, resolve

    return all("keep_reset" not in resolve(name).__module__ for name in REPLACED) and not any(
        hasattr(*owner(name)) for name in ADDED
    )


def app_around(client):
    api_router = importlib.import_module("vllm.entrypoints.serve.dev.cache.api_router")
    app = FastAPI()
    api_router.attach_router(app)
    app.state.engine_client = client
    return app


def ask(client, method="POST", path=PATH, **query):
    async def send():
        transport = httpx.ASGITransport(app_around(client))
        async with httpx.AsyncClient(transport=transport, base_url="http://replica") as http:
            return await http.request(method, path, params=query)

    return asyncio.run(send())


class Engine:
    def __init__(self):
        self.calls = []

    async def reset_prefix_cache(self, *args):
        self.calls.append(args)
        return True


def assert_refuses_keep_and_nothing_else(reason):
    engine = Engine()
    reply = ask(engine, keep_running_requests="true")
    assert reply.status_code == 501
    assert reason in reply.json()["error"]["message"]
    assert engine.calls == [], "the reset was not silently a default one"
    assert ask(engine, reset_external="true").json() == {"success": True}
    assert engine.calls == [(False, True)]
    schema = ask(engine, "GET", "/openapi.json").json()
    names = [parameter["name"] for parameter in schema["paths"][PATH]["post"]["parameters"]]
    assert names == ["reset_running_requests", "reset_external"]


def test_a_known_vllm_gets_keep_mode(stock, caplog):
    assert is_stock(stock)
    with caplog.at_level("INFO", "vllm.keep_reset"):
        stock.register()
    assert stock.finding().status is stock.Status.KNOWN
    assert not is_stock(stock)
    assert "keep mode added to vLLM" in caplog.text


def test_loading_twice_changes_nothing_more(stock):
    from vllm_keep_reset.surfaces import REPLACED, resolve

    stock.register()
    once = [resolve(name) for name in REPLACED]
    stock.register()
    assert [resolve(name) for name in REPLACED] == once


def test_an_unknown_release_is_named_and_refused(stock, recorded, caplog):
    recorded(lambda known: known.pop(release()))
    stock.register()
    assert stock.finding().status is stock.Status.UNKNOWN
    assert is_stock(stock)
    [line] = [r.getMessage() for r in caplog.records if r.name == "vllm.keep_reset"]
    assert "its version is none of 0.3" in line
    assert_refuses_keep_and_nothing_else("its version is none of")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"source": "0" * 64}, f"{POOL} has other source text"),
        ({"signature": "(self, hard=False)"}, f"{POOL} takes (self) instead of (self, hard=False)"),
    ],
)
def test_one_function_that_differs_is_named_and_all_is_refused(
    stock, recorded, caplog, change, reason
):
    recorded(lambda known: known[release()][POOL].update(change))
    stock.register()
    assert stock.finding().differences == (reason,)
    assert is_stock(stock)
    assert reason in caplog.text
    assert_refuses_keep_and_nothing_else(reason)


def test_a_function_that_is_gone_is_named(stock, recorded):
    entry = {"signature": "()", "source": ""}
    recorded(lambda known: known[release()].update({"vllm.v1.core.block_pool:Gone": entry}))
    stock.register()
    [line] = stock.finding().differences
    assert line.startswith("vllm.v1.core.block_pool:Gone cannot be read")


def test_an_unknown_vllm_without_the_route_is_left_alone(stock, recorded, monkeypatch, caplog):
    recorded(lambda known: known.pop(release()))
    monkeypatch.setattr(stock, "ROUTE", "vllm.entrypoints.serve.dev.cache.moved:reset")
    stock.register()
    assert is_stock(stock)
    assert "has no route" in caplog.text


def test_a_vllm_with_keep_mode_of_its_own_is_left_alone(stock, monkeypatch, caplog):
    from vllm.v1.core.sched.scheduler import Scheduler

    def reset_prefix_cache(
        self, reset_running_requests=False, reset_connector=False, keep_running_requests=False
    ):
        raise AssertionError("only its signature is read")

    monkeypatch.setattr(Scheduler, "reset_prefix_cache", reset_prefix_cache)
    with caplog.at_level("INFO", "vllm.keep_reset"):
        stock.register()
    assert stock.finding().status is stock.Status.NATIVE
    assert Scheduler.reset_prefix_cache is reset_prefix_cache
    assert is_stock(stock)
    assert "has keep mode itself" in caplog.text


def test_both_supported_releases_are_recorded_in_full(plugin):
    from vllm_keep_reset import versions
    from vllm_keep_reset.surfaces import RELIED_ON, REPLACED, ROUTE

    known = json.loads(versions.FINGERPRINTS.read_text())
    assert list(known) == ["0.32", "0.33"]
    for fingerprints in known.values():
        assert set(fingerprints) == {*REPLACED, *RELIED_ON, ROUTE}


def test_recording_the_installed_vllm_changes_nothing(stock, recorded):
    from vllm_keep_reset import versions

    recorded(lambda known: None)
    before = json.loads(versions.FINGERPRINTS.read_text())
    assert versions.record() == release()
    assert json.loads(versions.FINGERPRINTS.read_text()) == before


def test_a_fingerprint_follows_the_source_and_not_its_place(tmp_path, monkeypatch):
    from vllm_keep_reset.versions import fingerprint

    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "keep_plain.py").write_text("def f(a, b=1):\n    return a\n")
    (tmp_path / "keep_inner.py").write_text(
        "class C:\n    def f(a, b=1):\n        return a   \n\nf = C.f\n"
    )
    (tmp_path / "keep_other.py").write_text("def f(a, b=1):\n    return b\n")
    plain, inner, other = (
        fingerprint(importlib.import_module(f"keep_{name}").f)
        for name in ("plain", "inner", "other")
    )
    assert plain["signature"] == "(a, b=1)"
    assert plain == inner
    assert plain["source"] != other["source"]


def test_the_command_says_what_it_finds(plugin):
    command = [sys.executable, "-m", "vllm_keep_reset", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {
        "status": "known",
        "vllm": found["vllm"],
        "differences": [],
        "plugin": plugin.__version__,
    }
    assert found["vllm"].startswith(release())


def test_vllm_finds_the_plugin_by_its_entry_point(plugin):
    from importlib.metadata import entry_points

    [entry] = entry_points(group="vllm.general_plugins", name="keep_reset")
    assert entry.load() is plugin.register
    assert Namespace(name=entry.dist.name, requires=entry.dist.requires) == Namespace(
        name="vllm-keep-reset", requires=None
    )
