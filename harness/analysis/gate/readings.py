"""The figures of a policy, read from the runs of a candidate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise

import numpy as np
import scipy.stats

from harness.analysis.doubt import Severity
from harness.analysis.experiment import crossover, modes, stats
from harness.analysis.experiment.contrast import contrast, failed_share
from harness.analysis.experiment.modes import ResetFigures
from harness.analysis.experiment.pairs import Run
from harness.analysis.experiment.recorded import Recorded
from harness.analysis.experiment.stats import Comparison
from harness.analysis.gate.policy import Arm, Figure, Kind
from harness.analysis.resets import SettledReset, Verification
from harness.journals import RunStatus
from harness.records import AttemptOutcome, ResetMode


@dataclass(frozen=True)
class Observation:
    """A figure at one reset: between ``low`` and ``high``, which are equal where it was told."""

    where: str
    """The reset, for a reader."""
    low: float
    high: float


@dataclass(frozen=True)
class Reading:
    """A figure of a candidate, or why it cannot be told."""

    value: float | None = None
    """The mean over resets, the share, or the estimate."""
    low: float | None = None
    """Ends of its 95 % interval; None for a figure without."""
    high: float | None = None
    observations: tuple[Observation, ...] = ()
    """One a reset, for a figure of resets."""
    left_out: int = 0
    """Resets at which nothing could show it."""
    reason: str | None = None
    """Why there is no value, or none that may be judged."""


@dataclass(frozen=True)
class Candidate:
    """What is gated: the runs of an experiment, or a single one."""

    name: str
    runs: tuple[Recorded, ...]
    experiment: str | None = None
    """Digest of the experiment's specification; None for a single run."""
    missing: tuple[str, ...] = ()
    """Runs that the experiment plans and has not carried out."""

    @cached_property
    def planned(self) -> frozenset[Arm]:
        """The arms that it has."""
        modes = {Arm(mode.value) for run in self.runs for mode in run.planned_modes}
        return frozenset(modes | ({Arm.CONTROL} if modes & {Arm.NONE, Arm.SHAM} else set()))

    @property
    def control(self) -> ResetMode | None:
        """What the others are compared with; None without runs without resets and shams."""
        found = (mode for mode in (Arm.NONE, Arm.SHAM) if mode in self.planned)
        first = next(found, None)
        return None if first is None else ResetMode(first.value)

    @cached_property
    def spacing(self) -> float:
        """Least seconds between planned resets; the longest measured part with fewer than two."""
        plans = [run.journals.manifest.plan for run in self.runs]
        gaps = (b.scheduled - a.scheduled for plan in plans for a, b in pairwise(plan.resets))
        return min(gaps, default=max(plan.scenario.load.duration for plan in plans))

    @cached_property
    def mixed(self) -> bool:
        """Whether runs mix modes: a crossover."""
        return any(len(run.planned_modes) > 1 for run in self.runs)

    def flaws(self) -> Iterator[str]:
        """What keeps the whole from being judged: runs that are missing or cut short."""
        if self.missing:
            yield f"runs not carried out: {', '.join(self.missing)}"
        for run in self.runs:
            status, reason = run.summary.status, run.summary.reason
            if status is not RunStatus.COMPLETE:
                yield f"run {run.name} is {status}" + (f" ({reason})" if reason else "")

    def voids(self) -> Iterator[str]:
        """Warnings that void the times of a run."""
        for run in self.runs:
            for doubt in run.summary.doubts:
                if doubt.severity is Severity.VOID:
                    yield f"run {run.name}: {doubt.text}"

    @cached_property
    def resets(self) -> tuple[tuple[ResetFigures, SettledReset], ...]:
        """Every recorded reset of every run, with what the rest of its run told."""
        return tuple(
            pair for run in self.runs for pair in zip(modes.of_run(run), run.resets, strict=True)
        )

    @cached_property
    def compared(self) -> list[Run]:
        """Its runs as contrasts take them."""
        return [Run.of(r.journals, r.resets, r.name, self.spacing) for r in self.runs]


def readings(candidate: Candidate) -> Callable[[Figure, Arm | None], Reading]:
    """The figures of ``candidate``, each computed once; not those of kind ``RATIO``."""

    @cache
    def read(figure: Figure, arm: Arm | None) -> Reading:
        if arm is Arm.CONTROL and candidate.control is not None:
            arm = Arm(candidate.control.value)
        if figure.kind in (Kind.COUNT, Kind.INDICATOR):
            return _of_resets(candidate, figure, arm)
        if figure is Figure.FAILED_SHARE:
            return _failed(candidate, arm)
        assert figure is Figure.VICTIMS_EXCESS
        assert arm is not None  # the language asks for one
        return _victims(candidate, ResetMode(arm.value))

    return read


def share_interval(successes: int, count: int) -> tuple[float, float]:
    """Clopper and Pearson's exact 95 % interval of a share."""
    found = scipy.stats.binomtest(successes, count).proportion_ci(method="exact")
    return float(found.low), float(found.high)


def _of_resets(candidate: Candidate, figure: Figure, arm: Arm | None) -> Reading:
    chosen = [
        (counts, settled)
        for counts, settled in candidate.resets
        if (counts.mode is not ResetMode.SHAM if arm is None else counts.mode == arm.value)
    ]
    at_each = _AT_EACH[figure]
    found = [(_where(counts), at_each(counts, settled)) for counts, settled in chosen]
    told = tuple(Observation(where, *ends) for where, ends in found if ends is not None)
    left_out = len(found) - len(told)
    if not told:
        why = "no resets" if not found else f"none of {len(found)} resets could show it"
        return Reading(left_out=left_out, reason=why)
    low, high = (
        sum(ends) / len(told) for ends in zip(*((o.low, o.high) for o in told), strict=True)
    )
    value = low if low == high else None
    if figure.kind is Kind.INDICATOR and value is not None:
        low, high = share_interval(round(value * len(told)), len(told))
    return Reading(value, low, high, told, left_out)


def _where(counts: ResetFigures) -> str:
    return f"{counts.run}, reset {counts.id} ({counts.mode} at {counts.at:.0f} s)"


Ends = tuple[float, float]


def _preemptions(counts: ResetFigures, _: SettledReset) -> Ends:
    if counts.preempted is None:
        return 0.0, math.inf
    return float(counts.preempted), float(counts.preempted + (counts.unresolved or 0))


def _preempted_share(counts: ResetFigures, settled: SettledReset) -> Ends | None:
    low, high = _preemptions(counts, settled)
    if counts.running is None:
        return 0.0, math.inf
    if counts.running == 0:
        return None if high == 0 else (math.inf, math.inf)
    return low / counts.running, high / counts.running


def _discarded(counts: ResetFigures, _: SettledReset) -> Ends:
    told = counts.discarded_tokens
    return (0.0, math.inf) if told is None else (float(told), float(told))


def _is(outcome: AttemptOutcome) -> Callable[[ResetFigures, SettledReset], Ends]:
    def at_each(counts: ResetFigures, _: SettledReset) -> Ends:
        seen = float(counts.outcome is outcome)
        return seen, seen

    return at_each


def _cleared_while_running(counts: ResetFigures, _: SettledReset) -> Ends:
    if counts.outcome not in (AttemptOutcome.CLEARED, AttemptOutcome.PARTIAL):
        return 0.0, 0.0
    if counts.running is None:
        # A request of this client in flight may have been on its way and not running yet.
        return 0.0, float(counts.in_flight > 0)
    return float(counts.running > 0), float(counts.running > 0)


def _cached_after(_: ResetFigures, settled: SettledReset) -> Ends | None:
    if settled.verification is Verification.CONTRADICTED:
        return float(settled.leftover_tokens), float(settled.leftover_tokens)
    return (0.0, 0.0) if settled.verification is Verification.CONFIRMED else None


_AT_EACH: Mapping[Figure, Callable[[ResetFigures, SettledReset], Ends | None]] = {
    Figure.PREEMPTIONS: _preemptions,
    Figure.PREEMPTED_SHARE: _preempted_share,
    Figure.DISCARDED: _discarded,
    Figure.CLEARED: _is(AttemptOutcome.CLEARED),
    Figure.REFUSED: _is(AttemptOutcome.REFUSED),
    Figure.IGNORED: _is(AttemptOutcome.IGNORED),
    Figure.CLEARED_WHILE_RUNNING: _cleared_while_running,
    Figure.CACHED_AFTER: _cached_after,
}


def _failed(candidate: Candidate, arm: Arm | None) -> Reading:
    """Of whole runs where runs have one mode, of the requests after a mode's resets where not."""
    if arm is not None and candidate.mixed:
        mode = ResetMode(arm.value)
        if not any((run.resets["mode"] == mode).any() for run in candidate.compared):
            return Reading(reason=f"no {mode} reset took effect")
        return Reading(failed_share(candidate.compared, mode, candidate.spacing))
    runs = [r.summary.volume for r in candidate.runs if arm is None or arm.value in r.planned_modes]
    ended = sum(volume.ended for volume in runs)
    if not ended:
        return Reading(reason="no request ended")
    return Reading(sum(sum(volume.failures.values()) for volume in runs) / ended)


def _victims(candidate: Candidate, mode: ResetMode) -> Reading:
    void = next(candidate.voids(), None)
    if void is not None:
        return Reading(reason=void)
    if candidate.control is None:
        return Reading(reason="there is no control: plan sham resets, or runs without resets")
    if candidate.mixed:
        return _excess_in_crossover(candidate.compared, mode, candidate.control, candidate.spacing)
    trials = crossover.arms(candidate.compared, mode, candidate.control, crossover.victims)
    if np.isnan(trials.outcome).any():
        return Reading(reason=f"in a run of {mode} no reset took effect")
    return _interval(stats.compare(trials))


def _excess_in_crossover(
    runs: Sequence[Run], mode: ResetMode, control: ResetMode, spacing: float
) -> Reading:
    found = contrast(runs, mode, control, spacing)
    if found.void is not None:
        return Reading(found.victims.estimate, reason=found.void)
    return _interval(found.victims)


def _interval(found: Comparison) -> Reading:
    return Reading(found.estimate, found.low, found.high, reason=found.reason)
