"""Auxiliary outputs (routed experts): kept per block hash, in generations that a reset ends."""

from __future__ import annotations

from threading import Lock
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROMPT = range(1, 51)
"""Three full blocks of 16 tokens and a tail."""


def _starts(step: Any) -> dict[str, int]:
    """Position of the first token that a step computes for each request."""
    cached = step.scheduled_cached_reqs
    return {new.req_id: new.num_computed_tokens for new in step.scheduled_new_reqs} | dict(
        zip(cached.req_ids, cached.num_computed_tokens, strict=True)
    )


def _widen(connector: Any) -> None:
    """Do to a worker what the plugin does to it when vLLM makes it."""
    from vllm_keep_reset.auxiliary import worker_init

    vllm_config = SimpleNamespace(aux_output_config=SimpleNamespace(max_bytes=None))
    worker_init(lambda *_, **__: None)(connector, vllm_config=vllm_config)


class Worker:
    """vLLM's auxiliary-output worker without a model: row n of a request holds its token n."""

    def __init__(self, replica: Any, slots: int, widened: bool) -> None:
        from vllm.distributed.aux_output_connector.routed_experts import RoutedExpertsBuffer
        from vllm.distributed.aux_output_connector.store import (
            BackgroundBlockObjectStore,
            BlockObjectStore,
        )
        from vllm.distributed.aux_output_connector.worker import AuxOutputWorkerConnector

        self.replica = replica
        self.connector = connector = AuxOutputWorkerConnector.__new__(AuxOutputWorkerConnector)
        nbytes = 16 * np.dtype(np.int16).itemsize
        connector._store = BackgroundBlockObjectStore(
            BlockObjectStore(max_bytes=slots * nbytes, object_nbytes=nbytes),
            max_pending_batches=100,
        )
        if widened:
            _widen(connector)
        connector._buffer = RoutedExpertsBuffer(np.dtype(np.int16), (1,), 16, 16, 256, 2)
        connector._requests = {}
        connector._generation = 0
        connector._step_metadata = None
        connector._pending_outputs = []
        connector._lock = Lock()
        connector._max_concurrent_batches = 2
        self._begun: dict[int, Any] = {}
        self.rows: dict[str, list[int]] = {}

    def begin(self, step: Any) -> None:
        """Hand a step to the worker, which runs it some time before its output is consumed."""
        from vllm.distributed.aux_output_connector.worker import PendingAuxOutput

        self.connector.begin_step(step.aux_output_connector_metadata)
        starts = _starts(step)
        counts = step.num_scheduled_tokens
        pending = PendingAuxOutput(
            connector=self.connector,
            request_ids=list(counts),
            token_starts=np.array([starts[request_id] for request_id in counts]),
            query_start_loc=np.cumsum([0, *counts.values()]),
            routed_experts_gpu=None,
        )
        self.connector._pending_outputs.append(pending)
        for request_id in counts:
            self.connector._requests[request_id].pending_outputs += 1
        self._begun[id(step)] = pending

    def run(self, step: Any, sampled: dict[str, list[int]], output: Any) -> None:
        if id(step) not in self._begun:
            self.begin(step)
        pending = self._begun.pop(id(step))
        counts = step.num_scheduled_tokens
        rows: list[int] = []
        for request_id, start in zip(counts, pending.token_starts, strict=True):
            tokens = [*self.replica.scheduler.requests[request_id].all_token_ids]
            rows += tokens[start : start + counts[request_id]]
        pending.routed_experts = np.array(rows, dtype=np.int16).reshape(-1, 1)
        pending.num_sampled = np.array([len(sampled[request_id]) for request_id in counts])
        pending.num_rejected = np.zeros(len(counts), dtype=int)
        output.aux_output_connector_output = outputs = pending.process_output()
        for request_id, part in outputs.items():
            known = self.rows.setdefault(request_id, [])
            known[part.token_start :] = part.rows[:, 0].tolist()


@pytest.fixture
def make(replica) -> Iterator[Callable[..., Any]]:
    workers: list[Worker] = []

    def build(slots: int = 64, widened: bool = True, **more: Any) -> Any:
        from vllm.distributed.aux_output_connector.connector import AuxOutputSchedulerConnector

        made = replica(**more)
        try:
            connector = AuxOutputSchedulerConnector(made.manager)
        except TypeError:
            connector = AuxOutputSchedulerConnector()
        made.scheduler.aux_output_connector = connector
        made.worker = Worker(made, slots, widened)
        workers.append(made.worker)
        return made

    yield build
    for worker in workers:
        worker.connector.close()


def _check_rows(made: Any, *requests: Any) -> None:
    for request in requests:
        rows = made.worker.rows[request.request_id]
        assert rows == list(request.all_token_ids)[: len(rows)]
        assert len(rows) == request.num_tokens - 1


def test_rows_come_from_the_store_where_the_prefix_was_hit(make):
    """What the following tests start from."""
    made = make()
    first = made.add(PROMPT, max_tokens=20)
    made.step(2)
    second = made.add(PROMPT, max_tokens=20)
    made.step()
    assert second.prefill_stats is None
    made.drain()
    _check_rows(made, first, second)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_keep_reset_leaves_the_generation_alone(make, asynchronous):
    made = make(asynchronous=asynchronous)
    first = made.add(PROMPT, max_tokens=40)
    step = made.schedule()
    made.worker.begin(step)
    assert made.keep()
    assert made.scheduler.aux_output_connector._generation == 0
    made.worker.begin(made.schedule()) if asynchronous else None
    while made.in_flight:
        made.finish()
    second = made.add(PROMPT, max_tokens=40)
    while made.scheduler.has_unfinished_requests():
        assert made.keep()
        made.step()
    made.drain()
    _check_rows(made, first, second)


def test_stock_preempt_ends_the_generation_with_output_in_flight(make):
    """vLLM's own preempting reset, unchanged by the plugin: its worker's assertion fails."""
    made = make(asynchronous=True)
    made.add(PROMPT)
    made.worker.begin(made.schedule())
    assert made.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert made.scheduler.aux_output_connector._generation == 1
    with pytest.raises(AssertionError, match="generation changed with output in flight"):
        made.worker.begin(made.schedule())


def test_so_would_a_keep_reset_that_reset_the_auxiliary_connector(make):
    made = make(asynchronous=True)
    made.add(PROMPT)
    made.worker.begin(made.schedule())
    assert made.keep()
    made.scheduler.aux_output_connector.reset()
    with pytest.raises(AssertionError, match="generation changed with output in flight"):
        made.worker.begin(made.schedule())


def _hit_a_cached_block_after_a_straddler_ended(made: Any) -> None:
    straddler = made.add([1] * 156, max_tokens=4)
    made.step()
    assert made.keep()
    cached = made.add([2] * 129, max_tokens=1)
    made.step()
    assert cached.is_finished()
    made.step(3)
    assert straddler.is_finished()
    other = made.add([3] * 159, max_tokens=1)
    made.step(2)
    assert made.lookup([2] * 129) == 128
    again = made.add([2] * 129, max_tokens=1)
    made.step(2)
    assert again.is_finished()
    _check_rows(made, straddler, cached, other, again)
    made.drain()


def test_a_cached_block_has_its_rows_although_a_straddler_ended_later(make):
    """With as many slots as blocks, which is vLLM's default, before the plugin widens it."""
    _hit_a_cached_block_after_a_straddler_ended(make(blocks=21, slots=21))


def test_without_the_mend_its_rows_are_gone(make):
    from vllm.distributed.aux_output_connector.store import BlockObjectStoreError
    from vllm_keep_reset.auxiliary import KEEPS_ROWS

    made = make(blocks=21, slots=21, widened=False)
    if KEEPS_ROWS:
        _hit_a_cached_block_after_a_straddler_ended(made)
        return
    with pytest.raises(BlockObjectStoreError, match="may have been evicted"):
        _hit_a_cached_block_after_a_straddler_ended(made)


def test_keep_refuses_where_the_store_has_another_size(make, plugin, monkeypatch):
    from vllm_keep_reset.auxiliary import KEEPS_ROWS

    made = make()
    made.add(PROMPT)
    made.step()
    monkeypatch.setattr(made.scheduler.vllm_config.aux_output_config, "max_bytes", 4096)
    if KEEPS_ROWS:
        assert made.keep()
        return
    with pytest.raises(plugin.KeepRefused, match=r"aux_output_config\.max_bytes"):
        made.keep()
    assert made.cached == 3
