"""The scheduler of the teaching model: requests, steps, preemption, and the three resets.

It has the behaviour of vLLM's ``Scheduler`` (``AsyncScheduler`` where ``lookahead`` is set) for
plain generation, first come first served, without speculative decoding.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.explain.pool import BLOCK_SIZE, Block, Event, EventKind, Pool
from harness.explain.request import Part, Request, State, blocks_for, next_token
from harness.records import ResetMode


@dataclass
class Auxiliary:
    """Auxiliary output, such as routed experts (``vllm.distributed.aux_output_connector``)."""

    generation: int = 0
    """The scheduler's; a reset raises it."""
    worker_generation: int = 0
    outputs_in_flight: int = 0

    def begin_step(self) -> None:
        """Take over the scheduler's generation (``AuxOutputWorkerConnector.begin_step``)."""
        if self.generation > self.worker_generation:
            # The worker takes a new generation for a sign that nothing runs any more.
            assert not self.outputs_in_flight, (
                "auxiliary output generation changed with output in flight"
            )
            self.worker_generation = self.generation
        self.outputs_in_flight += 1


@dataclass
class Store:
    """Blocks on their way from the GPU to host memory (``simple_kv_offload``)."""

    gpu_blocks: list[Block]
    cpu_blocks: list[Block]


@dataclass(eq=False)
class Engine:
    """A scheduler and its pools."""

    blocks: int = 10
    budget: int = 64
    """Tokens that one step may compute."""
    max_running: int = 4
    lookahead: bool = False
    """Schedule a step before the last one returned (``AsyncScheduler``)."""
    mended: bool = True
    """Whether the plugin's two mends are in; without them the engine dies in some stories."""
    cpu_blocks: int = 0
    """Size of the offloading pool; 0 for none."""
    auxiliary: Auxiliary | None = None
    pool: Pool = field(init=False)
    cpu: Pool | None = field(init=False)
    waiting: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    """Every request so far."""
    steps: list[list[Part]] = field(default_factory=list)
    """Steps in flight, the oldest first."""
    stores: list[Store] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pool = Pool(self.blocks)
        self.cpu = Pool(self.cpu_blocks) if self.cpu_blocks else None

    def add(self, name: str, prompt: list[int], output: int) -> None:
        """Queue a request (``Scheduler.add_request``)."""
        request = Request(name, list(prompt), len(prompt) + output)
        self.requests.append(request)
        self.waiting.append(request)

    def step(self) -> None:
        """Run one step to its end."""
        self.schedule()
        self.receive()

    def schedule(self) -> None:
        """Give out this step's tokens (``Scheduler.schedule``)."""
        parts: list[Part] = []
        crowded = self.schedule_running(parts)
        if not crowded:
            self.schedule_waiting(parts)
        if not parts:
            return
        for part in parts:
            part.request.computed += part.count
            part.request.in_flight += part.count
            if self.lookahead and part.samples:
                part.request.promised += 1
        self.steps.append(parts)
        if self.auxiliary:
            self.auxiliary.begin_step()

    def schedule_running(self, parts: list[Part]) -> bool:
        """Let running requests go on; tell whether somebody had to be preempted."""
        budget, crowded, index = self.budget, False, 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            count = min(request.pending, budget)
            index += 1
            if count == 0:
                continue
            while request in self.running and not self.grow(request, count):
                # No block is free: the youngest running request has to give its blocks back.
                self.preempt(self.running.pop(), drop_stale=False)
                crowded = True
            if request not in self.running:
                break
            parts.append(Part.of(request, count))
            budget -= count
        return crowded

    def schedule_waiting(self, parts: list[Part]) -> None:
        """Admit waiting requests, as long as tokens and blocks last."""
        budget = self.budget - sum(part.count for part in parts)
        for request in list(self.waiting):
            if budget == 0 or len(self.running) == self.max_running:
                break
            if request.stale and not request.drop_stale:
                continue
            # The last token is always computed, since its result is what is asked for.
            hits = self.pool.find_hits(request.hashes[: (len(request.tokens) - 1) // BLOCK_SIZE])
            needed = blocks_for(len(request.tokens)) - len(hits)
            free = len(self.pool.free) - sum(block.ref_cnt == 0 for block in hits)
            if needed > free:
                break
            self.pool.touch(hits)
            request.blocks, request.cached = hits, len(hits)
            request.computed = request.hit = len(hits) * BLOCK_SIZE
            count = min(len(request.tokens) - request.computed, budget)
            self.grow(request, count)
            self.waiting.remove(request)
            self.running.append(request)
            request.state = State.RUNNING
            parts.append(Part.of(request, count))
            budget -= count

    def grow(self, request: Request, count: int) -> bool:
        """Get room for more tokens (``KVCacheManager.allocate_slots``)."""
        needed = blocks_for(request.computed + count) - len(request.blocks)
        if needed > len(self.pool.free):
            return False
        request.blocks += self.pool.get_new_blocks(max(needed, 0))
        self.cache_full_blocks(request, min(request.computed + count, len(request.tokens)))
        return True

    def cache_full_blocks(self, request: Request, tokens: int) -> None:
        """Enter newly filled blocks into the map (``BlockPool.cache_full_blocks``)."""
        first, full = request.cached, tokens // BLOCK_SIZE
        if full <= first:
            return
        names = request.hashes[:full]
        # Only blocks filled since last time: nobody goes back to those before.
        for block, name in zip(request.blocks[first:full], names[first:], strict=True):
            self.pool.cache_block(block, name)
        request.cached = full
        parent = names[first - 1] if first else None
        self.pool.events.append(Event(EventKind.STORED, tuple(names[first:]), parent))

    def receive(self) -> None:
        """Take the oldest step's output (``Scheduler.update_from_output``)."""
        if not self.steps:
            return
        if self.auxiliary:
            self.auxiliary.outputs_in_flight -= 1
        for part in self.steps.pop(0):
            request = part.request
            request.in_flight -= part.count
            stale = request.stale > 0
            if stale:
                request.stale -= part.count
            if request.state is State.FINISHED or (stale and request.drop_stale):
                continue
            if part.samples:
                self.append_token(request, stale)

    def append_token(self, request: Request, stale: bool) -> None:
        """Add the model's next token, and finish the request after its last one."""
        request.tokens.append(next_token(request.tokens))
        if self.lookahead and not stale:
            request.promised -= 1
        if self.lookahead and request.state is State.RUNNING:
            self.cache_full_blocks(request, request.computed - request.promised)
        if len(request.tokens) == request.end:
            self.finish(request)

    def finish(self, request: Request) -> None:
        """End a request, or abort it (``Scheduler.finish_requests``)."""
        (self.running if request.state is State.RUNNING else self.waiting).remove(request)
        request.state = State.FINISHED
        # The tail of the sequence goes first, so it is also the first to be reused.
        self.pool.free_blocks(request.blocks[::-1])
        request.blocks = []

    def preempt(self, request: Request, drop_stale: bool) -> None:
        """Send a running request back to the queue (``Scheduler._preempt_request``)."""
        self.pool.free_blocks(request.blocks[::-1])
        # What was computed is gone with the blocks. All of it will be computed again.
        request.blocks, request.cached, request.computed, request.promised = [], 0, 0, 0
        request.drop_stale = drop_stale or (request.drop_stale and request.stale > 0)
        request.stale = request.in_flight
        request.preemptions += 1
        request.state = State.PREEMPTED
        self.waiting.insert(0, request)

    def reset(self, mode: ResetMode) -> bool:
        """Reset the prefix cache (``Scheduler.reset_prefix_cache``; keep is the plugin's)."""
        if mode is ResetMode.PREEMPT:
            while self.running:
                # Take every running request's blocks away, so that no block is held.
                self.preempt(self.running.pop(), drop_stale=True)
        keep = mode is ResetMode.KEEP
        cleared = self.pool.reset(allow_used_blocks=keep)
        if mode is ResetMode.PREEMPT and not cleared:
            raise RuntimeError("Failed to reset KV cache even when all requests are preempted")
        for request in self.running if keep else ():
            # Who ran across the reset never caches its first block: newcomers begin chains anew.
            request.cached = max(request.cached, 1)
        if self.auxiliary and cleared and not (keep and self.mended):
            # A new generation of auxiliary output begins.
            self.auxiliary.generation += 1
        return cleared

    def start_store(self, name: str) -> None:
        """Begin to copy a request's cached blocks to host memory, and hold both ends."""
        assert self.cpu is not None
        request = next(request for request in self.requests if request.name == name)
        gpu_blocks = [block for block in request.blocks if block.hash]
        gpu_blocks = gpu_blocks[: len(self.cpu.free)]
        self.pool.touch(gpu_blocks)
        self.stores.append(Store(gpu_blocks, self.cpu.get_new_blocks(len(gpu_blocks))))

    def complete_store(self) -> None:
        """Register a finished copy (``SimpleCPUOffloadScheduler._process_store_completion``)."""
        assert self.cpu is not None
        store = self.stores[0]
        for gpu_block, cpu_block in zip(store.gpu_blocks, store.cpu_blocks, strict=True):
            if self.mended and gpu_block.hash is None:
                # The plugin's mend: a copy whose block lost its name is not registered.
                continue
            # Stock vLLM relies on a held block to have a hash.
            assert gpu_block.hash is not None
            self.cpu.cache_block(cpu_block, gpu_block.hash)
        # Either way both references are released.
        self.cpu.free_blocks(store.cpu_blocks)
        self.pool.free_blocks(store.gpu_blocks)
        self.stores.remove(store)
