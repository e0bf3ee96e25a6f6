"""vLLM's own scheduler without an engine around it, for scripts that show or time its resets."""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING

from environment import ROOT, enter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.request import Request

MODEL = ROOT / "harness" / "replica" / "model"
BLOCK_TOKENS = 16
FLAGS = {
    "default": {},
    "preempt": {"reset_running_requests": True},
    "keep": {"keep_running_requests": True},
}


def use_vllm_with_plugin() -> str:
    """Go on in the project's environment, quietly, with the plugin in it; name both versions."""
    enter()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    import vllm_keep_reset

    vllm_keep_reset.register()
    finding = vllm_keep_reset.finding()
    if finding.status is vllm_keep_reset.Status.UNKNOWN:
        raise SystemExit(finding.reason)
    return f"vLLM {finding.vllm}, vllm-keep-reset {vllm_keep_reset.__version__}"


def make_scheduler(blocks: int, max_requests: int = 1) -> Scheduler:
    """Build a scheduler around a pool of so many blocks, which one step may fill."""
    import torch
    from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    tokens = blocks * BLOCK_TOKENS
    model = ModelConfig(model=str(MODEL), skip_tokenizer_init=True)
    model.max_model_len = tokens
    cache = CacheConfig(block_size=BLOCK_TOKENS, enable_prefix_caching=True)
    cache.num_gpu_blocks = blocks
    config = VllmConfig(
        model_config=model,
        scheduler_config=SchedulerConfig(
            max_model_len=tokens,
            max_num_batched_tokens=tokens,
            max_num_seqs=max_requests,
            is_encoder_decoder=False,
            async_scheduling=False,
        ),
        cache_config=cache,
        device_config=DeviceConfig("cpu"),
    )
    spec = FullAttentionSpec(
        block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    return Scheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        ),
        block_size=BLOCK_TOKENS,
        log_stats=False,
        structured_output_manager=StructuredOutputManager(config),
    )


def make_request(name: str, prompt: Sequence[int]) -> Request:
    """Make a request for a few tokens."""
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    init_none_hash(sha256)
    return Request(
        name,
        list(prompt),
        SamplingParams(max_tokens=8, ignore_eos=True),
        None,
        block_hasher=get_request_block_hasher(BLOCK_TOKENS, sha256),
    )
