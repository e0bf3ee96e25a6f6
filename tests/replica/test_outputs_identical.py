"""A real engine in this process: what running requests write is the same with keep resets.

In process vLLM schedules synchronously; tests/plugin/invariants has asynchronous schedulers.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.replica,
    # torch and vLLM warn about their own code while the engine runs.
    pytest.mark.filterwarnings("ignore"),
]

BLOCK = 32
PROMPTS = [
    [(seed * 97 + token * 31) % 500 + 3 for token in range(length)]
    for seed, length in ((1, 200), (2, 75), (3, 130))
]
NEW_TOKENS = 48


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with seeded random weights, wide enough apart that its logits are not flat."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("seeded-llama")
    config = LlamaConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=512,
        max_position_embeddings=1024,
        initializer_range=0.2,
        eos_token_id=2,
        bos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    return path


@dataclass
class Engine:
    """vLLM's engine, stepped by hand."""

    engine: Any
    _named: int = field(default=0)

    @property
    def scheduler(self) -> Any:
        return self.engine.engine_core.engine_core.scheduler

    @property
    def kv_tensors(self) -> list[Any]:
        worker = self.engine.engine_core.engine_core.model_executor.driver_worker.worker
        return list(worker.model_runner.kv_caches)

    def add(self, prompt: list[int]) -> str:
        """Greedy, but for a penalty that keeps a random model from repeating itself."""
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt

        self._named += 1
        name = f"request-{self._named}"
        self.engine.add_request(
            name,
            TokensPrompt(prompt_token_ids=prompt),
            SamplingParams(
                temperature=0.0, frequency_penalty=1.0, max_tokens=NEW_TOKENS, ignore_eos=True
            ),
        )
        return name

    def keep(self) -> bool:
        return bool(self.engine.reset_prefix_cache(keep_running_requests=True))

    def overwrite_kv(self) -> None:
        for tensor in self.kv_tensors:
            tensor.mul_(-1.0)

    def run(self, resets: tuple[int, ...] = (), overwrite: int | None = None) -> list[list[int]]:
        """Serve `PROMPTS` from an empty cache, with keep resets before the steps numbered so.

        Args:
            resets: steps before which to reset.
            overwrite: the step before which to spoil all KV that was computed.

        Returns:
            The new tokens of each prompt.
        """
        assert self.engine.reset_prefix_cache()
        names = [self.add(prompt) for prompt in PROMPTS]
        tokens: dict[str, list[int]] = {}
        step = 0
        while self.engine.has_unfinished_requests():
            if step in resets:
                running = len(self.scheduler.running)
                assert self.keep()
                assert len(self.scheduler.running) == running
            if step == overwrite:
                self.overwrite_kv()
            for output in self.engine.step():
                tokens[output.request_id] = list(output.outputs[0].token_ids)
            step += 1
        assert step > NEW_TOKENS
        return [tokens[name] for name in names]

    def cached_tokens(self, prompt: list[int]) -> int:
        """Serve one more request and return how many of its prompt tokens it found cached."""
        name = self.add(prompt)
        while True:
            for output in self.engine.step():
                if output.request_id == name:
                    return int(output.num_cached_tokens)


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> Iterator[Engine]:
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        import vllm_keep_reset
        from vllm import EngineArgs, LLMEngine
        from vllm.distributed import cleanup_dist_env_and_memory
        from vllm.platforms import current_platform

        if current_platform.is_unspecified():
            pytest.skip("this vLLM has no compiled part: it can schedule, but not compute")
        vllm_keep_reset.register()
        made = LLMEngine.from_engine_args(
            EngineArgs(
                model=str(checkpoint),
                skip_tokenizer_init=True,
                dtype="float32",
                max_model_len=512,
                block_size=BLOCK,
                max_num_batched_tokens=128,
                enforce_eager=True,
                num_gpu_blocks_override=64,
                seed=0,
            )
        )
        try:
            yield Engine(made)
        finally:
            made.engine_core.shutdown()
            cleanup_dist_env_and_memory()


def test_outputs_of_running_requests_are_those_of_a_run_without_resets(engine):
    """With a reset in the middle of a prefill, while all decode, and before every step."""
    plain = engine.run()
    assert engine.run() == plain
    assert engine.run(resets=(2,)) == plain
    assert engine.run(resets=(10, 30)) == plain
    assert engine.run(resets=tuple(range(60))) == plain


def test_the_outputs_depend_on_the_kv_that_running_requests_hold(engine):
    """Otherwise the test above could not fail."""
    plain = engine.run()
    assert all(len(set(tokens)) > NEW_TOKENS // 4 for tokens in plain)
    spoiled = engine.run(overwrite=12)
    assert all(one[:4] == other[:4] for one, other in zip(plain, spoiled, strict=True))
    assert all(one != other for one, other in zip(plain, spoiled, strict=True))


def test_a_later_request_misses_right_after_and_hits_once_another_has_cached_the_prefix(engine):
    prompt = PROMPTS[0]
    full = (len(prompt) - 1) // BLOCK * BLOCK
    assert engine.engine.reset_prefix_cache()
    engine.add(prompt)
    for _ in range(6):
        engine.engine.step()
    assert len(engine.scheduler.running) == 1
    assert engine.cached_tokens(prompt) == full

    assert engine.keep()

    assert engine.cached_tokens(prompt) == 0
    assert engine.cached_tokens(prompt) == full
    while engine.engine.has_unfinished_requests():
        engine.engine.step()
