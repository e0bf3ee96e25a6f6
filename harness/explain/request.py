"""Requests of the teaching model, and what one of them does in one step."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from harness.explain.pool import BLOCK_SIZE, Block, hash_block


class State(StrEnum):
    """Where a request is."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    """Waiting again, after its blocks were taken."""
    FINISHED = "finished"


@dataclass(eq=False)
class Request:
    """One request (``vllm.v1.request.Request``)."""

    name: str
    tokens: list[int]
    """The prompt, and the output so far."""
    end: int
    """How many tokens there are once it is finished."""
    state: State = State.WAITING
    blocks: list[Block] = field(default_factory=list)
    cached: int = 0
    """How many of its blocks it has entered into the map, or found there; never counted back."""
    computed: int = 0
    """Tokens whose keys and values are, or are being, computed."""
    hit: int = 0
    """Tokens that it found in the cache when it was last admitted."""
    in_flight: int = 0
    """Computed tokens of steps that have not returned."""
    promised: int = 0
    """Output tokens that steps in flight will bring (``num_output_placeholders``)."""
    stale: int = 0
    """Tokens in flight from before a preemption."""
    drop_stale: bool = False
    """Whether their output is thrown away."""
    preemptions: int = 0

    @property
    def hashes(self) -> list[str]:
        """The chained hash of each full block of tokens."""
        names: list[str] = []
        for start in range(0, len(self.tokens) - BLOCK_SIZE + 1, BLOCK_SIZE):
            parent = names[-1] if names else None
            names.append(hash_block(parent, tuple(self.tokens[start : start + BLOCK_SIZE])))
        return names

    @property
    def pending(self) -> int:
        """Tokens that could be computed now."""
        if self.promised and self.computed + 2 - self.promised >= self.end:
            return 0
        return len(self.tokens) + self.promised - self.computed


@dataclass(frozen=True)
class Part:
    """What one request does in one step."""

    request: Request
    count: int
    samples: bool
    """Whether it ends at the last token, so that the model gives the next one."""

    @classmethod
    def of(cls, request: Request, count: int) -> Part:
        """The share of a request that computes ``count`` tokens."""
        ends_at = request.computed + count
        return cls(request, count, samples=ends_at >= len(request.tokens) + request.promised)


def blocks_for(tokens: int) -> int:
    """How many blocks hold that many tokens."""
    return -(-tokens // BLOCK_SIZE)


def next_token(tokens: list[int]) -> int:
    """What the model answers: the same tokens always get the same next one."""
    return int(hash_block(None, tuple(tokens))[:4], 16) % 1000
