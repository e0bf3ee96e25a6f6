"""Doubts: why not to believe a run's figures, each with its remedy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness import settling
from harness.analysis import reset_doubts
from harness.analysis.client import ClientHealth
from harness.analysis.doubt import Doubt, DoubtCode, Severity, at_rho, doubt, void
from harness.analysis.occupancy import Occupancy
from harness.analysis.resets import SettledReset
from harness.analysis.timings import Timings
from harness.analysis.volume import Volume
from harness.journals import Journals, RunStatus

LAG_P95, LAG_P99 = 0.005, 0.025
"""Seconds of lag above which the client's lateness shows in the figures."""
OVERSHOOT_P99 = 0.010
"""Seconds by which the 20 ms ticker may wake late before the run's times are void."""
CPU_SHARE = 0.85
"""Of one core: a single-threaded client above it queues its own work."""
FAILED_SHARE = 0.01
DRIFT_ERRORS, DRIFT_SHARE = 3.0, 0.25
"""In flight moved after the warm-up if by more standard errors and by a larger share than this."""
BACKLOG = 1.5
"""Times its mean: in flight at the end of the load above this is a queue that was growing."""


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
    plan = evidence.journals.manifest.plan
    found = [
        *_about_the_run(evidence),
        *_about_the_client(evidence),
        *_about_the_load(evidence),
        *reset_doubts.find(plan, evidence.resets, evidence.occupancy),
    ]
    codes = list(DoubtCode)
    return tuple(
        sorted(found, key=lambda one: (one.severity is not Severity.VOID, codes.index(one.code)))
    )


def _about_the_run(evidence: Evidence) -> Iterator[Doubt]:
    manifest, volume = evidence.journals.manifest, evidence.volume
    missing = (
        f"{volume.unrecorded:,} of {volume.planned:,} planned requests and "
        f"{volume.resets_unrecorded} of {volume.resets_planned} planned resets left no record"
    )
    reason = f" ({manifest.reason})" if manifest.reason else ""
    again = "Use what was measured as a look; run again for the rest."
    if manifest.status is RunStatus.RUNNING:
        yield doubt(DoubtCode.RUN_KILLED, f"The run was killed, or still runs: {missing}.", again)
    elif manifest.status is RunStatus.INTERRUPTED:
        yield doubt(
            DoubtCode.RUN_INTERRUPTED, f"The run was interrupted{reason}: {missing}.", again
        )
    elif manifest.status is RunStatus.FAILED:
        yield doubt(
            DoubtCode.RUN_FAILED,
            f"The run failed{reason}: {missing}.",
            "Mend the cause (the replica's log, the disk) and run again.",
        )
    if evidence.journals.torn:
        yield doubt(
            DoubtCode.JOURNAL_TORN,
            f"The last line of {', '.join(evidence.journals.torn)} was cut short and left out.",
            "At most one record a journal is lost; nothing to mend.",
        )
    if evidence.occupancy is None or volume.ended == 0:
        yield void(
            DoubtCode.NOTHING_MEASURED,
            "No request ended in the measured period: latency and recovery say nothing.",
            "Run longer than the warm-up; if requests hang, lower the rate.",
        )


def _about_the_client(evidence: Evidence) -> Iterator[Doubt]:
    late, cpu = evidence.client.overshoot.p99, evidence.client.cpu_share
    if late is None:
        yield doubt(
            DoubtCode.CLIENT_UNWATCHED,
            "The client's own ticker was not recorded: its times cannot be vouched for.",
            "Keep client.jsonl with the run.",
        )
    elif late > OVERSHOOT_P99:
        yield void(
            DoubtCode.TICKER_LATE,
            f"The client's ticker woke {_ms(late)} late at p99 (limit {_ms(OVERSHOOT_P99)}): "
            "the machine kept it from running, and every time of this run is void.",
            "Give the client a core of its own or the right to real-time scheduling "
            "(CAP_SYS_NICE), or run it on another machine than the replica.",
            late,
            OVERSHOOT_P99,
        )
    if cpu is not None and cpu > CPU_SHARE:
        yield doubt(
            DoubtCode.CLIENT_SATURATED,
            f"The client used {cpu:.0%} of one core (limit {CPU_SHARE:.0%}): "
            "its own queue is in the figures.",
            "Send it from more processes (--processes), or lower the rate or the output length.",
            cpu,
            CPU_SHARE,
        )
    yield from _about_lag(evidence)


def _about_lag(evidence: Evidence) -> Iterator[Doubt]:
    cap = evidence.journals.manifest.plan.scenario.load.max_in_flight
    occupancy, lag = evidence.occupancy, evidence.timings.lag
    if cap is not None and occupancy is not None and occupancy.most >= cap:
        yield doubt(
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
    yield doubt(
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
        yield doubt(
            DoubtCode.REQUESTS_FAILED,
            f"{volume.failed_share:.1%} of the requests failed ({kinds}): "
            "latencies are of the others only.",
            "Read the reasons in requests.jsonl and the server's log; lower the rate if it is "
            "overloaded.",
            volume.failed_share,
            FAILED_SHARE,
        )
    if not evidence.journals.server:
        yield doubt(
            DoubtCode.SERVER_UNSAMPLED,
            "There are no server samples: no check against the server's own counts, and no "
            "memory-pressure preemptions.",
            "Give --metrics-url, an address that serves the replica's /metrics.",
        )
    if volume.without_usage:
        yield doubt(
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
        yield doubt(
            DoubtCode.OVERLOADED,
            f"The load is above what the replica sustains (ρ = {rho:.2f}): its queue has no "
            "steady state, and latency depends on how long the run was.",
            "Lower the rate until ρ is below 0.9.",
            rho,
            1.0,
        )
    elif queue.residence is not None:
        needed = settling.warmup(queue.residence, rho or 0.0)
        if warmup < needed:
            yield doubt(
                DoubtCode.WARMUP_SHORT,
                f"The warm-up of {warmup:.0f} s is shorter than the rule's {needed:.0f} s, "
                f"max(60 s, 5 × mean latency/(1 − ρ)){at_rho(rho)}.",
                f"--warmup {needed:.0f}",
                warmup,
                needed,
            )
    if queue.drift is not None and queue.warmup is not None and queue.undisturbed is not None:
        moved = abs(queue.undisturbed - queue.warmup) / max(queue.warmup, queue.undisturbed)
        if abs(queue.drift) > DRIFT_ERRORS and moved > DRIFT_SHARE:
            yield doubt(
                DoubtCode.WARMUP_UNSETTLED,
                f"The warm-up had not settled: {queue.warmup:.1f} in flight in its last half, "
                f"{queue.undisturbed:.1f} from its end to the first reset.",
                "Warm up longer; if it goes on moving, the rate is too near capacity.",
                queue.drift,
                DRIFT_ERRORS,
            )
    if queue.at_end > BACKLOG * queue.mean and queue.at_end - queue.mean > 3 * queue.mean**0.5:
        yield doubt(
            DoubtCode.BACKLOG,
            f"{queue.at_end} requests were in flight when the load ended, {queue.mean:.1f} on "
            "average: those that ended afterwards, the slowest, are in no percentile.",
            "Run longer after the last reset, or at a lower rate.",
            queue.at_end,
            BACKLOG * queue.mean,
        )


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"
