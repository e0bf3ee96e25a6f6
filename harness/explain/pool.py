"""The block pool of the teaching model: blocks, the free queue, and the hash-to-block map.

Each function names the vLLM function whose behaviour it has, for one group of full-attention
layers. A comment above a line says why that line is there: the page shows it as the line runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256

BLOCK_SIZE = 4
"""Tokens per block."""


@dataclass(eq=False)
class Block:
    """The bookkeeping of one KV-cache block (``KVCacheBlock``)."""

    id: int
    ref_cnt: int = 0
    hash: str | None = None


class EventKind(StrEnum):
    """The KV events that a router subscribes to (``vllm.distributed.kv_events``)."""

    STORED = "BlockStored"
    REMOVED = "BlockRemoved"
    CLEARED = "AllBlocksCleared"


@dataclass(frozen=True)
class Event:
    """One KV event."""

    kind: EventKind
    hashes: tuple[str, ...] = ()
    parent: str | None = None
    """Hash of the block before the first one stored; ``None`` at the start of a sequence."""


def hash_block(parent: str | None, tokens: tuple[int, ...]) -> str:
    """Name a full block by its tokens and everything before them (``hash_block_tokens``)."""
    return sha256(repr((parent, tokens)).encode()).hexdigest()[:16]


@dataclass(eq=False)
class Pool:
    """All blocks of one memory (``BlockPool``). Block 0 is the null block and never free."""

    size: int
    blocks: list[Block] = field(init=False)
    free: list[Block] = field(init=False)
    """The free queue; the head, index 0, is handed out first."""
    map: dict[str, list[int]] = field(default_factory=dict)
    """Hash to the ids of the blocks that carry it, the oldest first."""
    events: list[Event] = field(default_factory=list)
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.blocks = [Block(block_id) for block_id in range(self.size)]
        self.free = self.blocks[1:]

    def get_new_blocks(self, count: int) -> list[Block]:
        """Hand out blocks from the head of the free queue (``BlockPool.get_new_blocks``)."""
        new, self.free = self.free[:count], self.free[count:]
        for block in new:
            # The block may still be cached from its last holder. Reuse ends that.
            self.evict(block)
            block.ref_cnt += 1
        return new

    def touch(self, blocks: list[Block]) -> None:
        """Hold blocks once more (``BlockPool.touch``)."""
        for block in blocks:
            # A free block that is hit leaves the queue, so nobody can take it.
            if block.ref_cnt == 0:
                self.free.remove(block)
            block.ref_cnt += 1

    def free_blocks(self, blocks: list[Block]) -> None:
        """Let go of blocks (``BlockPool.free_blocks``)."""
        without_hash: list[Block] = []
        with_hash: list[Block] = []
        for block in blocks:
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                (with_hash if block.hash else without_hash).append(block)
        # Nothing can hit a block without a hash: it is reused first. A cached one waits its turn.
        self.free = without_hash + self.free + with_hash

    def cache_block(self, block: Block, name: str) -> None:
        """Make a block findable under its hash (``BlockPool._insert_block_hash``)."""
        block.hash = name
        self.map.setdefault(name, []).append(block.id)

    def evict(self, block: Block) -> None:
        """Forget what a block holds (``BlockPool._maybe_evict_cached_block``)."""
        if block.hash is None:
            return
        self.map[block.hash].remove(block.id)
        if not self.map[block.hash]:
            del self.map[block.hash]
        self.events.append(Event(EventKind.REMOVED, (block.hash,)))
        block.hash = None

    def find_hits(self, hashes: list[str]) -> list[Block]:
        """Find the longest cached chain (``FullAttentionManager.find_longest_cache_hit``)."""
        hits = []
        for name in hashes:
            # A chain starts at the first block: without its parents a block cannot be hit.
            if name not in self.map:
                break
            hits.append(self.blocks[self.map[name][0]])
        return hits

    def reset(self, allow_used_blocks: bool = False) -> bool:
        """Forget every prefix (``BlockPool.reset_prefix_cache``; the argument is the plugin's)."""
        # Whatever is not in the free queue counts as used. The null block always is.
        used = len(self.blocks) - len(self.free)
        if used != 1 and not allow_used_blocks:
            # Somebody holds a block, so the default reset refuses and changes nothing.
            self.log.append(
                f"Failed to reset prefix cache because some blocks ({used - 1}) are not freed yet"
            )
            return False
        cached = [self.blocks[block_id] for ids in self.map.values() for block_id in ids]
        # An empty map: from here on, no lookup can hit anything from before.
        self.map = {}
        for block in cached:
            # Held or free, each loses its name. Reference counts and the queue stay as they are.
            block.hash = None
        # One event tells routers to forget everything, instead of one event a block.
        self.events.append(Event(EventKind.CLEARED))
        self.log.append("Successfully reset prefix cache")
        return True
