"""What an experiment found: everything its report shows, computed from the journals of its runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise

import msgspec
import numpy as np

from harness.analysis import (
    aligned,
    arms,
    audit,
    capacity,
    contrast,
    modes,
    paired,
    pairs,
    precision,
    queueing,
    replay,
    service,
    verdict,
)
from harness.analysis.aligned import AlignedCurve, Quantity, Sampler, Trace
from harness.analysis.at_idle import AtIdle
from harness.analysis.capacity import Capacity
from harness.analysis.checks import Check
from harness.analysis.contrast import Contrast, Price
from harness.analysis.doubt import Doubt, DoubtCode, Severity
from harness.analysis.modes import ModeFigures, ResetFigures
from harness.analysis.paired import Paired
from harness.analysis.pairs import Pair, Run
from harness.analysis.precision import Need
from harness.analysis.recorded import Recorded
from harness.analysis.service import Queue
from harness.design import Design
from harness.journals import RunStatus
from harness.records import ResetMode
from harness.scenario import SPACING_RULE


class RunLine(msgspec.Struct, frozen=True):
    """One run in a line."""

    name: str
    modes: tuple[ResetMode, ...]
    seed: int
    digest: str
    """Of its plan: equal digests sent equal requests at equal instants."""
    status: RunStatus
    reason: str | None
    requests: int
    """Sent in the measured period."""
    failed_share: float | None
    latency: float | None
    """Mean, seconds."""
    ttft: float | None
    """Mean, seconds."""
    in_flight: float | None
    """Mean."""
    lag_p99: float | None
    """The client's own lateness, seconds."""


class RunDoubt(msgspec.Struct, frozen=True):
    """A doubt, in the words of the first run that has it, and all runs that have it."""

    doubt: Doubt
    runs: tuple[str, ...]


class LastExit(msgspec.Struct, frozen=True):
    """When the number in flight was last far from the control's level; that of a sham is noise."""

    mode: ResetMode
    seconds: float | None
    """Since the wipe; None if it was not back within the spacing."""


class WipeLoad(msgspec.Struct, frozen=True):
    """What the wipes themselves add to the load, where they lie closer than the rule."""

    spacing: float
    """Seconds between resets."""
    rule: float
    """max(120 s, 10 × mean latency/(1 − ρ)), seconds."""
    added: float | None
    """Requests in flight that the wipes add on average; None without a control."""
    share: float | None
    """The same as a share of what is in flight undisturbed."""


class RateFindings(msgspec.Struct, frozen=True):
    """Everything about one rate. A list is empty where the runs cannot tell."""

    rate: float
    """Planned arrivals a second."""
    runs: tuple[RunLine, ...]
    spacing: float | None
    """Seconds between planned resets; None without two."""
    control: ResetMode | None
    """What wipes are compared with: a sham, runs without resets (NONE), or nothing."""
    queue: Queue
    modes: tuple[ModeFigures, ...]
    resets: tuple[ResetFigures, ...]
    contrasts: tuple[Contrast, ...]
    prices: tuple[Price, ...]
    needs: tuple[Need, ...]
    """How many more units the wanted precision would take."""
    curves: tuple[AlignedCurve, ...]
    traces: tuple[Trace, ...]
    last_exits: tuple[LastExit, ...]
    at_idle: AtIdle | None
    paired: tuple[Paired, ...]
    """Runs of one plan against each other: how much noise there is between runs."""
    wipe_load: WipeLoad | None
    checks: tuple[Check, ...]
    unsaid: tuple[str, ...]
    """What cannot be said of this rate, and why."""


class Findings(msgspec.Struct, frozen=True):
    """Everything an experiment's report shows. Times in seconds; None was not observed."""

    name: str
    design: Design
    question: str
    verdict: str
    """In a sentence a rate."""
    details: tuple[str, ...]
    """Every price and contrast with its interval, a sentence each."""
    rates: tuple[RateFindings, ...]
    capacity: Capacity | None
    """Of a capacity experiment."""
    doubts: tuple[RunDoubt, ...]
    """Why not to believe the figures, those that void some first."""
    warnings: tuple[str, ...]
    """What was noted while running."""
    missing: tuple[str, ...]
    """Planned runs that left no folder."""
    server: dict[str, str]
    """What the first run's server said of itself."""


def find(
    name: str, recorded: Sequence[Recorded], design: Design, missing: Sequence[str] = ()
) -> Findings:
    """Everything that the runs of one experiment say.

    Args:
        name: of the experiment.
        recorded: its runs; any may be cut short.
        design: how modes were dealt.
        missing: names of planned runs without a folder.
    """
    rates = tuple(
        _Rate(design, [run for run in recorded if run.rate == rate]).findings()
        for rate in sorted({run.rate for run in recorded})
    )
    found = capacity.measure(recorded) if design is Design.CAPACITY else None
    expected = _MEANT if design is Design.CAPACITY else frozenset()
    doubts = tuple(_doubts(recorded, expected | {DoubtCode.FEW_RESETS}))
    notes = dict.fromkeys(note for run in recorded for note in run.summary.warnings)
    return Findings(
        name=name,
        design=design,
        question=verdict.question(design, rates),
        verdict=verdict.sentence(design, rates, found, _voided(doubts)),
        details=verdict.details(rates),
        rates=rates,
        capacity=found,
        doubts=doubts,
        warnings=tuple(notes),
        missing=tuple(missing),
        server=_server(recorded),
    )


def design_of(recorded: Sequence[Recorded]) -> Design:
    """The design that runs without an experiment's manifest have."""
    crossed = any(len(run.planned_modes) > 1 for run in recorded)
    return Design.CROSSOVER if crossed else Design.ARMS


@dataclass(frozen=True)
class _Rate:
    """All runs of one rate."""

    design: Design
    recorded: Sequence[Recorded]

    def findings(self) -> RateFindings:
        prices = self._prices()
        contrasts = self._contrasts()
        curves, traces = self._curves()
        return RateFindings(
            rate=self.recorded[0].rate,
            runs=tuple(_line(run) for run in self.recorded),
            spacing=self.spacing,
            control=self.control,
            queue=self.queue,
            modes=modes.figures(self.recorded),
            resets=()
            if self.design is Design.CAPACITY
            else tuple(row for run in self.recorded for row in modes.of_run(run)),
            contrasts=contrasts,
            prices=prices,
            needs=precision.needs(contrasts, prices, self.queue),
            curves=curves,
            traces=traces,
            last_exits=self._last_exits(curves),
            at_idle=replay.compare(self.recorded, contrast.SHORT_HORIZON)
            if self.design is Design.AT_IDLE
            else None,
            paired=() if self.design is Design.CAPACITY else paired.measure(self.recorded),
            wipe_load=self._wipe_load(prices),
            checks=audit.check(self.recorded, self.runs, self.queue),
            unsaid=tuple(self._unsaid()),
        )

    @cached_property
    def queue(self) -> Queue:
        """Of the controls, where there are any; else of all runs between their wipes."""
        controls = [run for run in self.recorded if run.planned_modes == {ResetMode.NONE}]
        return service.measure(controls or self.recorded)

    @cached_property
    def spacing(self) -> float | None:
        """Least time between two planned resets of one run."""
        planned = [
            [r.scheduled for r in run.journals.manifest.plan.resets] for run in self.recorded
        ]
        gaps = [b - a for instants in planned for a, b in pairwise(instants)]
        return min(gaps, default=None)

    @cached_property
    def horizon(self) -> float | None:
        """H of a whole wipe's price: the spacing, or what is measured after an only reset."""
        if self.spacing is not None:
            return self.spacing
        ends = [
            run.summary.period.end - reset.scheduled
            for run in self.recorded
            for reset in run.journals.manifest.plan.resets
        ]
        return min((end for end in ends if end > 0), default=None)

    @cached_property
    def control(self) -> ResetMode | None:
        planned = {mode for run in self.recorded for mode in run.planned_modes}
        wanted = ResetMode.SHAM if self.design is Design.CROSSOVER else ResetMode.NONE
        return wanted if wanted in planned else None

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """The runs as contrasts see them; none without a reset, or in other designs."""
        if self.horizon is None or self.design in (Design.AT_IDLE, Design.CAPACITY):
            return ()
        found: list[Run] = []
        for run in self.recorded:
            if run.summary.period.length <= 0:
                continue
            block = self._block(run, found)
            one = Run.of(run.journals, run.resets, run.name, self.horizon, block=block)
            if len(one.resets) or run.planned_modes == {ResetMode.NONE}:
                found.append(one)
        return tuple(found)

    def _block(self, run: Recorded, before: Sequence[Run]) -> str:
        """Runs that replay one plan; of several experiments, or with a mode again, apart."""
        digest = run.summary.plan_digest
        if self.design is Design.CROSSOVER:
            return f"{digest}#{run.source}" if run.source else digest
        modes = set(run.planned_modes)
        again = sum(
            one.block.partition("#")[0] == digest and {one.mode()} == modes for one in before
        )
        return f"{digest}#{again}" if again else digest

    @cached_property
    def wiping(self) -> list[ResetMode]:
        """Modes that took effect at least once, in order; the control is none of them."""
        seen = {ResetMode(mode) for run in self.runs for mode in run.resets["mode"]}
        return [mode for mode in ResetMode if mode in seen and mode is not self.control]

    def _contrasts(self) -> tuple[Contrast, ...]:
        if self.horizon is None:
            return ()
        found = []
        for first, second in combinations(sorted(self.wiping, key=_dearest_first), 2):
            if self.design is Design.CROSSOVER:
                found.append(contrast.contrast(self.runs, first, second, self.horizon))
            elif self.control is not None:
                told = arms.compare(self.runs, first, second, self.horizon)
                found.append(self._against_noise(told))
        return tuple(found)

    def _against_noise(self, found: Contrast) -> Contrast:
        """``found``, void where two controls of one plan drift apart by half of the effect."""
        drift, effect = paired.control_noise(self.runs), found.short.estimate
        if found.void or drift is None or effect is None or drift <= abs(effect) / 2:
            return found
        why = (
            f"two runs without resets drifted apart by {drift:.1f} request-seconds a window, more "
            f"than half of the effect of {abs(effect):.1f}; compare within a run (crossover)"
        )
        return msgspec.structs.replace(found, void=why)

    def _prices(self) -> tuple[Price, ...]:
        if self.horizon is None or self.control is None:
            return ()
        found = []
        for mode in self.wiping:
            if self.design is Design.CROSSOVER:
                relaxation = self.queue.relaxation
                found.append(contrast.price(self.runs, mode, self.horizon, relaxation))
            else:
                found.append(arms.price(self.runs, mode, self.horizon, self.queue.relaxation))
        return tuple(found)

    def _curves(self) -> tuple[tuple[AlignedCurve, ...], tuple[Trace, ...]]:
        if self.horizon is None or not self.runs:
            return (), ()
        edges = aligned.bins(self.recorded[0].rate, self.horizon)
        named = {run.name: run for run in self.recorded}
        samplers = {run.name: Sampler(named[run.name], edges) for run in self.runs}
        alone = {mode: self._alone(mode) for mode in [*self.wiping, ResetMode.SHAM]}
        raw = aligned.curves(alone, None, samplers, edges)
        found = raw
        if self.control is not None:
            beside = {mode: self._beside(mode) for mode in self.wiping}
            found = (*aligned.curves(beside, self.control, samplers, edges), *raw)
        return found, aligned.traces(self.runs, samplers, edges)

    def _beside(self, mode: ResetMode) -> list[Pair]:
        if self.design is Design.CROSSOVER:
            return [p for p in pairs.pairs(self.runs, mode, ResetMode.SHAM) if p.right is not None]
        return arms.pairs(self.runs, mode)

    def _alone(self, mode: ResetMode) -> list[Pair]:
        """Every reset of a mode by itself."""
        found = []
        for run in self.runs:
            ids = run.resets.index[run.resets["mode"] == mode].to_numpy(np.int64)
            if len(ids):
                found.append(Pair(run, None, ids, np.ones(len(ids), bool)))
        return found

    def _last_exits(self, curves: Sequence[AlignedCurve]) -> tuple[LastExit, ...]:
        level = self.queue.in_flight
        if not level:
            return ()
        return tuple(
            LastExit(curve.mode, aligned.last_exit(curve, level, contrast.STILL_ABOVE))
            for curve in curves
            if curve.quantity is Quantity.IN_FLIGHT and curve.control is None
        )

    def _wipe_load(self, prices: Sequence[Price]) -> WipeLoad | None:
        queue = self.queue
        if self.spacing is None or queue.latency is None or self.design is Design.CAPACITY:
            return None
        rule = queueing.reset_spacing(queue.latency, queue.utilisation or 0.0)
        if self.spacing >= max(rule, SPACING_RULE):
            return None
        each = [price.total.estimate for price in prices]
        known = [one for one in each if one is not None]
        wipes = len(known) + (self.control is ResetMode.SHAM)
        added = sum(known) / wipes / self.spacing if known else None
        share = added / queue.in_flight if added is not None and queue.in_flight else None
        return WipeLoad(self.spacing, rule, added, share)

    def _unsaid(self) -> Iterable[str]:
        planned = {mode for run in self.recorded for mode in run.planned_modes}
        if self.design in (Design.AT_IDLE, Design.CAPACITY):
            return
        if self.horizon is None:
            yield "No reset was planned: these runs are controls and show what noise looks like."
            return
        if self.control is None:
            yield (
                "There is no control (no sham, no run without resets): what a wipe costs in itself "
                "cannot be told, only how two modes differ."
            )
        for mode in sorted(planned - {ResetMode.NONE, ResetMode.SHAM}):
            if mode not in self.wiping:
                yield f"No {mode} reset took effect: nothing can be said of its cost."
        if len(self.wiping) == 1 and self.control is None:
            yield f"Only {self.wiping[0]} took effect: there is nothing to compare it with."
        if self.spacing is not None and self.spacing < contrast.SHORT_HORIZON and self.wiping:
            yield (
                f"Resets are {self.spacing:g} s apart: the figures over "
                f"{contrast.SHORT_HORIZON:g} s reach into the next reset, whose mode was drawn "
                "independently; that adds noise and no bias."
            )
        if self.design is Design.ARMS and self.wiping:
            yield (
                "Each run has one mode, so runs are the units: what differs between two runs may "
                "be the machine's own speed."
            )


_DEAREST = (ResetMode.PREEMPT, ResetMode.KEEP, ResetMode.DEFAULT, ResetMode.SHAM)


def _dearest_first(mode: ResetMode) -> int:
    return _DEAREST.index(mode)


def _line(run: Recorded) -> RunLine:
    summary = run.summary
    return RunLine(
        name=run.name,
        modes=tuple(mode for mode in ResetMode if mode in run.planned_modes),
        seed=summary.seed,
        digest=summary.plan_digest,
        status=summary.status,
        reason=summary.reason,
        requests=summary.volume.sent,
        failed_share=summary.volume.failed_share,
        latency=summary.timings.latency.mean,
        ttft=summary.timings.ttft.mean,
        in_flight=summary.occupancy.mean if summary.occupancy else None,
        lag_p99=summary.timings.lag.p99,
    )


_MEANT = frozenset(
    {
        DoubtCode.BACKLOG,
        DoubtCode.OVERLOADED,
        DoubtCode.SPACING_SHORT,
        DoubtCode.WARMUP_SHORT,
        DoubtCode.WARMUP_UNSETTLED,
    }
)
"""Doubts about what a capacity experiment does on purpose."""


def _doubts(recorded: Sequence[Recorded], without: frozenset[DoubtCode]) -> Iterable[RunDoubt]:
    """Doubts of all runs, one a kind; how many resets are enough is said of all runs together."""
    found: dict[DoubtCode, list[tuple[Doubt, str]]] = {}
    for run in recorded:
        for one in run.summary.doubts:
            if one.code not in without:
                found.setdefault(one.code, []).append((one, run.name))
    for severity in (Severity.VOID, Severity.DOUBT):
        for each in found.values():
            if each[0][0].severity is severity:
                yield RunDoubt(each[0][0], tuple(name for _, name in each))


def _voided(doubts: Iterable[RunDoubt]) -> list[str]:
    return [one.doubt.text for one in doubts if one.doubt.severity is Severity.VOID]


def _server(recorded: Sequence[Recorded]) -> dict[str, str]:
    for run in recorded:
        server = run.journals.manifest.server
        told = {key: server[key] for key in ("version", "model") if server.get(key)}
        if told:
            return {key: str(value) for key, value in told.items()}
    return {}
