"""The offloading connector names its chunks by the request's hashes, not by the blocks'."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

PROMPT = range(1, 51)
"""Three full blocks of 16 tokens and a tail."""


@dataclass
class Jobs:
    """The worker's transfer jobs, which finish when they are told to."""

    under_way: dict[int, str | None] = field(default_factory=dict)
    hold: bool = True

    def run(self, step: Any, sampled: dict[str, list[int]], output: Any) -> None:
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
            OffloadingWorkerMetadata,
        )
        from vllm.v1.outputs import KVConnectorOutput

        metadata = step.kv_connector_metadata
        self.under_way |= dict.fromkeys(metadata.store_jobs)
        self.under_way |= {job: load.req_id for job, load in metadata.load_jobs.items()}
        if self.hold:
            return
        output.kv_connector_output = KVConnectorOutput(
            finished_recving={request for request in self.under_way.values() if request},
            kv_connector_worker_meta=OffloadingWorkerMetadata(dict.fromkeys(self.under_way, 1)),
        )
        self.under_way = {}


@pytest.fixture
def make(replica) -> Callable[..., Any]:
    def build(*specs: Any, **more: Any) -> Any:
        made = replica(
            *specs,
            connector="OffloadingConnector",
            connector_options={"cpu_bytes_to_use": 64 * 1024, "offload_prompt_only": False},
            **more,
        )
        made.worker = Jobs()
        return made

    return build


def _scheduler(made: Any) -> Any:
    return made.scheduler.connector.connector_scheduler


def _load_starts(made: Any, prompt: Any) -> int:
    """Tokens that the connector starts to load for a new request with this prompt."""
    request = made.add(prompt)
    made.step()
    return request.num_computed_tokens if request.status.name == "WAITING_FOR_REMOTE_KVS" else 0


def _warm_host(made: Any) -> None:
    """Leave the prompt's chunks on the host and nothing on the GPU."""
    made.worker.hold = False
    made.add(PROMPT, max_tokens=4)
    made.drain()
    assert made.scheduler.reset_prefix_cache()
    made.worker.hold = True


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_store_that_straddles_the_reset_ends_in_the_external_cache(make, asynchronous):
    made = make(asynchronous=asynchronous)
    made.add(PROMPT)
    made.step(2)
    assert len(made.worker.under_way) == 1
    assert made.keep()
    made.worker.hold = False
    made.step(2)
    assert not _scheduler(made)._jobs
    made.worker.hold = True
    assert _load_starts(made, PROMPT) == 48
    made.worker.hold = False
    made.drain()


def test_a_load_that_straddles_the_reset_is_not_cached_when_it_arrives(make):
    made = make()
    _warm_host(made)
    assert _load_starts(made, PROMPT) == 48
    assert made.keep()
    made.worker.hold = False
    made.step(3)
    assert made.lookup(PROMPT) == 0
    made.drain()


def test_without_the_mend_such_a_load_is_hit_from_its_first_block(make, monkeypatch):
    monkeypatch.setattr("vllm_keep_reset.scheduler.hold_back", lambda *_: None)
    made = make()
    _warm_host(made)
    assert _load_starts(made, PROMPT) == 48
    assert made.keep()
    made.worker.hold = False
    made.step(3)
    assert made.lookup(PROMPT) == 48
    made.drain()


def test_a_keep_reset_before_every_step_with_transfers_all_the_time(make, kinds):
    made = make(kinds.full(), kinds.sliding(32))
    made.worker.hold = False
    requests = [made.add(prompt, max_tokens=70) for prompt in (PROMPT, range(100, 180), PROMPT)]
    while made.scheduler.has_unfinished_requests():
        assert made.keep()
        made.step()
    made.drain()
    assert [request.num_output_tokens for request in requests] == [70, 70, 70]


def test_stock_two_external_resets_between_two_steps_fail(make):
    """vLLM's own, unchanged by the plugin; keep mode never resets the external cache."""
    made = make()
    made.add(PROMPT)
    made.step(2)
    assert made.worker.under_way
    made.scheduler.reset_prefix_cache(reset_connector=True)
    with pytest.raises(AssertionError):
        made.scheduler.reset_prefix_cache(reset_connector=True)
    assert made.keep()
    assert made.keep()
    made.worker.hold = False
    made.drain()


def test_why_keep_refuses_to_reset_the_external_cache(make, kinds, plugin):
    """After it, a running request stores blocks that left its window and are others' by now."""
    made = make(kinds.full(), kinds.sliding(32), blocks=40)
    made.worker.hold = False
    first = made.add(range(1, 81), max_tokens=100)
    made.step(20)
    other = made.add([token % 250 + 1 for token in range(120, 340)])
    made.step(2)
    others = set(made.manager.get_block_ids(other.request_id)[1])
    with pytest.raises(plugin.KeepRefused, match="OffloadingConnector"):
        made.scheduler.reset_prefix_cache(reset_connector=True, keep_running_requests=True)
    assert made.cached

    made.scheduler.connector.reset_cache()
    jobs = made.schedule().kv_connector_metadata.store_jobs.values()
    stored = {
        int(block)
        for job in jobs
        if job.req_id == first.request_id
        for block in getattr(job.src_spec, "block_ids", job.src_spec)
    }
    assert stored & others
    made.finish()
    made.drain()
