"""Scenario -> Plan: everything a run will do, drawn before it starts.

A plan is a pure function of the scenario and its seed: the same scenario makes the same arrivals,
prompts, output lengths and reset instants, and so the same bytes on the wire.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec
import numpy as np

from harness.load.arrivals import Stream, poisson, stream, zipf_choice
from harness.load.assignment import assign
from harness.load.prompts import Prompts
from harness.records import Arrival, PlannedReset, ResetMode
from harness.scenario import LengthLaw, OutputSpec, Scenario, check, reset_instants


class Plan(msgspec.Struct, frozen=True):
    """A scenario with everything drawn: what a run does, fixed before it starts."""

    scenario: Scenario
    arrivals: tuple[Arrival, ...]
    resets: tuple[PlannedReset, ...]
    digest: str
    """SHA-256 over arrivals and prompts: equal digests send equal bytes at equal instants."""

    @property
    def end(self) -> float:
        """When load ends, in seconds since the run's zero."""
        return self.scenario.load.warmup + self.scenario.load.duration


def make_plan(scenario: Scenario) -> Plan:
    """Draw everything ``scenario`` leaves to its seed.

    Raises:
        UsageError: a value is out of its range.
    """
    check(scenario)
    seed, load = scenario.seed, scenario.load
    instants = poisson(load.rate, load.warmup + load.duration, stream(seed, Stream.GAPS))
    prefixes = zipf_choice(
        scenario.prompts.prefixes,
        scenario.prompts.zipf,
        len(instants),
        stream(seed, Stream.PREFIXES),
    )
    lengths = _output_lengths(scenario.output, len(instants), stream(seed, Stream.LENGTHS))
    arrivals = tuple(
        Arrival(number, scheduled, prefix, tokens)
        for number, (scheduled, prefix, tokens) in enumerate(
            zip(instants.tolist(), prefixes.tolist(), lengths, strict=True)
        )
    )
    return Plan(scenario, arrivals, _resets(scenario), _digest(scenario, arrivals))


def _resets(scenario: Scenario) -> tuple[PlannedReset, ...]:
    """Planned resets: one mode throughout, or drawn for each (``load.assignment.assign``)."""
    spec, instants = scenario.resets, reset_instants(scenario)
    if spec.modes:
        rng = stream(scenario.seed, Stream.ASSIGNMENT)
        modes = assign(spec.modes, len(instants), rng)[spec.turn]
    else:
        modes = (spec.mode,) * len(instants)
    return tuple(
        PlannedReset(number, instant, mode)
        for number, (instant, mode) in enumerate(zip(instants, modes, strict=True))
        if mode is not ResetMode.NONE
    )


def prompts_of(scenario: Scenario) -> Prompts:
    """The maker of this scenario's prompts."""
    spec = scenario.prompts
    return Prompts(
        seed=scenario.seed,
        prefix_tokens=spec.prefix_tokens,
        unique_tokens=spec.unique_tokens,
        vocabulary=spec.vocabulary,
    )


def _output_lengths(spec: OutputSpec, count: int, rng: np.random.Generator) -> list[int]:
    match spec.law:
        case LengthLaw.FIXED:
            lengths = np.full(count, spec.tokens)
        case LengthLaw.UNIFORM:
            lengths = rng.integers(1, 2 * spec.tokens, size=count)
        case LengthLaw.GEOMETRIC:
            lengths = rng.geometric(1 / spec.tokens, size=count)
    return [int(length) for length in lengths]


def _digest(scenario: Scenario, arrivals: Sequence[Arrival]) -> str:
    """Hash of what is sent and when.

    Prompts enter through what makes them: they are a pure function of seed, prompt settings,
    prefix and id.
    """
    made_from = [
        scenario.seed,
        msgspec.to_builtins(scenario.prompts),
        msgspec.to_builtins(scenario.output),
        arrivals,
    ]
    return hashlib.sha256(msgspec.json.encode(made_from)).hexdigest()
