"""Keep mode in the scheduler, and what a reset did to it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm.v1.core.sched.scheduler import Scheduler

from vllm_keep_reset.connectors import refusal
from vllm_keep_reset.pool import held_blocks, pools_of
from vllm_keep_reset.report import Counts, KeepRefused, ResetMode, ResetReport
from vllm_keep_reset.straddlers import hold_back

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm.v1.core.sched.interface import SchedulerInterface
    from vllm.v1.request import Request


def scheduler_reset(original: Callable[[Scheduler, bool, bool], bool]) -> Callable[..., bool]:
    """Replace `Scheduler.reset_prefix_cache`."""

    def reset_prefix_cache(
        self: Scheduler,
        reset_running_requests: bool = False,
        reset_connector: bool = False,
        keep_running_requests: bool = False,
    ) -> bool:
        """Reset the prefix cache. True if it is empty now.

        `reset_running_requests` preempts every running request first; `reset_connector` also
        resets the KV connector's cache.

        `keep_running_requests` clears the cache under the running requests, which keep their
        blocks and computed tokens. The auxiliary-output connector is not reset then: its worker
        asserts that no output is in flight when its generation changes
        (`AuxOutputWorkerConnector.begin_step`), and what it stores is keyed by content.

        Raises:
            ValueError: both `reset_running_requests` and `keep_running_requests`.
            KeepRefused: keep mode is not safe with a part of this engine; nothing was wiped.
            RuntimeError: as vLLM: a preempting reset found blocks held by something else.
        """
        mode = ResetMode.of(reset_running_requests, keep_running_requests)
        if mode is not ResetMode.KEEP:
            return original(self, reset_running_requests, reset_connector)
        reason = refusal(self, reset_connector)
        if reason is not None:
            raise KeepRefused(reason)
        cleared = bool(self.kv_cache_manager.reset_prefix_cache(keep_running_requests=True))
        if cleared and self.cache_config.enable_prefix_caching:
            hold_back(self.kv_cache_manager.coordinator, self.requests)
        return cleared

    return reset_prefix_cache


def call_reset(scheduler: SchedulerInterface, mode: ResetMode, reset_connector: bool) -> bool:
    """Reset any scheduler in any mode. One that does not know keep mode is never asked for it."""
    if mode is not ResetMode.KEEP:
        preempt = mode is ResetMode.PREEMPT
        return bool(scheduler.reset_prefix_cache(preempt, reset_connector))
    if not _is_known(scheduler):
        raise KeepRefused(
            f"keep mode is not defined for the scheduler class {type(scheduler).__qualname__}, "
            "which replaces vLLM's reset_prefix_cache with its own"
        )
    return bool(scheduler.reset_prefix_cache(False, reset_connector, True))


def report_reset(
    scheduler: SchedulerInterface, mode: ResetMode, reset_connector: bool
) -> ResetReport:
    """Reset a scheduler and say what that did.

    A preempting reset that raises has preempted already, so its error is reported and not
    raised. Every other error is raised.
    """
    watched = _Watched.of(scheduler) if _is_known(scheduler) else None
    success, refused, error = False, None, None
    start = time.perf_counter()
    try:
        success = call_reset(scheduler, mode, reset_connector)
    except KeepRefused as reason:
        refused = str(reason)
    except RuntimeError as raised:
        if mode is not ResetMode.PREEMPT:
            raise
        error = str(raised)
    stall = time.perf_counter() - start
    preempted, discarded = watched.preempted() if watched else (0, 0)
    return ResetReport(
        success=success,
        mode=mode,
        before=watched.counts if watched else None,
        preempted=preempted,
        discarded_tokens=discarded,
        stall_seconds=stall,
        refused=refused,
        error=error,
    )


def _is_known(scheduler: SchedulerInterface) -> bool:
    return (
        isinstance(scheduler, Scheduler)
        and type(scheduler).reset_prefix_cache is Scheduler.reset_prefix_cache
    )


@dataclass(frozen=True, slots=True)
class _Watched:
    """A scheduler's counts before a reset, and its running requests to look at again after it."""

    counts: Counts
    running: list[tuple[Request, int, int]]

    @classmethod
    def of(cls, scheduler: Scheduler) -> _Watched:
        pools = pools_of(scheduler.kv_cache_manager.coordinator)
        running, waiting = scheduler.get_request_counts()
        counts = Counts(
            running=running,
            waiting=waiting,
            cached_blocks=sum(len(pool.cached_block_hash_to_block) for pool in pools),
            held_blocks=sum(held_blocks(pool) for pool in pools),
        )
        return cls(
            counts,
            [(req, req.num_preemptions, req.num_computed_tokens) for req in scheduler.running],
        )

    def preempted(self) -> tuple[int, int]:
        """Requests preempted since, and the computed tokens that they lost."""
        lost = [tokens for req, times, tokens in self.running if req.num_preemptions > times]
        return len(lost), sum(lost)
