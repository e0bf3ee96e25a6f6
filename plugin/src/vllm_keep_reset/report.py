"""What a reset is asked to do and what it did."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class KeepRefused(RuntimeError):
    """Keep mode is not safe with something this engine has; nothing was wiped."""


class ResetMode(Enum):
    """How a prefix-cache reset treats requests that hold blocks."""

    DEFAULT = "default"
    PREEMPT = "preempt"
    KEEP = "keep"

    @classmethod
    def of(cls, reset_running_requests: bool, keep_running_requests: bool) -> ResetMode:
        """Name the mode that two flags ask for.

        Raises:
            ValueError: both flags are set.
        """
        if reset_running_requests and keep_running_requests:
            raise ValueError(
                "keep_running_requests and reset_running_requests exclude each other: "
                "running requests are either kept or preempted. Set one of them."
            )
        if keep_running_requests:
            return cls.KEEP
        return cls.PREEMPT if reset_running_requests else cls.DEFAULT


@dataclass(frozen=True, slots=True)
class Counts:
    """What a scheduler holds, just before a reset.

    Attributes:
        running: requests being served.
        waiting: requests admitted but not running.
        cached_blocks: distinct block hashes that a lookup could hit (entries of the
            hash-to-block map, over all pools; duplicates of one hash count once).
        held_blocks: blocks that something holds a reference to, without the null block.
    """

    running: int
    waiting: int
    cached_blocks: int
    held_blocks: int

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.running + other.running,
            self.waiting + other.waiting,
            self.cached_blocks + other.cached_blocks,
            self.held_blocks + other.held_blocks,
        )


@dataclass(frozen=True, slots=True)
class ResetReport:
    """One reset, as one engine or a set of data-parallel engines saw it.

    Attributes:
        success: the cache was cleared on every engine.
        mode: what was asked for.
        before: None where the scheduler is not vLLM's own and cannot be looked into.
        preempted: requests that this reset preempted.
        discarded_tokens: computed tokens that those preemptions threw away.
        stall_seconds: how long an engine stepped nothing inside the reset (the longest).
        engines: how many engines answered.
        refused: why keep mode was refused, before anything was wiped.
        error: what vLLM raised after it had preempted.
    """

    success: bool
    mode: ResetMode
    before: Counts | None
    preempted: int
    discarded_tokens: int
    stall_seconds: float
    engines: int = 1
    refused: str | None = None
    error: str | None = None

    def to_wire(self) -> dict[str, Any]:
        """Plain values only: what crosses from an engine core to its client."""
        return asdict(self) | {"mode": self.mode.value}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> ResetReport:
        """Rebuild what `to_wire` gave."""
        before = wire["before"]
        return cls(
            **{
                **wire,
                "mode": ResetMode(wire["mode"]),
                "before": None if before is None else Counts(**before),
            }
        )

    def raise_if_refused(self) -> None:
        """Raise `KeepRefused` with the engine's reason, if it refused."""
        if self.refused is not None:
            raise KeepRefused(self.refused)

    def reply(self) -> dict[str, Any]:
        """The body of the HTTP reply. `success` stands first, as in vLLM's own."""
        if self.before is None:
            return {"success": self.success}
        body = {
            "success": self.success,
            "mode": self.mode.value,
            "running": self.before.running,
            "waiting": self.before.waiting,
            "preempted": self.preempted,
            "discarded_tokens": self.discarded_tokens,
            "cached_blocks": self.before.cached_blocks,
            "held_blocks": self.before.held_blocks,
            "stall_seconds": self.stall_seconds,
            "engines": self.engines,
        }
        return body if self.error is None else body | {"error": self.error}


def combine(reports: Sequence[ResetReport]) -> ResetReport:
    """Add up the reports of data-parallel engines.

    Success needs every engine. Counts are summed, the stall is the longest one.

    Raises:
        ValueError: there are no reports, or they are of different modes.
    """
    modes = {report.mode for report in reports}
    if len(modes) != 1:
        raise ValueError(f"{len(reports)} reset reports of modes {modes} do not add up")
    counts = [report.before for report in reports if report.before is not None]
    before = None
    if len(counts) == len(reports):
        before = sum(counts[1:], start=counts[0])
    return ResetReport(
        success=all(report.success for report in reports),
        mode=modes.pop(),
        before=before,
        preempted=sum(report.preempted for report in reports),
        discarded_tokens=sum(report.discarded_tokens for report in reports),
        stall_seconds=max(report.stall_seconds for report in reports),
        engines=sum(report.engines for report in reports),
        refused=_join(report.refused for report in reports),
        error=_join(report.error for report in reports),
    )


def _join(reasons: Iterable[str | None]) -> str | None:
    return "; ".join(dict.fromkeys(reason for reason in reasons if reason is not None)) or None
