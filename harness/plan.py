"""Scenario -> Plan: everything a run will do, drawn before it starts.

A plan is a pure function of the scenario and its seed: the same scenario makes the same arrivals,
prompts, output lengths and reset instants, and so the same bytes on the wire.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from harness.errors import UsageError
from harness.load import processes
from harness.load.arrivals import Stream, stream
from harness.load.assignment import assign
from harness.load.traces import read_trace
from harness.records import Arrival, PlannedReset, ResetMode
from harness.scenario import Process, PromptFamily, Scenario, identity
from harness.settings import check
from harness.workload import requests, texts_of


class Plan(msgspec.Struct, frozen=True):
    """A scenario with everything drawn: what a run does, fixed before it starts."""

    scenario: Scenario
    arrivals: tuple[Arrival, ...]
    resets: tuple[PlannedReset, ...]
    digest: str
    """SHA-256 over arrivals and prompts: equal digests send equal bytes at equal instants."""

    @property
    def requests(self) -> int:
        """Arrivals and the later turns of their sessions; not all of those come before the end."""
        return sum(1 + len(arrival.later) for arrival in self.arrivals)

    @property
    def prefixes(self) -> int:
        """How many shared prefixes there are, at least: one more than the highest number used."""
        if self.scenario.prompts.family in (PromptFamily.ZIPF, PromptFamily.SESSIONS):
            return self.scenario.prompts.prefixes
        return 1 + max((arrival.prefix for arrival in self.arrivals), default=0)

    @property
    def end(self) -> float:
        """When load ends, in seconds since the run's zero."""
        return self.scenario.load.warmup + self.scenario.load.duration


def make_plan(scenario: Scenario) -> Plan:
    """Draw everything ``scenario`` leaves to its seed, and take the rest from its trace.

    Raises:
        UsageError: a value is out of its range, or the trace cannot be read or is too short.
    """
    check(scenario)
    instants = _instants(scenario)
    arrivals = tuple(requests(scenario, instants))
    return Plan(scenario, arrivals, _resets(scenario), _digest(scenario, arrivals))


def _instants(scenario: Scenario) -> list[float]:
    """When arrivals come, in seconds since the run's zero."""
    load, rng = scenario.load, stream(scenario.seed, Stream.GAPS)
    end = load.warmup + load.duration
    rate = load.rate
    if scenario.prompts.family is PromptFamily.SESSIONS:
        rate /= scenario.prompts.turns  # instants are those of first turns
    match load.process:
        case Process.POISSON:
            drawn = processes.poisson(rate, end, rng)
        case Process.GAMMA:
            drawn = processes.gamma(rate, load.burstiness, end, rng)
        case Process.CONSTANT:
            drawn = processes.constant(rate, end, rng)
        case Process.RAMP | Process.STEPS:
            shape = processes.ramp if load.process is Process.RAMP else processes.steps
            profile = shape(rate, load.levels, load.warmup, load.duration)
            drawn = processes.varying(profile, end, rng)
        case Process.ON_OFF:
            profile = processes.on_off(rate, load.on, load.off, end)
            drawn = processes.varying(profile, end, rng)
        case Process.REPLAY:
            drawn = _replayed(scenario, end)
    return [float(instant) for instant in drawn]


def _replayed(scenario: Scenario, end: float) -> NDArray[np.float64]:
    trace, rate = read_trace(scenario.trace), scenario.load.rate
    lasts = len(trace.rows) / rate
    if lasts < 0.95 * end:
        raise UsageError(
            f"the trace lasts {lasts:g} s at {rate:g} requests/s, the load {end:g} s (--warmup + "
            "--duration). Shorten the load, lower --rate, or widen trace.window."
        )
    return processes.replay([row.at for row in trace.rows], trace.span, rate, end)


def _resets(scenario: Scenario) -> tuple[PlannedReset, ...]:
    """Planned resets: one mode throughout, or drawn for each (``load.assignment.assign``)."""
    spec, instants = scenario.resets, scenario.reset_instants
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


def _digest(scenario: Scenario, arrivals: Sequence[Arrival]) -> str:
    """Hash of what is sent and when.

    Prompts enter through what makes them: they are a pure function of seed, prompt settings and
    arrival; the texts of a trace enter as they are.
    """
    made_from = [
        scenario.seed,
        identity(scenario.prompts),
        identity(scenario.output),
        arrivals,
    ]
    if texts := texts_of(scenario):
        made_from.append([texts[one.row] for one in arrivals if one.row is not None])
    return hashlib.sha256(msgspec.json.encode(made_from)).hexdigest()
