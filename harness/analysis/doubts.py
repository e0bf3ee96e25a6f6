"""Doubts: why not to believe a run's figures, each with its remedy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

import msgspec

from harness.analysis import queueing
from harness.analysis.client import ClientHealth
from harness.analysis.occupancy import Occupancy
from harness.analysis.resets import SettledReset, Verification
from harness.analysis.timings import Timings
from harness.analysis.volume import Volume
from harness.journals import Journals, RunStatus
from harness.records import AttemptOutcome, ResetMode

LAG_P95, LAG_P99 = 0.005, 0.025
"""Seconds of lag above which the client's lateness shows in the figures."""
OVERSHOOT_P99 = 0.010
"""Seconds by which the 20 ms ticker may wake late before the run's times are void."""
CPU_SHARE = 0.85
"""Of one core: a single-threaded client above it queues its own work."""
FAILED_SHARE = 0.01
RESETS_TO_COMPARE = 8
"""Fewer wipes show a shape and cannot carry a comparison."""
DRIFT_ERRORS, DRIFT_SHARE = 3.0, 0.25
"""In flight moved after the warm-up if by more standard errors and by a larger share than this."""
BACKLOG = 2.0
"""Times its mean: in flight at the end of the load above this is a queue that was growing."""


class Severity(StrEnum):
    """What a doubt does to the figures."""

    VOID = "void"
    """Do not use the figures it names."""
    DOUBT = "doubt"
    """Use them with what it says in mind."""


class DoubtCode(StrEnum):
    """Stable names of the doubts."""

    TICKER_LATE = "ticker_late"
    CLIENT_UNWATCHED = "client_unwatched"
    LAG = "lag"
    CLIENT_SATURATED = "client_saturated"
    CAP_BIT = "cap_bit"
    RUN_KILLED = "run_killed"
    RUN_INTERRUPTED = "run_interrupted"
    RUN_FAILED = "run_failed"
    JOURNAL_TORN = "journal_torn"
    NOTHING_MEASURED = "nothing_measured"
    REQUESTS_FAILED = "requests_failed"
    SERVER_UNSAMPLED = "server_unsampled"
    OVERLOADED = "overloaded"
    BACKLOG = "backlog"
    WARMUP_SHORT = "warmup_short"
    WARMUP_UNSETTLED = "warmup_unsettled"
    SPACING_SHORT = "spacing_short"
    RESETS_REFUSED = "resets_refused"
    RESETS_PARTIAL = "resets_partial"
    RESETS_IGNORED = "resets_ignored"
    RESETS_REJECTED = "resets_rejected"
    RESETS_FAILED = "resets_failed"
    RESETS_UNVERIFIED = "resets_unverified"
    FEW_RESETS = "few_resets"
    TOKENS_UNTOLD = "tokens_untold"


class Doubt(msgspec.Struct, frozen=True):
    """One reason for doubt. ``value`` and ``limit`` are what was compared, in seconds or as is."""

    code: DoubtCode
    severity: Severity
    text: str
    remedy: str
    value: float | None = None
    limit: float | None = None


@dataclass(frozen=True)
class Evidence:
    """What doubts are read from."""

    journals: Journals
    volume: Volume
    timings: Timings
    client: ClientHealth
    occupancy: Occupancy | None
    resets: tuple[SettledReset, ...]


def find(evidence: Evidence) -> tuple[Doubt, ...]:
    """All doubts about one run: those that void figures first, else in the order of the codes."""
    kinds = (_about_the_run, _about_the_client, _about_the_load, _about_the_resets)
    found = [doubt for kind in kinds for doubt in kind(evidence)]
    codes = list(DoubtCode)
    return tuple(
        sorted(found, key=lambda one: (one.severity is not Severity.VOID, codes.index(one.code)))
    )


def _doubt(
    code: DoubtCode, text: str, remedy: str, value: float | None = None, limit: float | None = None
) -> Doubt:
    return Doubt(code, Severity.DOUBT, text, remedy, value, limit)


def _void(
    code: DoubtCode, text: str, remedy: str, value: float | None = None, limit: float | None = None
) -> Doubt:
    return Doubt(code, Severity.VOID, text, remedy, value, limit)


def _about_the_run(evidence: Evidence) -> Iterator[Doubt]:
    manifest, volume = evidence.journals.manifest, evidence.volume
    missing = (
        f"{volume.unrecorded:,} of {volume.planned:,} planned requests and "
        f"{volume.resets_unrecorded} of {volume.resets_planned} planned resets left no record"
    )
    reason = f" ({manifest.reason})" if manifest.reason else ""
    again = "Use what was measured as a look; run again for the rest."
    if manifest.status is RunStatus.RUNNING:
        yield _doubt(DoubtCode.RUN_KILLED, f"The run was killed, or still runs: {missing}.", again)
    elif manifest.status is RunStatus.INTERRUPTED:
        yield _doubt(
            DoubtCode.RUN_INTERRUPTED, f"The run was interrupted{reason}: {missing}.", again
        )
    elif manifest.status is RunStatus.FAILED:
        yield _doubt(
            DoubtCode.RUN_FAILED,
            f"The run failed{reason}: {missing}.",
            "Mend the cause (the replica's log, the disk) and run again.",
        )
    if evidence.journals.torn:
        yield _doubt(
            DoubtCode.JOURNAL_TORN,
            f"The last line of {', '.join(evidence.journals.torn)} was cut short and left out.",
            "At most one record a journal is lost; nothing to mend.",
        )
    if evidence.occupancy is None or volume.ended == 0:
        yield _void(
            DoubtCode.NOTHING_MEASURED,
            "No request ended after the warm-up: there are no figures.",
            "Run longer than the warm-up, at a rate that makes requests in it.",
        )


def _about_the_client(evidence: Evidence) -> Iterator[Doubt]:
    late, cpu = evidence.client.overshoot.p99, evidence.client.cpu_share
    if late is None:
        yield _doubt(
            DoubtCode.CLIENT_UNWATCHED,
            "The client's own ticker was not recorded: its times cannot be vouched for.",
            "Keep client.jsonl with the run.",
        )
    elif late > OVERSHOOT_P99:
        yield _void(
            DoubtCode.TICKER_LATE,
            f"The client's ticker woke {_ms(late)} late at p99 (limit {_ms(OVERSHOOT_P99)}): "
            "the machine kept it from running, and every time of this run is void.",
            "Give the client a core of its own or the right to real-time scheduling "
            "(CAP_SYS_NICE), or run it on another machine than the replica.",
            late,
            OVERSHOOT_P99,
        )
    if cpu is not None and cpu > CPU_SHARE:
        yield _doubt(
            DoubtCode.CLIENT_SATURATED,
            f"The client used {cpu:.0%} of one core (limit {CPU_SHARE:.0%}): "
            "its own queue is in the figures.",
            "Lower the rate or the output length, or split the load over several clients.",
            cpu,
            CPU_SHARE,
        )
    yield from _about_lag(evidence)


def _about_lag(evidence: Evidence) -> Iterator[Doubt]:
    cap = evidence.journals.manifest.plan.scenario.load.max_in_flight
    occupancy, lag = evidence.occupancy, evidence.timings.lag
    if cap is not None and occupancy is not None and occupancy.most >= cap:
        yield _doubt(
            DoubtCode.CAP_BIT,
            f"The cap of {cap} in flight was reached: requests waited in this client "
            "(the wait is in TTFT and latency, and in the lag).",
            "Raise or drop --max-in-flight for an open loop.",
            occupancy.most,
            cap,
        )
        return
    if lag.p95 is None or lag.p99 is None or (lag.p95 <= LAG_P95 and lag.p99 <= LAG_P99):
        return
    started = evidence.timings.start_lag.p99 or 0.0
    connecting = started < lag.p99 / 2
    yield _doubt(
        DoubtCode.LAG,
        f"Requests were sent late: lag {_ms(lag.p95)} at p95 and {_ms(lag.p99)} at p99 "
        f"(limits {_ms(LAG_P95)} and {_ms(LAG_P99)})"
        + (", most of it while connecting." if connecting else "."),
        "Read TTFT from sent beside TTFT; bring the client nearer to the server."
        if connecting
        else "Quieten the machine, give the client a core of its own, or lower the rate.",
        lag.p99,
        LAG_P99,
    )


def _about_the_load(evidence: Evidence) -> Iterator[Doubt]:
    volume = evidence.volume
    if volume.failed_share is not None and volume.failed_share > FAILED_SHARE:
        kinds = ", ".join(f"{count} {kind}" for kind, count in volume.failures.items())
        yield _doubt(
            DoubtCode.REQUESTS_FAILED,
            f"{volume.failed_share:.1%} of the requests failed ({kinds}): "
            "latencies are of the others only.",
            "Read the reasons in requests.jsonl and the server's log; lower the rate if it is "
            "overloaded.",
            volume.failed_share,
            FAILED_SHARE,
        )
    if not evidence.journals.server:
        yield _doubt(
            DoubtCode.SERVER_UNSAMPLED,
            "There are no server samples: no check against the server's own counts, and no "
            "memory-pressure preemptions.",
            "Give --metrics-url, an address that serves the replica's /metrics.",
        )
    if volume.without_usage:
        yield _doubt(
            DoubtCode.TOKENS_UNTOLD,
            f"The server did not tell the token count of {volume.without_usage:,} requests; "
            "each of their chunks counts as one token.",
            "Have the server answer stream_options.include_usage.",
        )
    if evidence.occupancy is not None:
        yield from _about_the_queue(evidence, evidence.occupancy)


def _about_the_queue(evidence: Evidence, queue: Occupancy) -> Iterator[Doubt]:
    warmup, rho = evidence.journals.manifest.plan.scenario.load.warmup, queue.utilisation
    if rho is not None and rho >= 1:
        yield _doubt(
            DoubtCode.OVERLOADED,
            f"The load is above what the replica sustains (ρ = {rho:.2f}): its queue has no "
            "steady state, and latency depends on how long the run was.",
            "Lower the rate until ρ is below 0.9.",
            rho,
            1.0,
        )
    elif queue.residence is not None:
        needed = queueing.warmup(queue.residence, rho or 0.0)
        if warmup < needed:
            yield _doubt(
                DoubtCode.WARMUP_SHORT,
                f"The warm-up of {warmup:.0f} s is shorter than the rule's {needed:.0f} s, "
                f"max(60 s, 5 × mean latency/(1 − ρ)){_at_rho(rho)}.",
                f"--warmup {needed:.0f}",
                warmup,
                needed,
            )
    if queue.drift is not None and queue.warmup is not None and queue.undisturbed is not None:
        moved = abs(queue.undisturbed - queue.warmup) / max(queue.warmup, queue.undisturbed)
        if abs(queue.drift) > DRIFT_ERRORS and moved > DRIFT_SHARE:
            yield _doubt(
                DoubtCode.WARMUP_UNSETTLED,
                f"The warm-up had not settled: {queue.warmup:.1f} in flight in its last half, "
                f"{queue.undisturbed:.1f} from its end to the first reset.",
                "Warm up longer; if it goes on moving, the rate is too near capacity.",
                queue.drift,
                DRIFT_ERRORS,
            )
    if queue.at_end > BACKLOG * queue.mean and queue.at_end - queue.mean > 3 * queue.mean**0.5:
        yield _doubt(
            DoubtCode.BACKLOG,
            f"{queue.at_end} requests were in flight when the load ended, {queue.mean:.1f} on "
            "average: those that ended afterwards, the slowest, are in no percentile.",
            "Run longer after the last reset, or at a lower rate.",
            queue.at_end,
            BACKLOG * queue.mean,
        )


def _about_the_resets(evidence: Evidence) -> Iterator[Doubt]:
    resets = [one for one in evidence.resets if one.record.mode is not ResetMode.SHAM]
    for outcome, (code, saying, remedy) in _UNHAPPY.items():
        count = sum(one.record.outcome is outcome for one in resets)
        if count:
            tiers = {one.tier for one in resets if one.record.outcome is outcome and one.tier}
            where = f" (tier: {', '.join(sorted(tiers))})" if tiers else ""
            text = f"{count} of {len(resets)} resets {saying}{where}."
            yield _doubt(code, text, remedy, count, 0)
    unsure = [
        one
        for one in resets
        if one.verification in (Verification.NOT_REPORTED, Verification.NO_EVIDENCE)
    ]
    if unsure:
        silent = any(one.verification is Verification.NOT_REPORTED for one in unsure)
        yield _doubt(
            DoubtCode.RESETS_UNVERIFIED,
            f"{len(unsure)} of {len(resets)} resets are cleared by the server's word alone: "
            + (
                "it does not report cached tokens."
                if silent
                else "no later request showed a prefix gone."
            ),
            "Start the server with --enable-prompt-tokens-details."
            if silent
            else "Leave more time after the reset, or raise the rate.",
            len(unsure),
            0,
        )
    yield from _about_spacing(evidence, resets)


_UNHAPPY = {
    AttemptOutcome.REFUSED: (
        DoubtCode.RESETS_REFUSED,
        "were refused to the end: blocks were held at every attempt",
        "Use --reset-mode keep, or a lower rate; default clears only an idle replica.",
    ),
    AttemptOutcome.PARTIAL: (
        DoubtCode.RESETS_PARTIAL,
        "left something behind: a request hit what should have been gone",
        "Add --reset-external if there is a KV connector; look for a second engine or router.",
    ),
    AttemptOutcome.IGNORED: (
        DoubtCode.RESETS_IGNORED,
        "were not understood: the server did something else",
        "Install the keep-mode plugin where the server runs, and do not use its Rust front end.",
    ),
    AttemptOutcome.REJECTED: (
        DoubtCode.RESETS_REJECTED,
        "were rejected with an HTTP error; requests may have been preempted all the same",
        "See the replies in resets.jsonl; KV connectors with transfers under way make preempt "
        "fail.",
    ),
    AttemptOutcome.FAILED: (
        DoubtCode.RESETS_FAILED,
        "had no usable answer",
        "See the errors in resets.jsonl; check --control-url and timeouts.reset.",
    ),
}


def _about_spacing(evidence: Evidence, resets: list[SettledReset]) -> Iterator[Doubt]:
    wipes = [
        one.record.cleared_at
        for one in resets
        if one.record.outcome in (AttemptOutcome.CLEARED, AttemptOutcome.PARTIAL)
        and one.record.cleared_at is not None
    ]
    if resets and len(wipes) < RESETS_TO_COMPARE:
        yield _doubt(
            DoubtCode.FEW_RESETS,
            f"Wipes that took effect: {len(wipes)}. At least {RESETS_TO_COMPARE} are needed to "
            "compare modes; fewer only show a shape.",
            "Run longer, for more resets.",
            len(wipes),
            RESETS_TO_COMPARE,
        )
    queue = evidence.occupancy
    planned = [
        reset.scheduled
        for reset in evidence.journals.manifest.plan.resets
        if reset.mode is not ResetMode.SHAM
    ]
    if len(planned) < 2 or queue is None or queue.residence is None:
        return
    spacing = min(b - a for a, b in pairwise(planned))
    rho = queue.utilisation
    needed = queueing.reset_spacing(queue.residence, rho or 0.0)
    if spacing < needed:
        yield _doubt(
            DoubtCode.SPACING_SHORT,
            f"Resets are {spacing:.0f} s apart, the rule asks for {needed:.0f} s, "
            f"max(120 s, 10 × mean latency/(1 − ρ)){_at_rho(rho)}: "
            "a wipe may meet a replica that has not recovered from the last.",
            "Lower the rate." if needed == float("inf") else f"--reset-every {needed:.0f}",
            spacing,
            needed,
        )


def _at_rho(rho: float | None) -> str:
    return " (ρ unknown, taken as 0)" if rho is None else f" at ρ = {rho:.2f}"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"
