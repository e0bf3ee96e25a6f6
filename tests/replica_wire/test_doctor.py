"""What each kind of server is told to be, over real sockets."""

from __future__ import annotations

import socket
import threading

import pytest

from harness.errors import KeepUnsupported, TargetError
from harness.records import ResetMode
from harness.replica.doctor import Diagnosis, Level, inspect
from harness.target import Endpoint, Target

pytestmark = pytest.mark.anyio

KEEP = frozenset({ResetMode.KEEP})
NOTHING = frozenset[ResetMode]()


def target(server: object, model: str | None = None, **headers: str) -> Target:
    endpoint = Endpoint(server.url, headers)
    return Target(endpoint, (endpoint,), (endpoint,), model)


def problem(diagnosis: Diagnosis) -> str:
    with pytest.raises(TargetError) as raised:
        diagnosis.raise_problem()
    return str(raised.value)


async def test_a_patched_replica_can_do_everything(patched) -> None:
    diagnosis = await inspect(target(patched), KEEP)
    diagnosis.raise_problem()
    assert {finding.level for finding in diagnosis.findings} == {Level.OK}
    assert diagnosis.reset_modes == {ResetMode.DEFAULT, ResetMode.PREEMPT, ResetMode.KEEP}
    assert diagnosis.server() == {
        "version": "0.32.0",
        "model": "m",
        "models": ["m"],
        "max_model_len": 8192,
        "engines": ["0"],
        "reset_modes": ["default", "keep", "preempt"],
        "reset_external": True,
        "cache_config": {"0": {"block_size": "32", "enable_prefix_caching": "True"}},
    }
    assert all(line.startswith("ok ") for line in diagnosis.lines())


@pytest.mark.parametrize("kind", ["patched", "stock", "before_0_26", "other_server"])
async def test_nothing_but_get_is_sent(request, kind) -> None:
    server = request.getfixturevalue(kind)
    await inspect(target(server), frozenset(ResetMode))
    assert server.seen
    assert {line.split()[0] for line in server.seen} == {"GET"}
    assert not any("reset" in line for line in server.seen)


async def test_stock_vllm_does_not_know_keep(stock) -> None:
    diagnosis = await inspect(target(stock), KEEP)
    with pytest.raises(KeepUnsupported, match=r"keep_running_requests.*vllm-keep-reset"):
        diagnosis.raise_problem()
    (await inspect(target(stock), {ResetMode.DEFAULT, ResetMode.PREEMPT})).raise_problem()


async def test_any_server_whose_schema_has_the_parameter_knows_keep(stock) -> None:
    stock.schema("keep_running_requests")
    diagnosis = await inspect(target(stock), KEEP)
    diagnosis.raise_problem()
    assert diagnosis.reset_modes == {ResetMode.DEFAULT, ResetMode.KEEP}


async def test_one_pod_without_keep_is_enough_to_refuse(patched, stock) -> None:
    endpoints = (Endpoint(patched.url), Endpoint(stock.url))
    diagnosis = await inspect(Target(endpoints[0], endpoints, endpoints), KEEP)
    assert stock.url in problem(diagnosis)
    assert diagnosis.reset_modes == {ResetMode.DEFAULT, ResetMode.PREEMPT}
    assert diagnosis.engines == ("0/0", "1/0")


async def test_no_development_mode(patched) -> None:
    patched.schema(dev_mode=False)
    assert "VLLM_SERVER_DEV_MODE=1" in problem(await inspect(target(patched), KEEP))
    control = await inspect(target(patched), NOTHING)
    control.raise_problem()
    assert any("VLLM_SERVER_DEV_MODE=1" in text for text in control.warnings())


async def test_a_hidden_schema_forbids_keep_and_warns_of_the_rest(patched) -> None:
    del patched.routes["GET", "/openapi.json"]
    hidden = await inspect(target(patched), KEEP)
    with pytest.raises(KeepUnsupported, match="--disable-fastapi-docs"):
        hidden.raise_problem()
    warned = await inspect(target(patched), {ResetMode.PREEMPT})
    warned.raise_problem()
    assert any("--disable-fastapi-docs" in text for text in warned.warnings())


@pytest.mark.parametrize(
    "paths",
    [
        [],
        {"/reset_prefix_cache": []},
        {"/reset_prefix_cache": {"post": {"parameters": 7}}},
        {"/reset_prefix_cache": {"post": {"parameters": ["keep_running_requests"]}}},
    ],
)
async def test_a_schema_of_another_shape_is_no_schema(patched, paths: object) -> None:
    patched.json("GET", "/openapi.json", {"paths": paths})
    with pytest.raises(KeepUnsupported, match="--disable-fastapi-docs"):
        (await inspect(target(patched), KEEP)).raise_problem()


async def test_a_parameter_by_reference_is_passed_over(patched) -> None:
    listed = [{"$ref": "#/components/x"}, {"name": "keep_running_requests"}]
    schema = {"paths": {"/reset_prefix_cache": {"post": {"parameters": listed}}}}
    patched.json("GET", "/openapi.json", schema)
    assert ResetMode.KEEP in (await inspect(target(patched), KEEP)).reset_modes


async def test_a_body_not_of_the_coding_it_names(patched) -> None:
    plain = type(patched.as_json(0))(200, b"plain", {"Content-Encoding": "gzip"})
    patched.answer("GET", "/version", plain)
    assert "coding" in problem(await inspect(target(patched), KEEP))


async def test_a_version_that_does_not_tell_what_a_reset_did(before_0_26) -> None:
    assert "0.26" in problem(await inspect(target(before_0_26), {ResetMode.DEFAULT}))
    (await inspect(target(before_0_26), NOTHING)).raise_problem()
    before_0_26.json("GET", "/version", {"version": "0.1.dev14000+gabcdef"})
    (await inspect(target(before_0_26), {ResetMode.DEFAULT})).raise_problem()


async def test_a_server_that_is_not_vllm(other_server) -> None:
    assert "is not vLLM" in problem(await inspect(target(other_server), KEEP))


async def test_a_server_without_a_model_list(other_server) -> None:
    other_server.json("GET", "/v1/models", {"data": [{"name": "m"}]})
    assert "does not list models" in problem(await inspect(target(other_server), NOTHING))
    other_server.answer("GET", "/v1/models", type(other_server.as_json(0))(200, b"<html>"))
    assert "without a JSON object" in problem(await inspect(target(other_server), NOTHING))
    del other_server.routes["GET", "/v1/models"]
    assert "has no /v1/models" in problem(await inspect(target(other_server), NOTHING))


async def test_no_prefix_cache(patched) -> None:
    patched.metrics(caching=False)
    assert "--enable-prefix-caching" in problem(await inspect(target(patched), KEEP))
    control = await inspect(target(patched), NOTHING)
    control.raise_problem()
    assert any("--enable-prefix-caching" in text for text in control.warnings())


async def test_the_model_asked_for_must_be_served(patched) -> None:
    patched.models("large", "small")
    said = problem(await inspect(target(patched, "medium"), KEEP))
    assert "'medium'" in said
    assert "large, small" in said
    assert (await inspect(target(patched, "small"), KEEP)).model == "small"
    assert (await inspect(target(patched), KEEP)).model == "large"
    patched.models()
    assert "it serves none" in problem(await inspect(target(patched), KEEP))


async def test_an_adapter_is_not_what_is_asked_for_unasked(patched) -> None:
    patched.json(
        "GET", "/v1/models", {"data": [{"id": "adapter", "parent": "base"}, {"id": "base"}]}
    )
    assert (await inspect(target(patched), KEEP)).model == "base"
    assert (await inspect(target(patched, "adapter"), KEEP)).model == "adapter"


async def test_a_key(patched) -> None:
    patched.key = "sesame"
    assert "none was given" in problem(await inspect(target(patched), KEEP))
    wrong = await inspect(target(patched, Authorization="Bearer wrong"), KEEP)
    assert "refuses the key" in problem(wrong)
    right = await inspect(target(patched, Authorization="Bearer sesame"), KEEP)
    right.raise_problem()
    assert "the key is accepted" in right.lines()[0]
    assert "sesame" not in "".join(map(repr, [right, right.lines(), right.server()]))
    assert "wrong" not in problem(wrong)


async def test_a_dead_engine(patched) -> None:
    patched.answer("GET", "/health", type(patched.as_json(0))(503))
    assert "the engine is dead" in problem(await inspect(target(patched), KEEP))


async def test_a_redirect(patched, stock) -> None:
    away = type(stock.as_json(0))(308, b"", {"Location": patched.url})
    stock.answer("GET", "/v1/models", away)
    assert patched.url in problem(await inspect(target(stock), KEEP))
    assert patched.seen == []


async def test_nobody_listens(patched) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        patched.url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    diagnosis = await inspect(target(patched), KEEP)
    assert "cannot be reached" in problem(diagnosis)
    assert diagnosis.model is None


async def test_something_that_does_not_speak_http(patched) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            for _ in range(2):  # the load address and the control address
                client, _ = server.accept()
                with client:
                    client.recv(4096)
                    client.sendall(b"220 mail.example ESMTP\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        patched.url = f"http://127.0.0.1:{server.getsockname()[1]}"
        endpoint = Endpoint(patched.url)
        diagnosis = await inspect(Target(endpoint, (endpoint,), ()), KEEP)
        thread.join()
    assert "does not speak HTTP" in problem(diagnosis)


async def test_a_server_that_never_answers(patched, monkeypatch) -> None:
    monkeypatch.setattr("harness.replica.client.TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        patched.url = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert "gave no whole answer" in problem(await inspect(target(patched), KEEP))


async def test_tls(tls, patched, certificate) -> None:
    trusted = Endpoint(tls.url, ca=certificate)
    (await inspect(Target(trusted, (trusted,), (trusted,)), KEEP)).raise_problem()
    assert "does not verify" in problem(await inspect(target(tls), KEEP))
    patched.url = patched.url.replace("http://", "https://")
    assert "does not speak TLS" in problem(await inspect(target(patched), KEEP))
    tls.url = tls.url.replace("https://", "http://")
    assert "https://" in problem(await inspect(target(tls), KEEP))


async def test_a_router_in_front_needs_a_model_list_only(other_server, patched, second) -> None:
    pods = (Endpoint(patched.url), Endpoint(second.url))
    diagnosis = await inspect(Target(Endpoint(other_server.url), pods, pods), KEEP)
    diagnosis.raise_problem()
    assert {line.split()[1] for line in other_server.seen} == {"/v1/models"}


async def test_a_server_without_counters_is_a_warning(patched) -> None:
    patched.answer("GET", "/metrics", type(patched.as_json(0))(200, b"python_info 1.0\n"))
    diagnosis = await inspect(target(patched), KEEP)
    diagnosis.raise_problem()
    assert any("--disable-log-stats" in text for text in diagnosis.warnings())
    del patched.routes["GET", "/metrics"]
    diagnosis = await inspect(target(patched), KEEP)
    diagnosis.raise_problem()
    assert any("no server samples" in text for text in diagnosis.warnings())
