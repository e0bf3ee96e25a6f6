"""A baseline: the counts of a run or experiment, small enough to commit, and what made them."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import scipy.stats

import harness
from harness.analysis.doubt import Severity
from harness.analysis.experiment.recorded import Recorded
from harness.analysis.gate.policy import OF_RESETS, Arm, Figure, Kind
from harness.analysis.gate.readings import Candidate, Reading, readings
from harness.errors import UsageError
from harness.journals import RunStatus
from harness.scenario import identity

SCHEMA_VERSION = 1
"""Raised when a field is renamed or changes meaning; adding one does not raise it."""
SEEDS_TO_JUDGE_TIMES = 5
"""Seeds that candidate and baseline must share before a ratio of times is judged."""
_NOT_COMPARED = ("name", "seed", "timeouts")


class BaselineFigure(msgspec.Struct, frozen=True):
    """One figure of one mode."""

    figure: Figure
    mode: Arm | None
    """None for all resets but shams, or all requests."""
    resets: int
    """How many showed it; 0 for a figure of requests."""
    value: float


class BaselineRun(msgspec.Struct, frozen=True):
    """One run's times: what they may be compared with, and means in seconds."""

    name: str
    plan: str
    """SHA-256 of its arrivals, prompts and resets."""
    seed: int
    started_utc: str
    boot: str | None
    """Which boot of which machine carried it out."""
    latency: float | None
    ttft: float | None
    void: bool
    """Whether a warning voids its times."""


class MadeFrom(msgspec.Struct, frozen=True):
    """Where the figures come from."""

    name: str
    experiment: str | None
    """Digest of the experiment's specification."""
    versions: tuple[str, ...]
    """vLLM's own."""
    model: str | None
    device: str | None
    """What a replica of our own ran on."""
    platform: str | None
    cores: int | None
    started_utc: str
    setting: dict[str, Any]
    """Every knob of the plan but the seed, by its dotted name (``setting``)."""


class Baseline(msgspec.Struct, frozen=True):
    """``baseline.json``."""

    schema_version: int
    harness_version: str
    made_from: MadeFrom
    figures: tuple[BaselineFigure, ...]
    runs: tuple[BaselineRun, ...]

    def figure(self, figure: Figure, arm: Arm | None) -> BaselineFigure | None:
        """The figure of an arm; None if it was not told."""
        found = (one for one in self.figures if (one.figure, one.mode) == (figure, arm))
        return next(found, None)


def make(candidate: Candidate) -> Baseline:
    """The baseline that ``candidate`` makes.

    Raises:
        UsageError: a run is missing, was cut short, or has a warning that voids it.
    """
    for flaw in (*candidate.flaws(), *candidate.voids()):
        raise UsageError(
            f"{candidate.name} makes no baseline: {flaw}. Carry it out again, whole and on a "
            "quiet machine."
        )
    return of(candidate)


def of(candidate: Candidate) -> Baseline:
    """The figures of ``candidate``, whatever its flaws."""
    first = candidate.runs[0].journals.manifest
    versions = (run.journals.manifest.server.get("version") for run in candidate.runs)
    return Baseline(
        SCHEMA_VERSION,
        harness.__version__,
        MadeFrom(
            name=candidate.name,
            experiment=candidate.experiment,
            versions=tuple(dict.fromkeys(version for version in versions if version)),
            model=first.server.get("model"),
            device=first.host.get("replica_device"),
            platform=first.host.get("platform"),
            cores=first.host.get("cores"),
            started_utc=first.started_utc,
            setting=setting(candidate.runs),
        ),
        tuple(_figures(candidate)),
        tuple(_run(run) for run in candidate.runs),
    )


def _figures(candidate: Candidate) -> Iterator[BaselineFigure]:
    read = readings(candidate)
    for figure in Figure:
        if figure.kind not in OF_RESETS | {Kind.SHARE}:
            continue
        for arm in (None, *sorted(candidate.planned - {Arm.CONTROL})):
            found = read(figure, arm)
            if found.value is not None and math.isfinite(found.value):
                yield BaselineFigure(figure, arm, len(found.observations), found.value)


def _run(run: Recorded) -> BaselineRun:
    manifest, timings = run.journals.manifest, run.summary.timings
    return BaselineRun(
        name=run.name,
        plan=_plan(run),
        seed=run.summary.seed,
        started_utc=manifest.started_utc,
        boot=manifest.host.get("boot"),
        latency=timings.latency.mean,
        ttft=timings.ttft.mean,
        void=run.summary.status is not RunStatus.COMPLETE
        or any(doubt.severity is Severity.VOID for doubt in run.summary.doubts),
    )


def _plan(run: Recorded) -> str:
    plan = run.journals.manifest.plan
    return hashlib.sha256(msgspec.json.encode([plan.digest, plan.resets])).hexdigest()


def setting(runs: Iterable[Recorded]) -> dict[str, Any]:
    """Every knob of the plans of ``runs`` but the seed; a list of values where runs differ.

    A knob that came later is left out where it is at its default (``scenario.identity``).
    """
    values: dict[str, list[Any]] = defaultdict(list)
    for run in runs:
        scenario = identity(run.journals.manifest.plan.scenario)
        for key, value in _flat({k: v for k, v in scenario.items() if k not in _NOT_COMPARED}):
            if value not in values[key]:
                values[key].append(value)
    return {key: found[0] if len(found) == 1 else found for key, found in values.items()}


def _flat(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield above + key, list(value) if isinstance(value, tuple) else value


def another_plan(candidate: Baseline, baseline: Baseline) -> str | None:
    """Why counts of the two are not comparable, naming the field that differs; None if they are."""
    new, old = candidate.made_from, baseline.made_from
    if new.model != old.model:
        return f"another model: {new.model!r}, the baseline's is {old.model!r}"
    # A knob that only the newer harness has shows in the plans, if it changes anything.
    for key in sorted(new.setting.keys() & old.setting.keys()):
        mine, theirs = new.setting[key], old.setting[key]
        if mine != theirs:
            return f"another plan: {key} is {mine}, the baseline's {theirs}"
    if {run.plan for run in candidate.runs} == {run.plan for run in baseline.runs}:
        return None
    for key in sorted(new.setting.keys() ^ old.setting.keys()):
        whose = "the candidate" if key in new.setting else "the baseline"
        return f"another plan: only {whose} sets {key}, to {(new.setting | old.setting)[key]}"
    seeds = [sorted({run.seed for run in one.runs}) for one in (candidate, baseline)]
    if seeds[0] != seeds[1]:
        return f"another plan: seeds are {seeds[0]}, the baseline's {seeds[1]}"
    return (
        f"another plan: harness {candidate.harness_version} draws other resets or arrivals from "
        f"this scenario than {baseline.harness_version}, which wrote the baseline, or some runs "
        "are missing"
    )


def not_paired(candidate: Baseline, baseline: Baseline) -> str | None:
    """Why times of the two may not be judged, or None.

    They may where both carried out one experiment's specification on one machine in turns, so
    that each seed's runs of both lie together in time.
    """
    new, old = candidate.made_from, baseline.made_from
    if new.experiment is None or new.experiment != old.experiment:
        return "candidate and baseline are not arms of one experiment"
    both = (*candidate.runs, *baseline.runs)
    if any(run.boot is None for run in both) or len({run.boot for run in both}) > 1:
        return "they were not made on one machine without a restart"
    void = [run.name for run in both if run.void]
    if void:
        return f"the times of {void[0]} are void"
    shared = {run.seed for run in candidate.runs} & {run.seed for run in baseline.runs}
    if len(shared) < SEEDS_TO_JUDGE_TIMES:
        return f"seeds in common: {len(shared)}; at least {SEEDS_TO_JUDGE_TIMES} are needed"
    spans = sorted(_span(run for run in both if run.seed == seed) for seed in shared)
    if any(later[0] <= earlier[1] for earlier, later in pairwise(spans)):
        return "their runs were not carried out in turns, seed by seed"
    return None


def _span(runs: Iterable[BaselineRun]) -> tuple[datetime, datetime]:
    instants = [datetime.fromisoformat(run.started_utc) for run in runs]
    return min(instants), max(instants)


def ratio(candidate: Baseline, baseline: Baseline, figure: Figure) -> Reading:
    """Candidate over baseline in a mean time: geometric mean over seeds, and its t interval.

    The unit is a seed: the runs of one seed are averaged before, since they share what the machine
    was like at the time.
    """
    old = {run.plan: _time(run, figure) for run in baseline.runs}
    logs: dict[int, list[float]] = defaultdict(list)
    for run in candidate.runs:
        mine, theirs = _time(run, figure), old.get(run.plan)
        if mine and theirs:
            logs[run.seed].append(math.log(mine / theirs))
    if not logs:
        return Reading(reason="no run of the candidate has the plan of one of the baseline")
    means = np.array([np.mean(found) for found in logs.values()])
    centre = float(means.mean())
    if len(means) < 2:
        return Reading(math.exp(centre))
    error = float(means.std(ddof=1)) / math.sqrt(len(means))
    reach = float(scipy.stats.t.ppf(0.975, len(means) - 1)) * error
    return Reading(math.exp(centre), math.exp(centre - reach), math.exp(centre + reach))


def _time(run: BaselineRun, figure: Figure) -> float | None:
    return run.latency if figure is Figure.LATENCY_RATIO else run.ttft
