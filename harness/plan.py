"""Scenario file + flags -> Plan: every knob, its default, and everything a run will do.

A plan is a pure function of the scenario and its seed: the same scenario makes the same arrivals,
prompts, output lengths and reset instants, and so the same bytes on the wire.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from harness.records import Arrival, PlannedReset, ResetMode

WARMUP_RULE_SECONDS = 60.0
"""A queue near capacity forgets its start slowly: warm up at least this long."""


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


class LoadSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When requests are sent. ``duration`` is measured time; load lasts ``warmup + duration``."""

    rate: float = 4.0
    """Mean arrivals a second of the Poisson process."""
    duration: float = 120.0
    warmup: float = 30.0
    max_in_flight: int | None = None
    """Cap on requests in flight; None is an open loop. A cap that bites shows as queueing."""


class PromptSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What requests ask: a shared prefix drawn by a Zipf law, then a unique tail."""

    form: PromptForm = PromptForm.TOKEN_IDS
    prefixes: int = 24
    zipf: float = 1.0
    """Exponent s of the Zipf law: prefix k (from 1) is drawn with weight k**−s."""
    prefix_tokens: int = 2000
    unique_tokens: int = 60
    vocabulary: tuple[int, int] = (1000, 4000)
    """Token ids are drawn from this half-open range; below it lie special tokens of most models."""


class OutputSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much each request generates."""

    law: LengthLaw = LengthLaw.FIXED
    tokens: int = 200


class ResetSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When the prefix cache is reset, and how. Instants count from the run's zero."""

    mode: ResetMode | None = None
    """None plans no reset: a control."""
    every: float | None = 30.0
    """Seconds between resets, the first one interval after the warm-up; None if ``at`` is given."""
    at: tuple[float, ...] = ()
    """Instants after the warm-up, in seconds, instead of ``every``."""
    retry_every: float = 0.05
    """How soon a refused ``default`` reset is tried again, until the next planned reset."""
    external: bool = False
    """Also reset the external (connector) cache: ``reset_external=true``."""


class TimeoutSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long to wait, in seconds."""

    connect: float = 10.0
    idle: float = 120.0
    """Longest silence on a response before the request is a ``timeout``."""
    reset: float = 60.0
    """Longest wait for a reset's answer (a reset waits for the running step)."""
    scrape: float = 5.0
    drain: float = 120.0
    """Longest wait for requests in flight after the last arrival."""
    give_up: float = 15.0
    """Stop sending when every request has failed for this long."""


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that fixes a run's plan."""

    name: str = "look"
    seed: int = 1
    load: LoadSpec = LoadSpec()
    prompts: PromptSpec = PromptSpec()
    output: OutputSpec = OutputSpec()
    resets: ResetSpec = ResetSpec()
    timeouts: TimeoutSpec = TimeoutSpec()


class Plan(msgspec.Struct, frozen=True):
    """A scenario with everything drawn: what a run does, fixed before it starts."""

    scenario: Scenario
    arrivals: tuple[Arrival, ...]
    resets: tuple[PlannedReset, ...]
    digest: str
    """SHA-256 over arrivals and prompts: equal digests send equal bytes at equal instants."""
