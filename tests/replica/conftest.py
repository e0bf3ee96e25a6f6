"""One real vLLM with the plugin for all of these tests, and requests to it."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import httpx
import msgspec
import numpy as np
import pytest
from anyio.from_thread import start_blocking_portal

from harness.replica.metrics import Scraper
from harness.replica.process import Replica, ReplicaSpec, managed_replica
from harness.target import Endpoint

PROMPT_TOKENS = 640
"""Twenty blocks of 32."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = [name for name in ("vllm", "vllm_keep_reset") if not importlib.util.find_spec(name)]
    for item in items:
        if item.path.parent.name != "replica":
            continue
        item.add_marker(pytest.mark.replica)
        if missing:
            item.add_marker(pytest.mark.skip(reason=f"{' and '.join(missing)} not installed"))


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="session")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    log = tmp_path_factory.mktemp("replica") / "replica.log"
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(managed_replica(ReplicaSpec(), log, print)) as started,
    ):
        yield started


@dataclass
class Stream:
    """One streamed completion: what has come of it so far."""

    tokens: list[int] = field(default_factory=list)
    begun: anyio.Event = field(default_factory=anyio.Event)
    finish_reason: str | None = None
    usage: dict[str, object] = field(default_factory=dict)

    @property
    def cached_tokens(self) -> int:
        details = self.usage["prompt_tokens_details"]
        return details["cached_tokens"] if details else 0


class Client:
    """Sends token-id prompts to the replica and resets it."""

    def __init__(self, replica: Replica, http: httpx.AsyncClient) -> None:
        self.endpoint = Endpoint(replica.url)
        self.model = replica.model
        self.http = http
        self._prompts = np.random.default_rng(time.time_ns())

    def prompt(self) -> list[int]:
        """One that no test has sent before."""
        return self._prompts.integers(1000, 4000, PROMPT_TOKENS).tolist()

    async def complete(
        self, prompt: list[int], tokens: int, stream: Stream | None = None
    ) -> Stream:
        stream = stream or Stream()
        body = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }
        async with self.http.stream("POST", "/v1/completions", json=body) as response:
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    _take(stream, msgspec.json.decode(line[6:]))
        return stream

    @asynccontextmanager
    async def running(self, count: int, tokens: int) -> AsyncIterator[list[Stream]]:
        """``count`` requests that have all begun to answer; at the end all are awaited."""
        streams = [Stream() for _ in range(count)]
        async with anyio.create_task_group() as tasks:
            for stream in streams:
                tasks.start_soon(self.complete, self.prompt(), tokens, stream)
            with anyio.fail_after(60):
                for stream in streams:
                    await stream.begun.wait()
            yield streams

    async def reset(self, **flags: bool) -> httpx.Response:
        return await self.http.post("/reset_prefix_cache", params=flags)

    async def until_running(self, count: int) -> None:
        with anyio.fail_after(60):
            while await self.metric("num_requests_running") != count:  # noqa: ASYNC110
                await anyio.sleep(0.02)

    async def metric(self, name: str) -> float:
        async with Scraper([self.endpoint], 5) as scraper:
            (sample,) = await scraper.scrape(0.0)
        return sample.metrics[name]


def _take(stream: Stream, event: dict) -> None:
    stream.usage = event.get("usage") or stream.usage
    for choice in event["choices"]:
        stream.tokens += choice.get("token_ids") or []
        if stream.tokens:
            stream.begun.set()
        stream.finish_reason = choice["finish_reason"] or stream.finish_reason


@pytest.fixture
async def client(replica: Replica) -> AsyncIterator[Client]:
    """A client of an idle replica."""
    async with httpx.AsyncClient(base_url=replica.url, timeout=120, trust_env=False) as http:
        client = Client(replica, http)
        await client.until_running(0)
        yield client
