"""Prometheus text of vLLM's ``/metrics`` -> ``ServerSample`` per engine.

The names are those of ``vllm/v1/metrics/loggers.py`` in 0.32 and 0.33. One that a server does not
have is absent from its samples; one that is not named here is not kept.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from math import isfinite
from types import TracebackType
from typing import Self

import anyio
import httpx
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from harness.records import ServerSample
from harness.replica.client import control_client
from harness.target import Endpoint

PREFIX = "vllm:"
SAMPLED = (
    "num_requests_running",
    "num_requests_waiting",
    "num_requests_waiting_by_reason",
    "kv_cache_usage_perc",
    "num_preemptions_total",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "external_prefix_cache_queries_total",
    "external_prefix_cache_hits_total",
    "prompt_tokens_total",
    "prompt_tokens_by_source_total",
    "prompt_tokens_cached_total",
    "prompt_tokens_cached_by_source_total",
    "generation_tokens_total",
    "request_success_total",
)
"""Tokens for the caches and prompts; requests for the rest; ``kv_cache_usage_perc`` is 0 to 1."""
CONFIG = "cache_config_info"
NOT_A_PART = frozenset({"engine", "model_name"})
"""Labels that do not divide a metric within an engine: values are summed over model names."""


def server_samples(text: str, t: float) -> list[ServerSample]:
    """One sample of every engine in ``text``, the body of ``/metrics`` at ``t``.

    A metric that is divided further keeps its labels in its name, as Prometheus writes it:
    ``request_success_total{finished_reason="stop"}``. Values that are not finite are absent.

    Raises:
        ValueError: a line of these metrics is not Prometheus text.
    """
    engines: dict[str, dict[str, float]] = defaultdict(dict)
    for sample in _read(text, SAMPLED):
        if isfinite(sample.value):
            metrics, name = engines[sample.labels.get("engine", "0")], _name(sample)
            metrics[name] = metrics.get(name, 0.0) + sample.value
    return [ServerSample(t, engine, metrics) for engine, metrics in sorted(engines.items())]


def cache_config(text: str) -> dict[str, dict[str, str]]:
    """The cache configuration of every engine in ``text``, as vLLM words it.

    Raises:
        ValueError: the line is not Prometheus text.
    """
    return {
        sample.labels.get("engine", "0"): {
            label: value for label, value in sample.labels.items() if label not in NOT_A_PART
        }
        for sample in _read(text, [CONFIG])
    }


def _read(text: str, names: Sequence[str]) -> list[Sample]:
    """The samples of ``names`` in ``text``.

    Other lines are dropped before parsing: a scrape of vLLM has hundreds of histogram buckets, and
    parsing them would hold up the client's event loop for milliseconds.
    """
    lines = "\n".join(re.findall(_line_of(names), text, re.MULTILINE))
    families = text_string_to_metric_families(lines)
    return [sample for family in families for sample in family.samples]


def _line_of(names: Sequence[str]) -> str:
    return rf"^{PREFIX}(?:{'|'.join(names)})[{{ ].*$"


_SAMPLED_LINE = re.compile(_line_of(SAMPLED).encode(), re.MULTILINE)


def _name(sample: Sample) -> str:
    name = sample.name.removeprefix(PREFIX)
    parts = {label: value for label, value in sample.labels.items() if label not in NOT_A_PART}
    inside = ",".join(f'{label}="{value}"' for label, value in sorted(parts.items()))
    return f"{name}{{{inside}}}" if inside else name


class Scraper:
    """Samples every metrics address, each on its own connection.

    Use as an async context manager. ``failures`` counts the scrapes that gave nothing, by address
    and reason.
    """

    def __init__(self, endpoints: Sequence[Endpoint], timeout: float) -> None:
        self._endpoints = tuple(endpoints)
        self._timeout = timeout
        self._clients: list[httpx.AsyncClient] = []
        self._open = AsyncExitStack()
        self._failures: dict[str, int] = defaultdict(int)

    @property
    def failures(self) -> Mapping[str, int]:
        """How often a scrape gave nothing, by address and reason."""
        return dict(self._failures)

    async def __aenter__(self) -> Self:
        for endpoint in self._endpoints:
            client = control_client(endpoint, self._timeout, kept=1)
            self._clients.append(await self._open.enter_async_context(client))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._open.aclose()

    async def scrape(self, zero: float) -> list[ServerSample]:
        """Samples of every engine now, stamped in seconds since ``zero`` when their reply came.

        An address that fails adds nothing and is counted in ``failures``. With several addresses
        the engines of the n-th one, from 0, are named ``n/engine``.
        """
        found: dict[int, list[ServerSample]] = {}

        async def scrape_one(index: int) -> None:
            samples = await self._scrape(index, zero)
            if len(self._endpoints) > 1:
                samples = [ServerSample(s.t, f"{index}/{s.engine}", s.metrics) for s in samples]
            found[index] = samples

        async with anyio.create_task_group() as scrapes:
            for index in range(len(self._endpoints)):
                scrapes.start_soon(scrape_one, index)
        return [sample for index in sorted(found) for sample in found[index]]

    async def _scrape(self, index: int, zero: float) -> list[ServerSample]:
        url = self._endpoints[index].url
        try:
            with anyio.fail_after(self._timeout):
                async with self._clients[index].stream("GET", f"{url}/metrics") as response:
                    response.raise_for_status()
                    text = await _sampled_lines(response)
            if samples := server_samples(text, time.perf_counter() - zero):
                return samples
            words = "HTTP 200 with none of vLLM's metrics"
        except (httpx.HTTPError, TimeoutError, ValueError) as failure:
            why = str(failure) or f"no whole answer within {self._timeout:g} s"
            words = f"{type(failure).__name__}: {why.splitlines()[0]}"
        self._failures[self._endpoints[index].scrub(f"{url}/metrics: {words}")] += 1
        return []


async def _sampled_lines(response: httpx.Response) -> str:
    """The lines of ``response`` that are sampled, picked piece by piece as it arrives.

    A page of 10 MB (many engines, many models) looked through in one go would hold up the event
    loop, and so the stamps of the requests in flight, for a quarter of a second.
    """
    picked: list[bytes] = []
    rest = b""
    async for piece in response.aiter_bytes():
        whole, _, rest = (rest + piece).rpartition(b"\n")
        picked += _SAMPLED_LINE.findall(whole)
    picked += _SAMPLED_LINE.findall(rest)
    return b"\n".join(picked).decode()
