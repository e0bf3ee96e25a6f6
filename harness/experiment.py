"""Several runs in an interleaved order on one replica -> one experiment folder.

A *crossover* run gives each planned reset its mode by a balanced draw; the runs of a block mirror
one draw, so that every planned reset sees every mode. *Arms* give each run one mode, beside a
control with the same plan; their order is drawn anew in each block of one rate and seed. *At idle*,
the keep arm comes after the default arm and replays the instants at which that one cleared.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from itertools import combinations, pairwise
from pathlib import Path
from time import monotonic

import msgspec

import harness
from harness.design import Design
from harness.errors import JournalError, UsageError
from harness.interruption import Interruptions
from harness.journals import SCHEMA_VERSION, Journals, RunStatus
from harness.load.arrivals import Stream, stream
from harness.measurement import Ending
from harness.plan import Plan, make_plan
from harness.records import AttemptOutcome, ResetMode
from harness.replica.process import ReplicaSpec
from harness.run import Run, Watcher, until_signalled
from harness.scenario import SPACING_RULE, Scenario, identity
from harness.server import Server, open_server
from harness.settings import check, convert, read_settings
from harness.store import MANIFEST, RunFolder, read_manifest, read_run
from harness.target import Target

EXPERIMENT = "experiment.json"


class ExperimentSpec(msgspec.Struct, frozen=True):
    """What an experiment runs: every combination of rates and seeds, in the given design."""

    name: str
    scenario: Scenario
    design: Design = Design.CROSSOVER
    modes: tuple[ResetMode, ...] = (ResetMode.SHAM, ResetMode.PREEMPT, ResetMode.KEEP)
    rates: tuple[float, ...] = (4.0,)
    """Mean arrivals a second."""
    seeds: tuple[int, ...] = (1,)


FEWEST_DRAWS = 40
"""Fewer possible draws than this cannot reject at 5 % on both sides."""


class PlannedRun(msgspec.Struct, frozen=True):
    """One run of an experiment; ``name`` is its folder."""

    name: str
    plan: Plan
    replays: str | None = None
    """Name of a default run before it: ``plan`` has no resets until that one's are known."""


class ExperimentManifest(msgspec.Struct, frozen=True):
    """``experiment.json``."""

    schema_version: int
    harness_version: str
    spec: ExperimentSpec
    digest: str
    """SHA-256 of the specification: a folder is only gone on with by the one that began it."""
    runs: tuple[str, ...]
    """Names of the runs, in their order."""


def read_experiment(file: Path) -> ExperimentSpec:
    """The experiment in ``file``: a scenario with ``design``, ``modes``, ``rates``, ``seeds``.

    Raises:
        UsageError: the file cannot be read, a key is unknown, or a value cannot be planned.
    """
    settings = read_settings(file)
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
    for planned in plan_runs(spec):
        check(planned.plan.scenario)
    return spec


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
    scenario = replace(spec.scenario, seed=seed, load=replace(spec.scenario.load, rate=rate))
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


def carry_out(
    spec: ExperimentSpec,
    where: Target | ReplicaSpec,
    out: Path,
    watcher: Watcher,
    most: int | None = None,
) -> Ending:
    """Carry out what is left of ``spec`` in the folder ``out``, one run after the other.

    Runs that are complete are not repeated; one that was cut short is set aside and run again. The
    first run that does not complete ends the experiment, and a later call goes on from there; so
    does one after ``most`` runs, if given.

    Raises:
        UsageError: ``out`` belongs to another experiment, or to this one with other settings.
        JournalError: ``out`` cannot be written.
    """
    planned = plan_runs(spec)
    _claim(spec, planned, out)
    left = [
        run
        for run in planned
        if not _is_complete(out / run.name) and not _nothing_to_replay(run, out)
    ]
    watcher.say(f"{len(planned)} runs, {len(planned) - len(left)} of them done before")
    for line in beforehand(spec, planned):
        watcher.say(line)
    left = left[:most]
    if not left:
        return Ending(RunStatus.COMPLETE, measured=True)

    async def all_runs(interruptions: Interruptions) -> Ending:
        log = _free_name(out / "vllm.log")
        async with open_server(where, log, watcher.say) as server:
            return await _run_all(left, out, server, watcher, interruptions)

    return until_signalled(all_runs)


def _nothing_to_replay(planned: PlannedRun, out: Path) -> bool:
    """Whether the default run that ``planned`` is to replay is over and never cleared."""
    if planned.replays is None or not _is_complete(out / planned.replays):
        return False
    return replayed(planned.plan, read_run(out / planned.replays)) is None


def beforehand(spec: ExperimentSpec, planned: tuple[PlannedRun, ...]) -> tuple[str, ...]:
    """What to know of an experiment, planned so, before it is carried out."""
    return (*_closer_than_the_rule(spec, planned), *_too_few_draws(spec, planned))


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


async def _run_all(
    runs: list[PlannedRun],
    out: Path,
    server: Server,
    watcher: Watcher,
    interruptions: Interruptions,
) -> Ending:
    ending = Ending(RunStatus.COMPLETE, measured=True)
    began, load = monotonic(), sum(run.plan.end for run in runs)
    done = 0.0
    for number, planned in enumerate(runs, 1):
        # Until a run has shown what preparing and draining cost, its load is all that is known.
        pace = (monotonic() - began) / done if done else 1.0
        left = (load - done) * pace / 60
        watcher.say(f"run {number} of {len(runs)}: {planned.name}; about {left:.0f} min left")
        path = out / planned.name
        plan: Plan | None = planned.plan
        if planned.replays is not None:
            plan = replayed(planned.plan, read_run(out / planned.replays))
        if plan is None:
            watcher.say(f"{planned.name}: {planned.replays} never cleared; nothing to replay")
            done += planned.plan.end
            continue
        if path.exists():
            path.rename(_free_name(out / f"{planned.name}-cut-short"))
        folder = RunFolder(path)
        try:
            run = Run(plan, folder, watcher)
            ending = await run.carry_out(server, interruptions)
        finally:
            folder.close()
        if ending.status is not RunStatus.COMPLETE:
            break
        done += planned.plan.end
    return ending


def _claim(spec: ExperimentSpec, planned: tuple[PlannedRun, ...], out: Path) -> None:
    """Make ``out`` the folder of ``spec``, or check that it is."""
    digest = hashlib.sha256(msgspec.json.encode(identity(spec))).hexdigest()
    file = out / EXPERIMENT
    if file.exists():
        found = read_experiment_manifest(out)
        if found.digest != digest:
            raise UsageError(
                f"{out} was begun with other settings of {found.spec.name!r}; runs of two "
                "settings are not mixed. Give another --out, or restore the scenario."
            )
        return
    manifest = ExperimentManifest(
        SCHEMA_VERSION, harness.__version__, spec, digest, tuple(run.name for run in planned)
    )
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise UsageError(f"{out} is not empty and is no experiment; give another --out.")
        file.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
    except OSError as error:
        raise JournalError(f"cannot write {out}: {error.strerror}. Give another --out.") from None


def read_experiment_manifest(out: Path) -> ExperimentManifest:
    """The manifest of the experiment in ``out``.

    Raises:
        JournalError: there is none, or it cannot be read.
    """
    file = out / EXPERIMENT
    try:
        return msgspec.json.decode(file.read_bytes(), type=ExperimentManifest)
    except OSError as error:
        raise JournalError(f"{file}: {error.strerror}. Give the folder of an experiment.") from None
    except msgspec.DecodeError as error:
        raise JournalError(f"{file} is not an experiment's manifest: {error}.") from None


def recorded_runs(out: Path) -> tuple[dict[str, Path], tuple[str, ...]]:
    """Folders of the runs of the experiment in ``out`` that began, and names of those to come.

    A replay of a default run that never cleared is neither: it has nothing to do.

    Raises:
        JournalError: ``out`` is no experiment.
    """
    manifest = read_experiment_manifest(out)
    begun = {name: out / name for name in manifest.runs if (out / name / MANIFEST).exists()}
    left = [name for name in manifest.runs if name not in begun]
    if left and manifest.spec.design is Design.AT_IDLE:
        idle = {run.name for run in plan_runs(manifest.spec) if _nothing_to_replay(run, out)}
        left = [name for name in left if name not in idle]
    return begun, tuple(left)


def _is_complete(path: Path) -> bool:
    return (path / MANIFEST).exists() and read_manifest(path).status is RunStatus.COMPLETE


def _free_name(path: Path) -> Path:
    """``path``, or the first of ``path-2``, ``path-3`` ... that does not exist."""
    candidate, number = path, 1
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate
