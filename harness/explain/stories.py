"""The stories: what is done to the model, and what to see in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.explain.engine import Auxiliary, Engine
from harness.explain.request import next_token
from harness.explain.trace import Scene
from harness.records import ResetMode

SYSTEM_PROMPT = [11, 12, 13, 14, 15]
"""Request A's five tokens: one full block and one more."""
PROMPT = [21, 22, 23, 24, 25, 26, 27, 28, 29, 30]
"""Request B's ten tokens: two full blocks, and two tokens in a third."""

CALLS = {
    ResetMode.DEFAULT: "POST /reset_prefix_cache",
    ResetMode.PREEMPT: "POST /reset_prefix_cache?reset_running_requests=true",
    ResetMode.KEEP: "POST /reset_prefix_cache?keep_running_requests=true",
}


@dataclass(frozen=True)
class Lane:
    """One way that a story goes; lanes of a story have the same scenes, one for one."""

    id: str
    """The word for it in the address."""
    label: str
    make: Callable[[], Engine]
    scenes: list[Scene]


@dataclass(frozen=True)
class Story:
    """A thing to understand, told in one or more lanes."""

    id: str
    title: str
    lead: str
    lanes: tuple[Lane, ...]


def answer(prompt: list[int], count: int) -> list[int]:
    """A prompt together with the model's first ``count`` tokens for it."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens


def arrive(name: str, prompt: list[int], output: int) -> Callable[[Engine], None]:
    """A request comes in and the engine makes one step."""

    def act(engine: Engine) -> None:
        engine.add(name, prompt, output)
        engine.step()

    return act


def steps(count: int) -> Callable[[Engine], None]:
    """The engine makes some steps."""

    def act(engine: Engine) -> None:
        for _ in range(count):
            engine.step()

    return act


RESET = ("Pool.reset", "Engine.reset", "Engine.preempt", "Pool.free_blocks")


LOOKUP = ("Pool.find_hits", "Engine.schedule_waiting", "Engine.schedule_running")


def reset(mode: ResetMode) -> Scene:
    """A reset, line by line."""
    return Scene(CALLS[mode], lambda engine: engine.reset(mode), watch=RESET, closely=True)


def _a_came_and_went(engine: Engine) -> None:
    """Leave one block of A's cached and free; B runs and holds three."""
    engine.add("A", SYSTEM_PROMPT, 1)
    engine.step()
    engine.add("B", PROMPT, 24)
    engine.step()


def _b_runs(engine: Engine) -> None:
    engine.add("B", PROMPT, 24)
    engine.step()


def _one_reset(mode: ResetMode, step: str, same_as_a: str, same_as_b: str) -> list[Scene]:
    return [
        Scene(
            "A small busy pool",
            _a_came_and_went,
            "Request B runs and holds three blocks. Request A is done; one of its blocks is free "
            "again but still cached, so it can be hit until somebody takes it from the queue.",
        ),
        reset(mode),
        Scene("The engine makes its next step", steps(1), step, LOOKUP),
        Scene(
            "Request C arrives with A's prompt", arrive("C", SYSTEM_PROMPT, 4), same_as_a, LOOKUP
        ),
        Scene("Request D arrives with B's prompt", arrive("D", PROMPT, 4), same_as_b, LOOKUP),
    ]


ONE_RESET = Story(
    "reset",
    "One reset, three modes",
    "Default refuses while a block is held. Preempt throws running work away to be allowed. Keep "
    "empties the map and leaves running requests alone.",
    (
        Lane(
            ResetMode.DEFAULT,
            "default",
            Engine,
            _one_reset(
                ResetMode.DEFAULT,
                "Nothing happened, so B makes its next token. On a server that always has "
                "somebody running, this reset never succeeds.",
                "The cache was not reset: C takes its first four tokens from A's old block.",
                "D shares B's two full blocks. Each is held twice now.",
            ),
        ),
        Lane(
            ResetMode.PREEMPT,
            "preempt",
            Engine,
            _one_reset(
                ResetMode.PREEMPT,
                "B is admitted again and computes all of its ten prompt tokens and its output "
                "token a second time before it can go on. Its blocks enter the map again, too.",
                "A's prompt was forgotten: C hits nothing.",
                "D hits two blocks: B's second prefill has already warmed the cache again.",
            ),
        ),
        Lane(
            ResetMode.KEEP,
            "keep",
            Engine,
            _one_reset(
                ResetMode.KEEP,
                "B makes its next token as if nothing had happened: it still holds its blocks and "
                "knows them by number. It never needed the map.",
                "A's prompt was forgotten: C hits nothing.",
                "B's prompt was forgotten, too, although B still runs: D computes it again, in "
                "blocks of its own. From now on the map leads to D's copy.",
            ),
        ),
    ),
)


def _who_hits(mode: ResetMode, after: str, first: str, second: str) -> list[Scene]:
    return [
        Scene(
            "Request B runs",
            _b_runs,
            "Two of B's blocks are full and in the map. Whoever asks for the same prompt now hits.",
        ),
        Scene(
            CALLS[mode],
            lambda engine: engine.reset(mode),
            "The map is empty. Step through the first story to see this reset line by line.",
            RESET,
        ),
        Scene("The engine makes two steps", steps(2), after, ("Engine.cache_full_blocks",)),
        Scene("Request C asks B's prompt", arrive("C", PROMPT, 1), first, LOOKUP),
        Scene(
            "Request D asks B's prompt and the answer so far",
            arrive("D", [*answer(PROMPT, 2), 99], 2),
            second,
            LOOKUP,
        ),
    ]


WHO_HITS = Story(
    "hits",
    "Who can hit afterwards",
    "A lookup walks the chain of hashes from the first block and stops at the first one that is "
    "not in the map. So what was computed after the reset can only be hit once the beginning is "
    "back.",
    (
        Lane(
            ResetMode.KEEP,
            "keep",
            Engine,
            _who_hits(
                ResetMode.KEEP,
                "B fills its third block, which enters the map. The event names a parent that the "
                "routers were just told to forget. Blocks 1 and 2 stay without a hash: B does not "
                "go back to them.",
                "The third block is in the map, but the first is not: C hits nothing. It computes "
                "the prompt again, and so brings the beginning of the chain back.",
                "Now the chain is whole: two blocks that C computed, and the third, which B filled "
                "after the reset. D hits all three.",
            ),
        ),
        Lane(
            ResetMode.PREEMPT,
            "preempt",
            Engine,
            _who_hits(
                ResetMode.PREEMPT,
                "B computes its prompt again, in fresh blocks, and all of them enter the map: a "
                "preempting reset leaves a warm cache behind, a keep reset a cold one.",
                "C hits what B's second prefill has put back.",
                "D hits all three of B's blocks.",
            ),
        ),
    ),
)


def _store(end: str) -> list[Scene]:
    return [
        Scene("Request B runs", _b_runs, "B's two full blocks are in the map."),
        Scene(
            "An offload begins",
            lambda engine: engine.start_store("B"),
            "B's full blocks are being copied to host memory. The transfer holds both ends, so "
            "that nobody reuses them before the copy is done.",
            ("Engine.start_store", "Pool.touch"),
        ),
        reset(ResetMode.KEEP),
        Scene(
            "The copy is done",
            lambda engine: engine.complete_store(),
            watch=("Engine.complete_store",),
            closely=True,
        ),
        Scene("The engine makes its next step", steps(1), end),
    ]


OFFLOAD = Story(
    "offload",
    "An offload that ends after the reset",
    "vLLM's host offload registers a finished copy under the hash of the block it was copied "
    "from, and relies on a held block having one. A keep reset takes that hash away.",
    (
        Lane(
            "unmended",
            "keep, without the mend",
            lambda: Engine(cpu_blocks=4, mended=False),
            _store("The engine is dead."),
        ),
        Lane(
            "mended",
            "keep, with the mend",
            lambda: Engine(cpu_blocks=4),
            _store(
                "B goes on. The copy is lost, as it should be: it belongs to what was forgotten."
            ),
        ),
    ),
)


def _auxiliary(mode: ResetMode, end: str) -> list[Scene]:
    return [
        Scene(
            "Request B runs, with auxiliary output",
            _b_runs,
            "The worker sends something besides tokens, such as which experts were chosen.",
        ),
        Scene(
            "A step is scheduled",
            lambda engine: engine.schedule(),
            "With asynchronous scheduling the engine does not wait for its output.",
        ),
        reset(mode),
        Scene(
            "The next step is scheduled",
            lambda engine: engine.schedule(),
            "The scheduler sends its generation along with the step.",
            watch=("Auxiliary.begin_step",),
            closely=True,
        ),
        Scene("The first step's output comes back", lambda engine: engine.receive(), end),
    ]


def _with_auxiliary(mended: bool) -> Callable[[], Engine]:
    return lambda: Engine(lookahead=True, auxiliary=Auxiliary(), mended=mended)


AUXILIARY = Story(
    "auxiliary",
    "Auxiliary output in flight",
    "A successful reset starts a new generation of auxiliary output, and the worker asserts that "
    "nothing is in flight when the generation changes. In keep mode something usually is.",
    (
        Lane(
            "unmended",
            "keep, without the mend",
            _with_auxiliary(mended=False),
            _auxiliary(ResetMode.KEEP, "The worker dies."),
        ),
        Lane(
            "mended",
            "keep, with the mend",
            _with_auxiliary(mended=True),
            _auxiliary(
                ResetMode.KEEP,
                "The generation is the same, so nothing is asserted and no output is lost.",
            ),
        ),
        Lane(
            "preempt",
            "preempt, as vLLM has it",
            _with_auxiliary(mended=True),
            _auxiliary(ResetMode.PREEMPT, "The worker dies."),
        ),
    ),
)

STEPS_AFTER = 13


def _prefill_again(mode: ResetMode, tells: Callable[[int], str]) -> list[Scene]:
    return [
        Scene(
            "Request B has its first output token",
            _b_with_budget_of_one,
            "All ten prompt tokens are computed. To make them countable, a step of this engine "
            "computes one token; a real one computes thousands.",
        ),
        Scene(
            CALLS[mode],
            lambda engine: engine.reset(mode),
            "Preempt: B gives its blocks back, and its computed tokens fall to 0."
            if mode is ResetMode.PREEMPT
            else "Keep: B's computed tokens stay as they are.",
            RESET,
        ),
        *(
            Scene(f"Step {n}", steps(1), tells(n), ("Engine.schedule",))
            for n in range(1, STEPS_AFTER + 1)
        ),
    ]


def _b_with_budget_of_one(engine: Engine) -> None:
    engine.add("B", PROMPT, 24)
    for _ in PROMPT:
        engine.step()


def _preempt_tells(step: int) -> str:
    if step <= len(PROMPT):
        return f"Prompt token {step} of {len(PROMPT)} is computed a second time. B's user waits."
    if step == len(PROMPT) + 1:
        return "The output token is computed again. Only now comes the next one."
    return "B goes on."


def _keep_tells(step: int) -> str:
    return f"B's user gets token {step} since the reset."


SECOND_PREFILL = Story(
    "prefill",
    "A second prefill, token by token",
    "What preempt costs the requests that were running, and what keep costs them: nothing. "
    "vLLM's own hit counters do not show it, since they skip preempted requests.",
    (
        Lane(
            ResetMode.PREEMPT,
            "preempt",
            lambda: Engine(budget=1),
            _prefill_again(ResetMode.PREEMPT, _preempt_tells),
        ),
        Lane(
            ResetMode.KEEP,
            "keep",
            lambda: Engine(budget=1),
            _prefill_again(ResetMode.KEEP, _keep_tells),
        ),
    ),
)

STORIES = (ONE_RESET, WHO_HITS, OFFLOAD, AUXILIARY, SECOND_PREFILL)
