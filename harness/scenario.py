"""Scenarios: what every knob of a run is, its unit and its default."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any, ClassVar

import msgspec

from harness.load.traces import TraceSpec
from harness.records import ResetMode
from harness.settling import SPACING_RULE, WARMUP_RULE


class PromptForm(StrEnum):
    """How a prompt is put on the wire."""

    TOKEN_IDS = "token_ids"
    """``/v1/completions`` with token ids: exact sizes, no tokenizer needed."""
    TEXT = "text"
    """``/v1/completions`` with text: sizes are what the server's tokenizer makes of it."""
    CHAT = "chat"
    """``/v1/chat/completions`` with one user message."""


class LengthLaw(StrEnum):
    """How output lengths are chosen."""

    FIXED = "fixed"
    """Every request generates exactly ``tokens`` (sent with ``ignore_eos``)."""
    UNIFORM = "uniform"
    """Uniform on 1 .. 2 ``tokens`` − 1, so that the mean is ``tokens``."""
    GEOMETRIC = "geometric"
    """Geometric with mean ``tokens``."""


class Process(StrEnum):
    """How arrivals lie in time (``load.processes``); ``rate`` is the mean of each."""

    POISSON = "poisson"
    GAMMA = "gamma"
    """Gamma gaps, as bursty as ``burstiness`` says."""
    CONSTANT = "constant"
    RAMP = "ramp"
    """Poisson with a rate that goes through ``levels`` in the measured period."""
    STEPS = "steps"
    """Poisson with a rate that holds each of ``levels`` equally long."""
    ON_OFF = "on_off"
    """Poisson for ``on`` seconds, silent for ``off``, in turn."""
    REPLAY = "replay"
    """The instants of the trace, stretched to ``rate``; without a rate, as recorded."""


class PromptFamily(StrEnum):
    """What prompts have in common (``load.prompts``)."""

    ZIPF = "zipf"
    """One of ``prefixes`` shared prefixes, drawn by a Zipf law, then a unique tail."""
    TREE = "tree"
    """A path down a tree of shared blocks, then a unique tail."""
    SESSIONS = "sessions"
    """Conversations of ``turns`` turns: each holds all that was said before, answers included."""
    UNIQUE = "unique"
    """Nothing: ``prefix_tokens + unique_tokens`` of their own, the cold reference."""
    TRACE = "trace"
    """What the trace says; it decides sizes and output lengths too."""


class LoadSpec(msgspec.Struct, frozen=True):
    """When requests are sent. ``duration`` is measured time; load lasts ``warmup + duration``."""

    rate: float = 4.0
    """Mean arrivals a second."""
    duration: float = 600.0
    warmup: float = WARMUP_RULE
    max_in_flight: int | None = None
    """Cap on requests in flight; None is an open loop. A cap that bites shows as queueing."""
    process: Process = Process.POISSON
    burstiness: float = 1.0
    """Shape of gamma gaps, as in vLLM: below 1 burstier than Poisson, above 1 more even."""
    levels: tuple[float, ...] = ()
    """Relative rates of a ramp or of steps; scaled so that their mean is ``rate``."""
    on: float = 10.0
    off: float = 10.0
    processes: int = 1
    """Processes of this machine that send the load; if several, the run itself sends none."""

    LATER: ClassVar[frozenset[str]] = frozenset(
        {"process", "burstiness", "levels", "on", "off", "processes"}
    )


class PromptSpec(msgspec.Struct, frozen=True):
    """What requests ask; by default a shared prefix drawn by a Zipf law, then a unique tail."""

    form: PromptForm = PromptForm.TOKEN_IDS
    prefixes: int = 24
    zipf: float = 1.0
    """Exponent s of the Zipf law: prefix k (from 1) is drawn with weight k**−s.

    In a tree each node's children are drawn so.
    """
    prefix_tokens: int = 2000
    unique_tokens: int = 60
    vocabulary: tuple[int, int] = (1000, 4000)
    """Token ids are drawn from this half-open range; below it lie special tokens of most models."""
    family: PromptFamily = PromptFamily.ZIPF
    tree: tuple[tuple[int, int], ...] = ((1, 1000), (4, 600), (8, 400))
    """Levels from the root down: children of each node and tokens of each child.

    By default one system prompt, four tool blocks after it, eight sessions after each.
    """
    turns: int = 4
    """Requests of a session. Its user says ``unique_tokens`` in each."""
    think: float = 5.0
    """Mean seconds, exponentially drawn, from the end of an answer to the next turn."""

    LATER: ClassVar[frozenset[str]] = frozenset({"family", "tree", "turns", "think"})

    @property
    def shared_share(self) -> float:
        """Share of a prompt's tokens that it has in common with every other of its prefix."""
        match self.family:
            case PromptFamily.ZIPF:
                return self.prefix_tokens / (self.prefix_tokens + self.unique_tokens)
            case PromptFamily.TREE:
                whole = sum(tokens for _, tokens in self.tree) + self.unique_tokens
                return self.tree[0][1] / whole
            case PromptFamily.SESSIONS:
                whole = self.prefix_tokens + self.turns * self.unique_tokens
                return self.prefix_tokens / whole
            case _:
                return 1.0


class OutputSpec(msgspec.Struct, frozen=True):
    """How much each request generates."""

    law: LengthLaw = LengthLaw.FIXED
    tokens: int = 100


class ResetSpec(msgspec.Struct, frozen=True):
    """When the prefix cache is reset, and how. Instants count from the end of the warm-up."""

    mode: ResetMode = ResetMode.NONE
    every: float | None = None
    """Seconds between resets. None: 120 s, or a quarter of a measured period under 480 s."""
    at: tuple[float, ...] = ()
    """Instants of the resets instead of ``every``."""
    retry_every: float = 0.05
    """How soon a refused ``default`` reset is tried again, until the next planned reset."""
    external: bool = False
    """Also reset the external (connector) cache: ``reset_external=true``."""
    modes: tuple[ResetMode, ...] = ()
    """A crossover's modes, instead of ``mode``: each reset gets one by a balanced draw."""
    turn: int = 0
    """Which run of the crossover's block this is, from 0: as many runs as modes mirror one draw."""


class TimeoutSpec(msgspec.Struct, frozen=True):
    """How long to wait, in seconds."""

    connect: float = 10.0
    idle: float = 120.0
    """Longest silence on a response before the request is a ``timeout``."""
    reset: float = 60.0
    """Longest wait for a reset's answer (a reset waits for the running step)."""
    scrape: float = 5.0
    drain: float = 120.0
    """Longest wait for requests in flight after the last arrival."""
    give_up: float = 30.0
    """Stop sending when the server has answered nothing, or only failures, for this long."""


class Scenario(msgspec.Struct, frozen=True):
    """Everything that fixes a run's plan."""

    name: str = "look"
    seed: int = 1
    load: LoadSpec = LoadSpec()
    prompts: PromptSpec = PromptSpec()
    output: OutputSpec = OutputSpec()
    resets: ResetSpec = ResetSpec()
    timeouts: TimeoutSpec = TimeoutSpec()
    trace: TraceSpec = TraceSpec()

    LATER: ClassVar[frozenset[str]] = frozenset({"trace"})

    @property
    def poisson_rate(self) -> float | None:
        """The load's rate if requests see time averages: if they are Poisson at a constant rate."""
        open_loop = self.prompts.family is not PromptFamily.SESSIONS
        return self.load.rate if open_loop and self.load.process is Process.POISSON else None

    @property
    def every(self) -> float:
        """Seconds between resets, where no instants are named."""
        if self.resets.every is not None:
            return self.resets.every
        return min(SPACING_RULE, self.load.duration / 4)

    @property
    def reset_instants(self) -> tuple[float, ...]:
        """Planned reset instants in seconds since the run's zero.

        With ``every`` the first comes one interval after the warm-up and each has a whole interval
        behind it, so that all windows (and the one before the first reset) are equally long.
        """
        spec, load = self.resets, self.load
        if spec.at:
            return tuple(load.warmup + instant for instant in sorted(spec.at))
        count = math.floor(load.duration / self.every + 1e-9) - 1
        return tuple(load.warmup + self.every * k for k in range(1, count + 1))


def identity(spec: msgspec.Struct) -> dict[str, Any]:
    """``spec`` as plain data, without those of its ``LATER`` fields that are at their default.

    ``LATER`` are the fields that came after digests were first written down. Digests are over this,
    so what does not use a later field keeps the digest it had before.
    """
    later: frozenset[str] = getattr(type(spec), "LATER", frozenset())
    plain: dict[str, Any] = {}
    for field in msgspec.structs.fields(spec):
        value = getattr(spec, field.name)
        if field.name in later and value == field.default:
            continue
        is_table = isinstance(value, msgspec.Struct)
        plain[field.name] = identity(value) if is_table else msgspec.to_builtins(value)
    return plain
