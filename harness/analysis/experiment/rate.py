"""Everything about one rate of an experiment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

import msgspec

from harness import settling
from harness.analysis.experiment import (
    aligned,
    audit,
    contrast,
    modes,
    paired,
    precision,
    replay,
    service,
    verdict,
)
from harness.analysis.experiment.aligned import AlignedCurve, Quantity, Trace
from harness.analysis.experiment.at_idle import AtIdle
from harness.analysis.experiment.checks import Check
from harness.analysis.experiment.contrast import Contrast, Price
from harness.analysis.experiment.matchup import Matchup
from harness.analysis.experiment.modes import ModeFigures, ResetFigures
from harness.analysis.experiment.paired import Paired
from harness.analysis.experiment.precision import Need
from harness.analysis.experiment.recorded import Recorded
from harness.analysis.experiment.service import Queue
from harness.analysis.experiment.ttft import TtftExcess
from harness.design import Design
from harness.journals import RunStatus
from harness.records import ResetMode


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
    ttft: tuple[TtftExcess, ...]
    """Beside the prices, in their order; never ranks modes alone."""
    details: tuple[str, ...]
    """Every price and contrast with its interval, a sentence each."""
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


def measure(design: Design, recorded: Sequence[Recorded]) -> RateFindings:
    """What ``recorded``, all runs of one rate, say."""
    controls = [run for run in recorded if run.planned_modes == {ResetMode.NONE}]
    queue = service.measure(controls or recorded)
    matchup = Matchup(design, recorded)
    contrasts, prices = matchup.contrasts(), matchup.prices(queue.relaxation)
    curves, traces = matchup.curves()
    single = design is not Design.CAPACITY  # there hundreds of resets have no window of their own
    return RateFindings(
        rate=recorded[0].rate,
        runs=tuple(_line(run) for run in recorded),
        spacing=matchup.spacing,
        control=matchup.control,
        queue=queue,
        modes=modes.figures(recorded),
        resets=tuple(row for run in recorded for row in modes.of_run(run)) if single else (),
        contrasts=contrasts,
        prices=prices,
        ttft=matchup.ttft(),
        details=verdict.details(prices, contrasts),
        needs=precision.needs(contrasts, prices, queue),
        curves=curves,
        traces=traces,
        last_exits=_last_exits(queue, curves),
        at_idle=replay.compare(recorded, contrast.SHORT_HORIZON)
        if design is Design.AT_IDLE
        else None,
        paired=paired.measure(recorded) if single else (),
        wipe_load=_wipe_load(matchup, queue, prices) if single else None,
        checks=audit.check(recorded, matchup.runs, queue),
        unsaid=tuple(_unsaid(matchup)),
    )


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


def _last_exits(queue: Queue, curves: Sequence[AlignedCurve]) -> tuple[LastExit, ...]:
    level = queue.in_flight
    if not level:
        return ()
    return tuple(
        LastExit(curve.mode, aligned.last_exit(curve, level, contrast.STILL_ABOVE))
        for curve in curves
        if curve.quantity is Quantity.IN_FLIGHT and curve.control is None
    )


def _wipe_load(matchup: Matchup, queue: Queue, prices: Sequence[Price]) -> WipeLoad | None:
    if matchup.spacing is None or queue.latency is None or matchup.design is Design.CAPACITY:
        return None
    rule = settling.spacing(queue.latency, queue.utilisation or 0.0)
    if matchup.spacing >= rule:
        return None
    each = [price.total.estimate for price in prices]
    known = [one for one in each if one is not None]
    wipes = len(known) + (matchup.control is ResetMode.SHAM)
    added = sum(known) / wipes / matchup.spacing if known else None
    if matchup.design is Design.AT_IDLE and matchup.control is not None:
        added = _above_control(matchup.recorded)
    share = added / queue.in_flight if added is not None and queue.in_flight else None
    return WipeLoad(matchup.spacing, rule, added, share)


def _above_control(recorded: Sequence[Recorded]) -> float | None:
    """Mean in flight of the runs with resets beyond that of the controls, requests."""
    levels: dict[bool, list[float]] = {True: [], False: []}
    for run in recorded:
        if run.summary.occupancy is not None:
            levels[run.planned_modes == {ResetMode.NONE}].append(run.summary.occupancy.mean)
    if not (levels[True] and levels[False]):
        return None
    return fmean(levels[False]) - fmean(levels[True])


def _unsaid(matchup: Matchup) -> Iterable[str]:
    planned = {mode for run in matchup.recorded for mode in run.planned_modes}
    if matchup.design in (Design.AT_IDLE, Design.CAPACITY):
        return
    if matchup.horizon is None:
        yield "No reset was planned: these runs are controls and show what noise looks like."
        return
    if matchup.control is None:
        yield (
            "There is no control (no sham, no run without resets): what a wipe costs in itself "
            "cannot be told, only how two modes differ."
        )
    for mode in sorted(planned - {ResetMode.NONE, ResetMode.SHAM}):
        if mode not in matchup.wiping:
            yield f"No {mode} reset took effect: nothing can be said of its cost."
    if len(matchup.wiping) == 1 and matchup.control is None:
        yield f"Only {matchup.wiping[0]} took effect: there is nothing to compare it with."
    if matchup.spacing is not None and matchup.spacing < contrast.SHORT_HORIZON and matchup.wiping:
        drawn = matchup.design is Design.CROSSOVER
        yield (
            f"Resets are {matchup.spacing:g} s apart: the figures over "
            f"{contrast.SHORT_HORIZON:g} s reach into the next reset"
            + (
                ", whose mode was drawn too; that adds noise and no bias."
                if drawn
                else " of the same mode, and hold part of its cost."
            )
        )
    if matchup.design is Design.ARMS and matchup.wiping:
        yield (
            "Each run has one mode, so runs are the units: what differs between two runs may "
            "be the machine's own speed."
        )
