"""One run in figures: everything that its report shows, computed from its journals."""

from __future__ import annotations

from collections import Counter as Tally

import msgspec

from harness.analysis import (
    client,
    curves,
    doubts,
    idle,
    occupancy,
    preemptions,
    recovery,
    timings,
    volume,
)
from harness.analysis.client import ClientHealth
from harness.analysis.cohorts import effect
from harness.analysis.curves import RecoveryCurve
from harness.analysis.doubt import Doubt
from harness.analysis.doubts import Evidence
from harness.analysis.idle import IdleWindows
from harness.analysis.in_flight import InFlight
from harness.analysis.occupancy import Occupancy
from harness.analysis.period import Period, measured
from harness.analysis.preemptions import MemoryPressure
from harness.analysis.recovery import ResetRecovery
from harness.analysis.resets import SettledReset, settle_with
from harness.analysis.timings import Timings
from harness.analysis.volume import Volume
from harness.journals import Journals, RunStatus
from harness.records import AttemptOutcome, ResetMode


class ResetRow(msgspec.Struct, frozen=True):
    """One reset: what was done, what it did, how latency came back."""

    reset: SettledReset
    recovery: ResetRecovery | None
    """None where nothing took effect."""
    wait: float | None
    """Seconds from the planned instant to when the wipe took effect."""


class RunSummary(msgspec.Struct, frozen=True):
    """Everything a report shows of one run. Times in seconds; None was not observed."""

    scenario: str
    mode: ResetMode
    rate: float
    """Planned arrivals a second."""
    seed: int
    plan_digest: str
    status: RunStatus
    reason: str | None
    period: Period
    volume: Volume
    timings: Timings
    client: ClientHealth
    occupancy: Occupancy | None
    """None without a measured period."""
    idle: IdleWindows
    resets: tuple[ResetRow, ...]
    outcomes: dict[AttemptOutcome, int]
    """Resets by outcome."""
    memory_pressure: MemoryPressure | None
    """Preemptions that no reset caused; None where they cannot be told apart."""
    curves: tuple[RecoveryCurve, ...]
    doubts: tuple[Doubt, ...]
    """Why not to believe the figures, most serious first."""
    warnings: tuple[str, ...]
    """What was noted while running."""


def summarize(journals: Journals) -> RunSummary:
    """Figures of one run, whole or cut short; any of them may be None, none is made up."""
    manifest, plan = journals.manifest, journals.manifest.plan
    rate = plan.scenario.load.rate
    period = measured(journals)
    frame = journals.requests.frame
    in_flight = InFlight.from_stamps(frame["sent"], frame["finished"])
    attributed = preemptions.attribute(journals)
    settled = settle_with(journals, attributed.resets)
    effects = [at for reset in settled if (at := effect(reset)) is not None]
    evidence = Evidence(
        journals=journals,
        volume=volume.measure(journals, period),
        timings=timings.measure(journals.requests, period),
        client=client.measure(journals.client, period),
        occupancy=occupancy.measure(journals, in_flight, effects, period),
        resets=settled,
    )
    return RunSummary(
        scenario=plan.scenario.name,
        mode=plan.scenario.resets.mode,
        rate=rate,
        seed=plan.scenario.seed,
        plan_digest=plan.digest,
        status=manifest.status,
        reason=manifest.reason,
        period=period,
        volume=evidence.volume,
        timings=evidence.timings,
        client=evidence.client,
        occupancy=evidence.occupancy,
        idle=idle.measure(in_flight, period, plan.scenario.poisson_rate),
        resets=tuple(
            ResetRow(reset, recovered, _wait(reset))
            for reset, recovered in zip(
                settled, recovery.recoveries(journals, settled), strict=True
            )
        ),
        outcomes=dict(Tally(reset.record.outcome for reset in settled)),
        memory_pressure=attributed.memory_pressure,
        curves=curves.draw(journals, settled),
        doubts=doubts.find(evidence),
        warnings=manifest.warnings,
    )


def _wait(reset: SettledReset) -> float | None:
    cleared = reset.record.cleared_at
    return None if cleared is None else cleared - reset.record.scheduled
