"""A scheduler of vLLM's own, stepped by hand, for whichever vLLM this process imports."""

from __future__ import annotations

import json
import warnings
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from vllm.config import ModelConfig, VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import KVCacheSpec
    from vllm.v1.request import Request

BLOCK = 16
TINY_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}


@dataclass
class Replica:
    """One scheduler, its requests, and a model that samples a token from all tokens before it.

    Attributes:
        in_flight: scheduled steps whose output the scheduler has not seen yet, oldest first.
        worker: adds to a step's output what a connector's worker would report. Its method `run`
            gets the step, the tokens sampled for each request, and the output.
    """

    scheduler: Scheduler
    hash_block: int
    in_flight: list[SchedulerOutput] = field(default_factory=list)
    worker: Any = None
    _named: int = 0
    _prefilling: list[set[str]] = field(default_factory=list)
    """Requests of each step in flight that had more known tokens to compute after it."""

    @property
    def manager(self) -> Any:
        return self.scheduler.kv_cache_manager

    @property
    def pool(self) -> Any:
        return self.manager.block_pool

    @property
    def held(self) -> int:
        return int(self.pool.num_gpu_blocks - self.pool.get_num_free_blocks() - 1)

    @property
    def cached(self) -> int:
        return len(self.pool.cached_block_hash_to_block)

    def request(self, prompt: Sequence[int], max_tokens: int = 64, **more: Any) -> Request:
        from vllm.sampling_params import SamplingParams
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.request import Request

        init_none_hash(sha256)
        self._named += 1
        return Request(
            f"request-{self._named}",
            list(prompt),
            SamplingParams(max_tokens=max_tokens, ignore_eos=True),
            None,
            block_hasher=get_request_block_hasher(self.hash_block, sha256),
            **more,
        )

    def add(self, prompt: Sequence[int], max_tokens: int = 64, **more: Any) -> Request:
        request = self.request(prompt, max_tokens, **more)
        self.scheduler.add_request(request)
        return request

    def lookup(self, prompt: Sequence[int]) -> int:
        """Tokens that a request with this prompt would find cached if it came now."""
        self.manager.new_step_starts()
        return int(self.manager.get_computed_blocks(self.request(prompt))[1])

    def schedule(self) -> SchedulerOutput:
        step = self.scheduler.schedule()
        self.in_flight.append(step)
        scheduled = [self.scheduler.requests[one] for one in step.num_scheduled_tokens]
        self._prefilling.append({one.request_id for one in scheduled if one.is_prefill_chunk})
        return step

    def finish(self) -> None:
        """Give the scheduler the output of the oldest step in flight."""
        from vllm.v1.outputs import ModelRunnerOutput

        step, prefilling = self.in_flight.pop(0), self._prefilling.pop(0)
        ids = list(step.num_scheduled_tokens)
        sampled = {one: [] if one in prefilling else self._sample(one) for one in ids}
        output = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request_id: index for index, request_id in enumerate(ids)},
            sampled_token_ids=list(sampled.values()),
        )
        if self.worker is not None:
            self.worker.run(step, sampled, output)
        self.scheduler.update_from_output(step, output)

    def _sample(self, request_id: str) -> list[int]:
        request = self.scheduler.requests.get(request_id)
        return [] if request is None else [sum(request.all_token_ids) % 251 + 1]

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.schedule()
            self.finish()

    def keep(self) -> bool:
        return bool(self.scheduler.reset_prefix_cache(keep_running_requests=True))

    def drain(self) -> None:
        """Let every request run to its end and see that every block came back."""
        while self.in_flight:
            self.finish()
        while self.scheduler.has_unfinished_requests():
            self.step()
        self.step()
        assert self.held == 0


@dataclass(frozen=True)
class Kinds:
    """Layer kinds of vLLM by name, to make cache groups from."""

    block: int = BLOCK

    def full(self, block: int | None = None) -> KVCacheSpec:
        from vllm.v1.kv_cache_interface import FullAttentionSpec

        return FullAttentionSpec(**self._attention(block))

    def sliding(self, window: int, block: int | None = None) -> KVCacheSpec:
        from vllm.v1.kv_cache_interface import SlidingWindowSpec

        return SlidingWindowSpec(**self._attention(block), sliding_window=window)

    def chunked(self, chunk: int, block: int | None = None) -> KVCacheSpec:
        from vllm.v1.kv_cache_interface import ChunkedLocalAttentionSpec

        return ChunkedLocalAttentionSpec(**self._attention(block), attention_chunk_size=chunk)

    def mamba(self, block: int | None = None, speculative: int = 0) -> KVCacheSpec:
        import torch
        from vllm.v1.kv_cache_interface import MambaSpec

        return MambaSpec(
            block_size=block or self.block,
            shapes=((1,),),
            dtypes=(torch.float32,),
            mamba_cache_mode="align",
            num_speculative_blocks=speculative,
        )

    def _attention(self, block: int | None) -> dict[str, Any]:
        import torch

        return {
            "block_size": block or self.block,
            "num_kv_heads": 1,
            "head_size": 1,
            "dtype": torch.float32,
        }


@pytest.fixture(scope="session", autouse=True)
def plugin() -> Any:
    """The plugin, added to this process's vLLM."""
    if find_spec("vllm") is None:
        pytest.skip("vLLM is not installed: scripts/setup installs it unless BENCH_VLLM is none")
    with warnings.catch_warnings():
        # Importing torch and vLLM warns about their own code.
        warnings.simplefilter("ignore")
        import vllm.v1.core.sched.async_scheduler  # noqa: F401
        import vllm_keep_reset

        vllm_keep_reset.register()
    finding = vllm_keep_reset.finding()
    assert finding.status is vllm_keep_reset.Status.KNOWN, finding.differences
    return vllm_keep_reset


@pytest.fixture(scope="session")
def model_config(tmp_path_factory: pytest.TempPathFactory, plugin: Any) -> ModelConfig:
    """One for the session: vLLM 0.33 takes most of a second to make it."""
    from vllm.config import ModelConfig

    path = tmp_path_factory.mktemp("tiny-llama")
    (path / "config.json").write_text(json.dumps(TINY_LLAMA))
    return ModelConfig(
        model=str(path), skip_tokenizer_init=True, dtype="bfloat16", max_model_len=2048
    )


@pytest.fixture(scope="session")
def kinds() -> Kinds:
    return Kinds()


@pytest.fixture(scope="session")
def reverted(plugin: Any) -> Callable[[str], AbstractContextManager[None]]:
    """Put vLLM's own function back in place of one that the plugin replaced, for a `with` block."""
    from vllm_keep_reset.surfaces import replace, resolve

    @contextmanager
    def revert(name: str) -> Iterator[None]:
        ours = resolve(name)
        replace(name, plugin.original(name))
        try:
            yield
        finally:
            replace(name, ours)

    return revert


@dataclass(frozen=True)
class Settings:
    """What differs between schedulers besides their cache groups."""

    blocks: int = 64
    budget: int = 256
    asynchronous: bool = False
    events: bool = False
    caching: bool = True
    connector: str | None = None
    role: str = "kv_both"

    def vllm_config(
        self, model: ModelConfig, block: int, connector_options: dict[str, Any]
    ) -> VllmConfig:
        from vllm.config import (
            CacheConfig,
            DeviceConfig,
            KVEventsConfig,
            KVTransferConfig,
            SchedulerConfig,
            VllmConfig,
        )

        cache = CacheConfig(block_size=block, enable_prefix_caching=self.caching)
        cache.num_gpu_blocks = self.blocks
        cache.mamba_cache_mode = "align"
        return VllmConfig(
            model_config=model,
            scheduler_config=SchedulerConfig(
                max_num_seqs=16,
                max_num_batched_tokens=self.budget,
                max_model_len=2048,
                enable_chunked_prefill=True,
                is_encoder_decoder=False,
                async_scheduling=self.asynchronous,
            ),
            cache_config=cache,
            device_config=DeviceConfig("cpu"),
            kv_events_config=KVEventsConfig(
                enable_kv_cache_events=self.events, publisher="null" if self.events else "zmq"
            ),
            kv_transfer_config=None
            if self.connector is None
            else KVTransferConfig(
                kv_connector=self.connector,
                kv_role=self.role,
                kv_connector_extra_config=connector_options,
            ),
        )


@pytest.fixture(scope="session")
def replica(model_config: ModelConfig, kinds: Kinds) -> Callable[..., Replica]:
    """Make a replica: cache groups first, then what differs from the defaults."""
    configs: dict[tuple[Settings, int], Any] = {}

    def make(
        *specs: KVCacheSpec,
        hash_block: int | None = None,
        config: dict[str, Any] | None = None,
        connector_options: dict[str, Any] | None = None,
        **differing: Any,
    ) -> Replica:
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
        from vllm.v1.structured_output import StructuredOutputManager

        specs = specs or (kinds.full(),)
        settings = Settings(**differing)
        block = max(spec.block_size for spec in specs)
        vllm_config = configs.get((settings, block))
        if vllm_config is None:
            vllm_config = settings.vllm_config(model_config, block, connector_options or {})
            if settings.connector is None:
                configs[settings, block] = vllm_config
        scheduler = (AsyncScheduler if settings.asynchronous else Scheduler)(
            vllm_config=vllm_config,
            kv_cache_config=KVCacheConfig(
                num_blocks=settings.blocks,
                kv_cache_tensors=[
                    KVCacheTensor(
                        size=settings.blocks * 1024,
                        layers=["layer0"],
                        layer_stride=0,
                        block_stride=1024,
                    )
                ],
                kv_cache_groups=[
                    KVCacheGroupSpec([f"layer{index}"], spec) for index, spec in enumerate(specs)
                ],
                **(config or {}),
            ),
            block_size=block,
            hash_block_size=hash_block,
            log_stats=True,
            structured_output_manager=StructuredOutputManager(vllm_config),
        )
        return Replica(scheduler, hash_block or block)

    return make


@pytest.fixture
def core(replica: Callable[..., Replica]) -> Any:
    """A real engine core around a real scheduler with three running requests, without a model."""
    from vllm.v1.engine.core import EngineCore

    core = EngineCore.__new__(EngineCore)
    core.replica = replica(blocks=128)
    core.scheduler = core.replica.scheduler
    for index in range(3):
        core.replica.add([*range(1, 49), 100 + index])
    core.replica.step(2)
    return core


class Utilities:
    """Carries calls to engine cores with vLLM's own functions, and results through msgpack."""

    def __init__(self, *cores: Any) -> None:
        self.cores = cores

    def call_utility(self, name: str, *args: Any) -> Any:
        from vllm.v1.engine import UtilityOutput
        from vllm.v1.engine.core import EngineCoreProc
        from vllm.v1.engine.core_client import _process_utility_output
        from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

        replies: list[Any] = []
        EngineCoreProc._invoke_utility_method(
            name,
            lambda: getattr(self.cores[0], name)(*args),
            UtilityOutput(call_id=1),
            replies.append,
        )
        [reply] = replies
        received = MsgpackDecoder(UtilityOutput).decode(MsgpackEncoder().encode(reply))
        future: Future[Any] = Future()
        _process_utility_output(received, {1: future})
        return future.result()

    async def call_utility_all_async(self, name: str, *args: Any) -> list[Any]:
        return [Utilities(core).call_utility(name, *args) for core in self.cores]


class Fronts:
    """vLLM's own clients and front ends around engine cores in this process."""

    def sync_client(self, *cores: Any) -> Any:
        from vllm.v1.engine.core_client import SyncMPClient

        client = SyncMPClient.__new__(SyncMPClient)
        client.call_utility = Utilities(*cores).call_utility
        return client

    def async_client(self, *cores: Any) -> Any:
        from vllm.v1.engine.core_client import AsyncMPClient

        client = AsyncMPClient.__new__(AsyncMPClient)
        client.call_utility_all_async = Utilities(*cores).call_utility_all_async
        client.shutdown = lambda timeout=None: None
        return client

    def inproc_client(self, core: Any) -> Any:
        from vllm.v1.engine.core_client import InprocClient

        client = InprocClient.__new__(InprocClient)
        client.engine_core = core
        return client

    def llm(self, core: Any) -> Any:
        from vllm.entrypoints.llm import LLM
        from vllm.v1.engine.llm_engine import LLMEngine

        offline = LLM.__new__(LLM)
        offline.llm_engine = LLMEngine.__new__(LLMEngine)
        offline.llm_engine.engine_core = self.inproc_client(core)
        return offline

    def async_llm(self, *cores: Any) -> Any:
        from vllm.v1.engine.async_llm import AsyncLLM

        engine = AsyncLLM.__new__(AsyncLLM)
        engine.engine_core = self.async_client(*cores)
        return engine


@pytest.fixture(scope="session")
def fronts() -> Fronts:
    return Fronts()
