"""An experiment file -> the plans of its runs, in an interleaved order.

A *crossover* run gives each planned reset its mode by a balanced draw; the runs of a block mirror
one draw, so that every planned reset sees every mode. *Arms* give each run one mode, beside a
control with the same plan; their order is drawn anew in each block of one rate and seed. *At idle*,
the keep arm comes after the default arm and replays the instants at which that one cleared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations, pairwise
from pathlib import Path
from typing import ClassVar

import msgspec

from harness import settling
from harness.design import Design
from harness.errors import UsageError
from harness.journals import Journals
from harness.load.arrivals import Stream, stream
from harness.plan import Plan, make_plan
from harness.records import AttemptOutcome, ResetMode
from harness.scenario import Scenario
from harness.settings import check, convert, read_settings
from harness.settling import SPACING_RULE, ProcessorSharing


class ExperimentSpec(msgspec.Struct, frozen=True):
    """What an experiment runs: every combination of rates and seeds, in the given design."""

    name: str
    scenario: Scenario
    design: Design = Design.CROSSOVER
    modes: tuple[ResetMode, ...] = (ResetMode.SHAM, ResetMode.PREEMPT, ResetMode.KEEP)
    rates: tuple[float, ...] = (4.0,)
    """Mean arrivals a second."""
    seeds: tuple[int, ...] = (1,)
    service: ProcessorSharing | None = None
    """Service law as an experiment measured it: then warm-up and spacing of resets are at each rate
    at least what the measuring rules ask of it."""

    LATER: ClassVar[frozenset[str]] = frozenset({"service"})


FEWEST_DRAWS = 40
"""Fewer possible draws than this cannot reject at 5 % on both sides."""


class PlannedRun(msgspec.Struct, frozen=True):
    """One run of an experiment; ``name`` is its folder."""

    name: str
    plan: Plan
    replays: str | None = None
    """Name of a default run before it: ``plan`` has no resets until that one's are known."""


def read_experiment(file: Path) -> ExperimentSpec:
    """The experiment in ``file``: a scenario with the fields of ``ExperimentSpec`` at its top.

    Raises:
        UsageError: the file cannot be read, a key is unknown, or a value cannot be planned.
    """
    settings = read_settings(file, "the scenario")
    own = {field for field in ExperimentSpec.__struct_fields__ if field != "scenario"}
    about = {"name": file.stem} | {key: settings.pop(key) for key in own & settings.keys()}
    scenario = convert({"name": about["name"], **settings}, Scenario, str(file))
    spec = convert({**about, "scenario": msgspec.to_builtins(scenario)}, ExperimentSpec, str(file))
    for name, values in {"modes": spec.modes, "rates": spec.rates, "seeds": spec.seeds}.items():
        if not values or len(set(values)) < len(values):
            raise UsageError(f"{file}: {name} is {list(values)}; name each value once.")
    at_idle = (ResetMode.DEFAULT, ResetMode.KEEP)
    if spec.design is Design.AT_IDLE and spec.modes != at_idle:
        raise UsageError(f"{file}: an at_idle design has modes = {[str(m) for m in at_idle]}.")
    if spec.service is not None:
        _check_service(spec, spec.service, file)
    for planned in plan_runs(spec):
        check(planned.plan.scenario)
    return spec


def _check_service(spec: ExperimentSpec, law: ProcessorSharing, file: Path) -> None:
    if spec.design is Design.CAPACITY:
        raise UsageError(f"{file}: a capacity design finds out its service; leave service out.")
    above = [f"{rate:g}" for rate in spec.rates if law.utilisation(rate) >= 1]
    if above:
        raise UsageError(
            f"{file}: rates has {', '.join(above)}, and the capacity by service is 1/b = "
            f"{law.capacity:.2f} req/s; no warm-up is long enough there. Lower the rates, or leave "
            "service out and give warmup and every yourself."
        )
    for rate in spec.rates:  # before planning: just below capacity the rules ask for years of load
        try:
            check(_loaded(spec, rate, spec.seeds[0]))
        except UsageError as error:
            raise UsageError(
                f"{file}: at {rate:g} req/s ρ is {law.utilisation(rate):.2f} by service, and with "
                f"what the rules ask there: {error} Lower the rate, or leave service out."
            ) from None


def plan_runs(spec: ExperimentSpec) -> tuple[PlannedRun, ...]:
    """The runs of ``spec`` in the order they are carried out."""
    return tuple(
        planned
        for rate in spec.rates
        for seed in spec.seeds
        for planned in _block(spec, rate, seed)
    )


def _block(spec: ExperimentSpec, rate: float, seed: int) -> Iterator[PlannedRun]:
    """The runs of one rate and seed: all have the same arrivals and prompts."""
    replace = msgspec.structs.replace
    scenario = _loaded(spec, rate, seed)
    if spec.design is Design.CROSSOVER:
        for turn in range(len(spec.modes)):
            resets = replace(scenario.resets, modes=spec.modes, turn=turn)
            plan = make_plan(replace(scenario, resets=resets))
            yield PlannedRun(f"{rate:g}-{seed}-turn{turn}", plan)
        return
    arms = list(dict.fromkeys((ResetMode.NONE, *spec.modes)))
    rng = stream(seed, Stream.ASSIGNMENT, round(rate * 1000))
    drawn = [arms[arm] for arm in rng.permutation(len(arms))]
    replays = None
    if spec.design is Design.AT_IDLE:
        drawn.sort(key=lambda mode: mode is not ResetMode.DEFAULT)
        replays = f"{rate:g}-{seed}-{ResetMode.DEFAULT}"
    for mode in drawn:
        name = f"{rate:g}-{seed}-{mode}"
        if replays is not None and mode is ResetMode.KEEP:
            none = replace(scenario.resets, mode=ResetMode.NONE)
            yield PlannedRun(name, make_plan(replace(scenario, resets=none)), replays)
        else:
            resets = replace(scenario.resets, mode=mode)
            yield PlannedRun(name, make_plan(replace(scenario, resets=resets)))


def _loaded(spec: ExperimentSpec, rate: float, seed: int) -> Scenario:
    """The scenario of ``spec`` at one rate and seed, no mode dealt yet."""
    replace = msgspec.structs.replace
    scenario = replace(spec.scenario, seed=seed, load=replace(spec.scenario.load, rate=rate))
    return scenario if spec.service is None else settled(scenario, spec.service)


def settled(scenario: Scenario, law: ProcessorSharing) -> Scenario:
    """``scenario`` with at least the warm-up and the spacing that the rules ask of ``law``.

    The measured time grows with the spacing, so that as many resets are planned. Resets at named
    instants stay there.
    """
    replace, load, resets = msgspec.structs.replace, scenario.load, scenario.resets
    latency, rho = law.latency(load.rate), law.utilisation(load.rate)
    spacing = float(math.ceil(settling.spacing(latency, rho)))
    warmup = float(math.ceil(settling.warmup(latency, rho)))
    load = replace(load, warmup=max(load.warmup, warmup))
    if not resets.at and scenario.every < spacing:
        load = replace(load, duration=load.duration * spacing / scenario.every)
        resets = replace(resets, every=spacing)
    return replace(scenario, load=load, resets=resets)


def replayed(plan: Plan, default: Journals) -> Plan | None:
    """``plan`` with a keep reset at each instant at which the run ``default`` cleared.

    The digest is that of ``plan``: it is over arrivals and prompts, and resets are not among them.
    None if that run never cleared.
    """
    replace, warmup = msgspec.structs.replace, plan.scenario.load.warmup
    instants = sorted(
        record.attempts[-1].called - warmup
        for record in default.resets
        if record.outcome is AttemptOutcome.CLEARED and record.attempts
    )
    if not instants:
        return None
    resets = replace(plan.scenario.resets, mode=ResetMode.KEEP, every=None, at=tuple(instants))
    return make_plan(replace(plan.scenario, resets=resets))


def beforehand(spec: ExperimentSpec, planned: tuple[PlannedRun, ...]) -> tuple[str, ...]:
    """What to know of an experiment, planned so, before it is carried out."""
    return (
        *_by_the_law(spec, planned),
        *_closer_than_the_rule(spec, planned),
        *_too_few_draws(spec, planned),
    )


def _by_the_law(spec: ExperimentSpec, planned: tuple[PlannedRun, ...]) -> Iterator[str]:
    """What the service law made of each rate."""
    if spec.service is None:
        return
    for rate, scenario in {
        run.plan.scenario.load.rate: run.plan.scenario for run in planned
    }.items():
        yield (
            f"at {rate:g} req/s ρ is {spec.service.utilisation(rate):.2f} by service: "
            f"{scenario.load.warmup:g} s of warm-up, {scenario.load.duration:g} s measured"
        )


def _closer_than_the_rule(spec: ExperimentSpec, planned: tuple[PlannedRun, ...]) -> Iterator[str]:
    """What to know beforehand about resets that lie closer than the rule."""
    gaps = [
        later.scheduled - earlier.scheduled
        for run in planned
        for earlier, later in pairwise(run.plan.resets)
    ]
    least = min(gaps, default=SPACING_RULE)
    if least < SPACING_RULE and spec.design is not Design.CAPACITY:
        yield (
            f"resets are {least:g} s apart, the rule asks for {SPACING_RULE:g} s or more: the "
            "report says how much load the wipes themselves add"
        )


def _too_few_draws(spec: ExperimentSpec, planned: tuple[PlannedRun, ...]) -> Iterator[str]:
    """Which contrasts of a crossover no outcome could tell, for want of possible draws.

    A test re-randomises what the draw could have been: of the resets at which two runs got the two
    modes in either order, which ones got the first (``analysis.experiment.stats``).
    """
    if spec.design is not Design.CROSSOVER:
        return
    for pair in combinations(spec.modes, 2):
        draws = 1
        for one, other in combinations(planned, 2):
            if one.plan.digest == other.plan.digest:
                orders = list(zip(_modes(one), _modes(other), strict=True))
                first = orders.count(pair)
                draws *= math.comb(first + orders.count(pair[::-1]), first)
        if draws < FEWEST_DRAWS:
            yield (
                f"{pair[0]} and {pair[1]} meet in {draws} possible draws, too few to tell them "
                "apart at 5 %: plan more resets, or a second seed"
            )


def _modes(run: PlannedRun) -> list[ResetMode]:
    return [reset.mode for reset in run.plan.resets]
