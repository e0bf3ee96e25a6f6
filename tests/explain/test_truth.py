"""The teaching model does what the real vLLM does: same moves, same states.

Runs on whichever vLLM is installed or stands first on PYTHONPATH.
"""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec, module_from_spec
from inspect import signature
from itertools import zip_longest
from typing import Any
from unittest.mock import MagicMock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.explain.engine import Auxiliary, Engine
from harness.explain.pool import BLOCK_SIZE, EventKind, Pool
from harness.explain.request import State, next_token
from harness.explain.stories import STORIES
from harness.records import ResetMode

pytest.importorskip("vllm", reason="needs vLLM: install the cpu or gpu extra")
plugin: Any = pytest.importorskip("vllm_keep_reset", reason="needs the plugin")

pytestmark = pytest.mark.replica

MAX_LENGTH = 512
HOST_BLOCKS = 4
MODES = (ResetMode.DEFAULT, ResetMode.PREEMPT, ResetMode.KEEP)


class Real:
    """A real vLLM scheduler with the methods of the model's ``Engine``."""

    def __init__(self, vllm_config: Any, like: Engine) -> None:
        import torch
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.structured_output import StructuredOutputManager

        spec = FullAttentionSpec(
            block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32
        )
        vllm_config.cache_config.num_gpu_blocks = like.blocks
        self.scheduler: Any = (AsyncScheduler if like.lookahead else Scheduler)(
            vllm_config=vllm_config,
            kv_cache_config=KVCacheConfig(
                num_blocks=like.blocks,
                kv_cache_tensors=[],
                kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
            ),
            structured_output_manager=StructuredOutputManager(vllm_config),
            block_size=BLOCK_SIZE,
            hash_block_size=BLOCK_SIZE,
            log_stats=False,
        )
        self.scheduler.max_num_scheduled_tokens = like.budget
        self.scheduler.max_num_running_reqs = like.max_running
        self.scheduler.max_num_active_reqs = like.max_running
        self.pool = self.scheduler.kv_cache_manager.block_pool
        self.published: list[Any] = []
        self.scheduler.kv_event_publisher.publish = lambda batch: self.published.extend(
            batch.events
        )
        self.steps: list[tuple[Any, set[str]]] = []
        self.offload = offload_of(self.pool)
        self.stores: list[tuple[list[int], list[int]]] = []
        self.requests: dict[str, Any] = {}

    def add(self, name: str, prompt: list[int], output: int) -> None:
        from vllm.sampling_params import SamplingParams
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher
        from vllm.v1.request import Request

        self.requests[name] = Request(
            request_id=name,
            prompt_token_ids=list(prompt),
            sampling_params=SamplingParams(max_tokens=output, ignore_eos=True),
            pooling_params=None,
            block_hasher=get_request_block_hasher(BLOCK_SIZE, sha256),
        )
        self.scheduler.add_request(self.requests[name])

    def step(self) -> None:
        self.schedule()
        self.receive()

    def schedule(self) -> None:
        output = self.scheduler.schedule()
        if output.num_scheduled_tokens:
            samples = {
                name
                for name in output.num_scheduled_tokens
                if not self.requests[name].is_prefill_chunk
            }
            self.steps.append((output, samples))

    def receive(self) -> None:
        from vllm.v1.outputs import ModelRunnerOutput

        if not self.steps:
            return
        output, samples = self.steps.pop(0)
        names = list(output.num_scheduled_tokens)
        self.scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: index for index, name in enumerate(names)},
                sampled_token_ids=[
                    [next_token(list(self.requests[name].all_token_ids))] if name in samples else []
                    for name in names
                ],
            ),
        )

    def abort(self, name: str) -> None:
        from vllm.v1.request import RequestStatus

        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def reset(self, mode: ResetMode) -> bool:
        return self.scheduler.reset_prefix_cache(
            reset_running_requests=mode is ResetMode.PREEMPT,
            keep_running_requests=mode is ResetMode.KEEP,
        )

    def start_store(self, name: str) -> None:
        held = self.scheduler.kv_cache_manager.get_blocks(name).blocks[0]
        cpu_pool = self.offload.cpu_block_pool
        blocks = [block for block in held if block.block_hash][: cpu_pool.get_num_free_blocks()]
        self.pool.touch(blocks)
        copies = cpu_pool.get_new_blocks(len(blocks))
        self.stores.append(([b.block_id for b in blocks], [b.block_id for b in copies]))

    def complete_store(self) -> None:
        self.offload._process_store_completion(*self.stores.pop(0))


def offload_of(pool: Any, manager: Any = None) -> Any:
    """The part of vLLM's host offload that ends a store, on a host pool of its own."""
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.simple_kv_offload.manager import SimpleCPUOffloadScheduler

    offload = object.__new__(manager or SimpleCPUOffloadScheduler)
    offload._gpu_block_pool = pool
    offload.cpu_block_pool = BlockPool(HOST_BLOCKS, True, BLOCK_SIZE)
    offload.enable_kv_cache_events = False
    return offload


@dataclass
class Pair:
    """The model and the real thing, doing the same and compared after every move."""

    model: Engine
    real: Real
    names: dict[bytes, str] = field(default_factory=dict)
    """Real block hash to the model's name for it."""
    compared: int = 0
    """Events compared so far."""

    @property
    def asked(self) -> dict[str, Any]:
        return {request.name: request for request in self.model.requests}

    def add(self, name: str, prompt: list[int], output: int) -> None:
        self.model.add(name, prompt, output)
        self.real.add(name, prompt, output)
        self.compare()

    def step(self) -> None:
        self.schedule()
        self.receive()

    def schedule(self) -> None:
        self.model.schedule()
        self.real.schedule()
        self.compare()

    def receive(self) -> None:
        self.model.receive()
        self.real.receive()
        self.compare()

    def abort(self, name: str) -> None:
        if self.asked[name].state is not State.FINISHED:
            self.model.finish(self.asked[name])
        self.real.abort(name)
        self.compare()

    def reset(self, mode: ResetMode) -> bool | None:
        """Both answers, which agree; ``None`` where both raise."""
        answers = [answer_of(self.model, mode), answer_of(self.real, mode)]
        assert answers[0] == answers[1]
        self.compare()
        return answers[0]

    def start_store(self, name: str) -> None:
        self.model.start_store(name)
        self.real.start_store(name)
        self.compare()

    def complete_store(self) -> None:
        self.model.complete_store()
        self.real.complete_store()
        self.compare()

    def compare(self) -> None:
        for name, request in self.asked.items():
            theirs = self.real.requests[name]
            assert list(theirs.all_token_ids) == request.tokens
            for label, real_hash in zip_longest(request.hashes, theirs.block_hashes):
                assert self.names.setdefault(real_hash, label) == label
        assert len(set(self.names.values())) == len(self.names)
        assert self.requests_of_model() == self.requests_of_real()
        assert pool_of_model(self.model.pool) == pool_of_real(self.real.pool, self.names)
        if self.model.cpu:
            host = self.real.offload.cpu_block_pool
            assert pool_of_model(self.model.cpu) == pool_of_real(host, self.names)
        events = self.real.published + self.real.pool.kv_event_queue
        assert len(events) == len(self.model.pool.events)
        new = slice(self.compared, None)
        for ours, theirs in zip(self.model.pool.events[new], events[new], strict=True):
            assert (ours.kind, ours.hashes, ours.parent) == event_of_real(theirs, self.names)
        self.compared = len(events)

    def requests_of_model(self) -> dict[str, Any]:
        return {
            "running": [request.name for request in self.model.running],
            "waiting": [request.name for request in self.model.waiting],
            "held": {
                request.name: (
                    request.computed,
                    [block.id for block in request.blocks],
                    request.preemptions,
                    request.in_flight,
                )
                for request in self.model.requests
                if request.state is not State.FINISHED
            },
        }

    def requests_of_real(self) -> dict[str, Any]:
        scheduler = self.real.scheduler
        return {
            "running": [request.request_id for request in scheduler.running],
            "waiting": [request.request_id for request in scheduler.waiting],
            "held": {
                name: (
                    request.num_computed_tokens,
                    list(scheduler.kv_cache_manager.get_block_ids(name)[0]),
                    request.num_preemptions,
                    request.num_in_flight_tokens,
                )
                for name, request in scheduler.requests.items()
            },
        }


def answer_of(engine: Engine | Real, mode: ResetMode) -> bool | None:
    try:
        return engine.reset(mode)
    except RuntimeError as error:
        if "Failed to reset KV cache" not in str(error):
            raise
        return None


def pool_of_model(pool: Pool) -> dict[str, Any]:
    return {
        "ref_cnt": [block.ref_cnt for block in pool.blocks[1:]],
        "hash": [block.hash for block in pool.blocks],
        "free": [block.id for block in pool.free],
        "map": pool.map,
    }


def pool_of_real(pool: Any, names: dict[bytes, str]) -> dict[str, Any]:
    return {
        "ref_cnt": [block.ref_cnt for block in pool.blocks[1:]],
        "hash": [block.block_hash and names[block.block_hash[:-4]] for block in pool.blocks],
        "free": [block.block_id for block in pool.free_block_queue.get_all_free_blocks()],
        "map": {
            names[key[:-4]]: list(found) if isinstance(found, dict) else [found.block_id]
            for key, found in pool.cached_block_hash_to_block._cache.items()
        },
    }


def event_of_real(event: Any, names: dict[bytes, str]) -> tuple[EventKind, Any, Any]:
    from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

    outside = {maybe_convert_block_hash(value): label for value, label in names.items()}
    kind = EventKind(type(event).__name__)
    hashes = tuple(outside[value] for value in getattr(event, "block_hashes", ()))
    parent = getattr(event, "parent_block_hash", None)
    return kind, hashes, None if parent is None else outside[parent]


@pytest.fixture(scope="module")
def real_like(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Engine], Real]:
    """Make the real thing with an engine's settings."""
    with warnings.catch_warnings():
        # Importing torch and vLLM warns about their own code.
        warnings.simplefilter("ignore")
        import vllm.v1.core.sched.async_scheduler  # noqa: F401

        plugin.register()
    assert plugin.finding().status is plugin.Status.KNOWN, plugin.finding().differences
    from vllm.config import (
        CacheConfig,
        DeviceConfig,
        KVEventsConfig,
        ModelConfig,
        SchedulerConfig,
        VllmConfig,
    )
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import init_none_hash

    init_none_hash(sha256)
    folder = tmp_path_factory.mktemp("model")
    description = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "vocab_size": 4096,
        "max_position_embeddings": MAX_LENGTH,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(description))
    config = VllmConfig(
        model_config=ModelConfig(
            model=str(folder), skip_tokenizer_init=True, dtype="float32", max_model_len=MAX_LENGTH
        ),
        scheduler_config=SchedulerConfig(
            max_num_seqs=8,
            max_num_batched_tokens=MAX_LENGTH,
            max_model_len=MAX_LENGTH,
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
        ),
        cache_config=CacheConfig(block_size=BLOCK_SIZE, enable_prefix_caching=True),
        device_config=DeviceConfig(device="cpu"),
        kv_events_config=KVEventsConfig(enable_kv_cache_events=True, publisher="null"),
    )
    return lambda engine: Real(config, engine)


def prompt_of(number: int) -> list[int]:
    """A prompt, often with a beginning in common with others, some shorter than a block."""
    number, shared = divmod(number, 7)
    number, tail = divmod(number, 6)
    return [*range(100, 100 + (0, 0, 2, 4, 8, 12, 13)[shared]), *[number % 4] * (tail + 1)]


NAMES = ["step"] * 9 + ["schedule", "receive"] * 2 + ["add"] * 4 + ["abort", "offload", "reset"]
MOVE = st.tuples(st.sampled_from(NAMES), st.integers(0, 9999), st.sampled_from(MODES))
"""A move and what it may need."""

# Lists of this length, since hypothesis draws short ones otherwise, in which little meets.
MOVES = st.lists(MOVE, min_size=50, max_size=90)


def play(pair: Pair, moves: list[tuple[str, int, ResetMode]]) -> None:
    """Make the moves; at most two steps are in flight, as in vLLM, and one without lookahead."""
    depth = 2 if pair.model.lookahead else 1
    for name, number, mode in moves:
        asked, running = pair.asked, pair.model.running
        may_schedule = len(pair.model.steps) < depth
        match name:
            case "add":
                pair.add(f"R{len(asked)}", prompt_of(number), number % 19 + 1)
            case "step" if may_schedule:
                pair.step()
            case "schedule" if may_schedule:
                pair.schedule()
            case "receive":
                pair.receive()
            case "abort" if asked:
                pair.abort(f"R{number % len(asked)}")
            case "offload" if pair.model.stores:
                pair.complete_store()
            case "offload" if running:
                pair.start_store(running[number % len(running)].name)
            case "reset":
                pair.reset(mode)


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    blocks=st.integers(6, 14),
    budget=st.sampled_from([1, 2, 3, 5, 64]),
    max_running=st.integers(2, 4),
    lookahead=st.booleans(),
    moves=MOVES,
)
def test_random_sequences(real_like, blocks, budget, max_running, lookahead, moves):
    model = Engine(blocks, budget, max_running, lookahead, cpu_blocks=HOST_BLOCKS)
    pair = Pair(model, real_like(model))
    play(pair, moves)


LANES = [
    pytest.param(lane, id=f"{story.id}-{lane.id}")
    for story in STORIES
    for lane in story.lanes
    if lane.make().mended and lane.make().auxiliary is None
]


@pytest.mark.parametrize("lane", LANES)
def test_stories(real_like, lane):
    model = lane.make()
    pair: Any = Pair(model, real_like(model))
    for scene in lane.scenes:
        scene.act(pair)


def fresh(module: str) -> Any:
    """A module of vLLM once more, without what the plugin replaced in it."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.loader is not None
    copy = module_from_spec(spec)
    spec.loader.exec_module(copy)
    return copy


@pytest.mark.parametrize("mode", [None, ResetMode.KEEP])
def test_without_the_mend_an_offload_dies_as_vllm_does(real_like, mode):
    model = Engine(cpu_blocks=HOST_BLOCKS, mended=False)
    real = real_like(model)
    stock = fresh("vllm.v1.simple_kv_offload.manager").SimpleCPUOffloadScheduler
    real.offload = offload_of(real.pool, stock)
    died = []
    for engine in (model, real):
        engine.add("B", list(range(10)), 9)
        engine.step()
        engine.start_store("B")
        if mode:
            assert engine.reset(mode)
        try:
            engine.complete_store()
        except AssertionError:
            died.append(engine)
    assert died == ([model, real] if mode else [])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("outputs", [0, 1])
def test_auxiliary_output_is_as_in_vllm(real_like, mode, outputs):
    from vllm.distributed.aux_output_connector.connector import (
        AuxOutputConnectorMetadata,
        AuxOutputSchedulerConnector,
    )
    from vllm.distributed.aux_output_connector.worker import AuxOutputWorkerConnector

    model = Engine(auxiliary=Auxiliary(outputs_in_flight=outputs))
    real = real_like(model)
    for engine in (model, real):
        engine.add("B", list(range(10)), 9)
    model.schedule_waiting([])
    real.schedule()
    wanted = len(signature(AuxOutputSchedulerConnector).parameters)  # 0.33 takes two, 0.32 none
    connector = AuxOutputSchedulerConnector(*(real.scheduler.kv_cache_manager, None)[:wanted])
    real.scheduler.aux_output_connector = connector
    assert model.reset(mode) == real.reset(mode)
    assert model.auxiliary.generation == connector._generation

    worker = object.__new__(AuxOutputWorkerConnector)
    worker._buffer, worker._lock = MagicMock(), threading.Lock()
    worker._store = MagicMock()
    worker._generation, worker._requests = 0, {}
    worker._pending_outputs = [object()] * outputs
    died = []
    for begin in (
        model.auxiliary.begin_step,
        lambda: worker.begin_step(AuxOutputConnectorMetadata(connector._generation, {}, {}, ())),
    ):
        try:
            begin()
        except AssertionError as error:
            died.append(str(error))
    assert len(died) in (0, 2)
    assert len(set(died)) == (1 if mode is ResetMode.PREEMPT and outputs else 0)
    if not died:
        assert worker._generation == model.auxiliary.worker_generation
