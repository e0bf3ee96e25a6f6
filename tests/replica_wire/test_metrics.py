"""Prometheus text -> samples, on text that a real vLLM 0.32 wrote, and over sockets."""

from __future__ import annotations

import math
import socket
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.replica.metrics import Scraper, cache_config, server_samples
from harness.target import Endpoint

VLLM_0_32 = Path(__file__).with_name("metrics_0_32.txt").read_text()


def test_a_real_scrape() -> None:
    (sample,) = server_samples(VLLM_0_32, 12.5)
    assert (sample.t, sample.engine) == (12.5, "0")
    assert sample.metrics == {
        "num_requests_running": 0.0,
        "num_requests_waiting": 0.0,
        'num_requests_waiting_by_reason{reason="capacity"}': 0.0,
        'num_requests_waiting_by_reason{reason="deferred"}': 0.0,
        "kv_cache_usage_perc": 0.0,
        "prefix_cache_queries_total": 117520.0,
        "prefix_cache_hits_total": 97216.0,
        "external_prefix_cache_queries_total": 0.0,
        "external_prefix_cache_hits_total": 0.0,
        "num_preemptions_total": 0.0,
        "prompt_tokens_total": 117520.0,
        'prompt_tokens_by_source_total{source="local_compute"}': 20304.0,
        'prompt_tokens_by_source_total{source="local_cache_hit"}': 97216.0,
        'prompt_tokens_by_source_total{source="external_kv_transfer"}': 0.0,
        "prompt_tokens_cached_total": 97216.0,
        'prompt_tokens_cached_by_source_total{source="device"}': 97216.0,
        'prompt_tokens_cached_by_source_total{source="host"}': 0.0,
        'prompt_tokens_cached_by_source_total{source="p2p"}': 0.0,
        'prompt_tokens_cached_by_source_total{source="disk"}': 0.0,
        'prompt_tokens_cached_by_source_total{source="external_unspecified"}': 0.0,
        "generation_tokens_total": 7552.0,
        'request_success_total{finished_reason="stop"}': 0.0,
        'request_success_total{finished_reason="length"}': 58.0,
        'request_success_total{finished_reason="abort"}': 0.0,
        'request_success_total{finished_reason="error"}': 0.0,
        'request_success_total{finished_reason="repetition"}': 0.0,
    }
    assert cache_config(VLLM_0_32)["0"]["block_size"] == "32"
    assert cache_config(VLLM_0_32)["0"]["enable_prefix_caching"] == "True"


def test_samples_can_be_journaled() -> None:
    (sample,) = server_samples(VLLM_0_32, 1.0)
    assert msgspec.json.decode(msgspec.json.encode(sample), type=type(sample)) == sample


def test_engines_are_kept_apart_and_models_within_one_summed() -> None:
    text = (
        'vllm:num_preemptions_total{engine="0",model_name="a"} 1\n'
        'vllm:num_preemptions_total{engine="0",model_name="b"} 2\n'
        'vllm:num_preemptions_total{engine="1",model_name="a"} 4\n'
    )
    samples = {sample.engine: sample.metrics for sample in server_samples(text, 0)}
    assert samples == {"0": {"num_preemptions_total": 3}, "1": {"num_preemptions_total": 4}}


def test_unknown_missing_and_unfinished_values_are_absent() -> None:
    text = (
        "# HELP vllm:brand_new_total Something.\n# TYPE vllm:brand_new_total counter\n"
        "vllm:brand_new_total 3\nother_num_preemptions_total 8\n"
        'vllm:kv_cache_usage_perc{engine="0"} NaN\nvllm:num_requests_running{engine="0"} 2\n'
        'vllm:num_requests_running_seconds_bucket{engine="0",le="+Inf"} 9\n'
    )
    (sample,) = server_samples(text, 0)
    assert sample.metrics == {"num_requests_running": 2}
    assert server_samples("", 0) == []
    assert cache_config(text) == {}


def test_a_metric_without_an_engine_is_engine_0s() -> None:
    (sample,) = server_samples("vllm:num_requests_running 2\n", 0)
    assert (sample.engine, sample.metrics) == ("0", {"num_requests_running": 2})


LABEL = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@given(model=LABEL, value=st.floats(0, 1e15), engine=st.integers(0, 99))
def test_labels_may_hold_anything(model: str, value: float, engine: int) -> None:
    escaped = model.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    text = f'vllm:num_requests_running{{engine="{engine}",model_name="{escaped}"}} {value!r}\n'
    (sample,) = server_samples(text, 0)
    assert sample.engine == str(engine)
    assert math.isclose(sample.metrics["num_requests_running"], value)


def test_text_that_is_not_prometheus_is_refused() -> None:
    with pytest.raises(ValueError, match="could not convert"):
        server_samples('vllm:num_requests_running{engine="0"} many\n', 0)


@pytest.mark.anyio
async def test_engines_of_several_addresses_are_named_by_address(patched, second) -> None:
    patched.metrics(engines=2, preemptions=1)
    second.metrics(engines=1, preemptions=5)
    async with Scraper([Endpoint(patched.url), Endpoint(second.url)], 5) as scraper:
        samples = await scraper.scrape(time.perf_counter())
    counts = {sample.engine: sample.metrics["num_preemptions_total"] for sample in samples}
    assert counts == {"0/0": 1, "0/1": 1, "1/0": 5}
    assert all(0 <= sample.t < 5 for sample in samples)
    assert scraper.failures == {}


@pytest.mark.anyio
async def test_a_scrape_that_fails_gives_nothing_and_is_counted(patched, stock) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = f"http://127.0.0.1:{closed.getsockname()[1]}"
    stock.json("GET", "/metrics", {}, 503)
    endpoints = [Endpoint(url) for url in (nobody, stock.url, patched.url)]
    async with Scraper(endpoints, 5) as scraper:
        for _ in range(2):
            samples = await scraper.scrape(0.0)
            assert [sample.engine for sample in samples] == ["2/0"]
    assert sorted(scraper.failures.values()) == [2, 2]
    assert any(stock.url in failure and "503" in failure for failure in scraper.failures)
    assert any(nobody in failure and "ConnectError" in failure for failure in scraper.failures)
