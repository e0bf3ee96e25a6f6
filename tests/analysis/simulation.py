"""A replica simulated in virtual time, and journals written by hand: input for analysis tests.

Every request in flight progresses at 1/(a + b·n) (processor sharing with a fixed cost). A request
is admitted when it is sent; a prefix that is not cached costs more work before the first token and
is cached from then on. A wipe empties the cache; a preempting one also makes every running request
prefill again.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import msgspec
import numpy as np

from harness.journals import SCHEMA_VERSION, Journals, Manifest, RequestTable, RunStatus
from harness.plan import Plan, make_plan
from harness.records import (
    Arrival,
    AttemptOutcome,
    ClientSample,
    Outcome,
    PlannedReset,
    RequestRecord,
    ResetAttempt,
    ResetMode,
    ResetRecord,
    ServerSample,
)
from harness.scenario import LoadSpec, OutputSpec, ResetSpec, Scenario

HOT, COLD, DECODE = 0.01, 0.25, 1.0
"""Work before the first token with the prefix cached and without, and after it."""
A, B = 0.8, 0.08


def scenario(
    mode: ResetMode = ResetMode.KEEP,
    *,
    rate: float = 4.0,
    warmup: float = 30.0,
    duration: float = 120.0,
    every: float | None = 30.0,
    seed: int = 1,
) -> Scenario:
    return Scenario(
        name="simulated",
        seed=seed,
        load=LoadSpec(rate=rate, duration=duration, warmup=warmup),
        output=OutputSpec(tokens=20),
        resets=ResetSpec(mode=mode, every=None if mode is ResetMode.NONE else every),
    )


@dataclass
class _Running:
    arrival: Arrival
    tokens: list[float]
    """Virtual instants of the tokens."""
    cached: int
    computing: bool
    stamps: list[float] = field(default_factory=list)
    preempted: bool = False


class Replica:
    """The simulated replica; ``serve`` it a plan."""

    def __init__(self, *, wipes_work: bool = True, told: bool = True) -> None:
        self._wipes_work = wipes_work
        self._told = told
        self._now = 0.0
        self._progress = 0.0
        self._cache: set[int] = set()
        self._running: dict[int, _Running] = {}
        self._due: list[tuple[float, int, int]] = []
        self._preemptions: list[float] = []
        self.records: list[RequestRecord] = []
        self.resets: list[ResetRecord] = []

    def serve(self, plan: Plan) -> None:
        self._cache = set(range(plan.scenario.prompts.prefixes))
        things: list[Arrival | PlannedReset] = [*plan.arrivals, *plan.resets]
        for thing in sorted(things, key=lambda one: one.scheduled):
            self._advance(thing.scheduled)
            if isinstance(thing, Arrival):
                self._admit(thing)
            else:
                self._reset(thing)
        self._advance(np.inf)

    def samples(self, end: float) -> tuple[ServerSample, ...]:
        times = np.arange(0.0, end + 10.0, 0.5)
        sent = np.sort([record.sent for record in self.records])
        finished = np.sort([record.finished for record in self.records])
        emitted = np.sort(self._preemptions)
        return tuple(
            ServerSample(
                float(t),
                "0",
                {
                    "num_requests_running": float(
                        np.searchsorted(sent, t) - np.searchsorted(finished, t)
                    ),
                    "num_requests_waiting": 0.0,
                    "num_preemptions_total": float(np.searchsorted(emitted, t)),
                    "external_prefix_cache_hits_total": 0.0,
                },
            )
            for t in times
        )

    def _advance(self, until: float) -> None:
        while self._due:
            virtual, row, number = self._due[0]
            running = self._running[row]
            if running.tokens[number] != virtual:  # moved by a preemption
                heapq.heapreplace(self._due, (running.tokens[number], row, number))
                continue
            at = self._now + (virtual - self._progress) * (A + B * len(self._running))
            if at > until:
                break
            self._now, self._progress = at, virtual
            heapq.heappop(self._due)
            self._emit(row, running, number)
        if self._running:
            self._progress += (until - self._now) / (A + B * len(self._running))
        self._now = until

    def _emit(self, row: int, running: _Running, number: int) -> None:
        running.stamps.append(self._now)
        if running.preempted:
            running.preempted = False
            self._preemptions.append(self._now)
        if running.computing:
            running.computing = False
            self._cache.add(running.arrival.prefix)
        if number + 1 < len(running.tokens):
            heapq.heappush(self._due, (running.tokens[number + 1], row, number + 1))
            return
        del self._running[row]
        arrival = running.arrival
        self.records.append(
            RequestRecord(
                id=arrival.id,
                scheduled=arrival.scheduled,
                started=arrival.scheduled,
                prefix=arrival.prefix,
                outcome=Outcome.OK,
                finished=self._now,
                sent=arrival.scheduled,
                first_token=running.stamps[0],
                token_times=tuple(running.stamps),
                prompt_tokens=2060,
                completion_tokens=arrival.output_tokens,
                cached_tokens=running.cached,
                http_status=200,
            )
        )

    def _admit(self, arrival: Arrival) -> None:
        hit = arrival.prefix in self._cache
        first = self._progress + (HOT if hit else COLD)
        count = arrival.output_tokens
        tokens = [first + DECODE * k / max(count - 1, 1) for k in range(count)]
        self._running[arrival.id] = _Running(arrival, tokens, 1984 if hit else 0, not hit)
        heapq.heappush(self._due, (first, arrival.id, 0))

    def _reset(self, planned: PlannedReset) -> None:
        held = len(self._running)
        preempted = 0
        outcome = AttemptOutcome.CLEARED
        if planned.mode is ResetMode.SHAM:
            outcome = AttemptOutcome.MARKED
        elif planned.mode is ResetMode.DEFAULT and held:
            outcome = AttemptOutcome.REFUSED
        elif self._wipes_work:
            self._cache.clear()
            for running in self._running.values():
                running.computing = False  # what it has computed so far is gone
            if planned.mode is ResetMode.PREEMPT:
                preempted = self._preempt()
        done = outcome in (AttemptOutcome.CLEARED, AttemptOutcome.MARKED)
        attempt = ResetAttempt(
            called=self._now,
            replied=self._now,
            outcome=outcome,
            http_status=200,
            preemptions=preempted if self._told else None,
            reply={"running": held, "preempted": preempted} if self._told else None,
        )
        self.resets.append(
            ResetRecord(
                id=planned.id,
                mode=planned.mode,
                scheduled=planned.scheduled,
                outcome=outcome,
                in_flight=held,
                cleared_at=self._now if done else None,
                attempts=() if planned.mode is ResetMode.SHAM else (attempt,),
            )
        )

    def _preempt(self) -> int:
        for running in self._running.values():
            running.preempted = running.computing = True
            emitted = len(running.stamps)
            running.tokens[emitted:] = [virtual + COLD for virtual in running.tokens[emitted:]]
        return len(self._running)


def simulate(
    plan_of: Scenario, *, wipes_work: bool = True, told: bool = True, status: str = "complete"
) -> Journals:
    """Journals of one run on a simulated replica.

    ``wipes_work`` false: the server says cleared and clears nothing. ``told`` false: a stock
    server, whose reply does not count preemptions.
    """
    plan = make_plan(plan_of)
    replica = Replica(wipes_work=wipes_work, told=told)
    replica.serve(plan)
    seconds = np.arange(0.0, plan.end)
    return Journals(
        manifest=manifest(plan, status=RunStatus(status)),
        requests=RequestTable.from_records(replica.records),
        resets=tuple(replica.resets),
        server=replica.samples(plan.end),
        client=tuple(ClientSample(float(t), 0.3 * float(t), (0.001,) * 50) for t in seconds),
    )


def manifest(plan: Plan, status: RunStatus = RunStatus.COMPLETE) -> Manifest:
    return Manifest(
        schema_version=SCHEMA_VERSION,
        status=status,
        plan=plan,
        harness_version="0",
        started_utc="2025-01-01T00:00:00Z",
        server={},
        host={},
        preparation={},
    )


def journals(
    *records: RequestRecord,
    resets: tuple[ResetRecord, ...] = (),
    server: tuple[ServerSample, ...] = (),
    client: tuple[ClientSample, ...] = (),
    warmup: float = 0.0,
    duration: float = 100.0,
    planned: tuple[Arrival, ...] | None = None,
    status: RunStatus = RunStatus.COMPLETE,
    torn: tuple[str, ...] = (),
    of: Scenario | None = None,
) -> Journals:
    """Journals of records written by hand; the plan is theirs unless ``planned`` says more."""
    of = of or scenario(ResetMode.NONE)
    of = msgspec.structs.replace(
        of, load=msgspec.structs.replace(of.load, warmup=warmup, duration=duration)
    )
    arrivals = planned or tuple(Arrival(r.id, r.scheduled, r.prefix, 20) for r in records)
    plan = Plan(
        of, arrivals, tuple(PlannedReset(r.id, r.scheduled, r.mode) for r in resets), "digest"
    )
    table = RequestTable.from_records(records)
    return Journals(manifest(plan, status), table, resets, server, client, torn)


def request(
    number: int,
    sent: float,
    *token_times: float,
    finished: float | None = None,
    prefix: int = 0,
    cached: int | None = None,
    outcome: Outcome = Outcome.OK,
    scheduled: float | None = None,
) -> RequestRecord:
    """A request by its stamps; it ends with its last token unless ``finished`` says otherwise."""
    scheduled = sent if scheduled is None else scheduled
    return RequestRecord(
        id=number,
        scheduled=scheduled,
        started=scheduled,
        prefix=prefix,
        outcome=outcome,
        finished=token_times[-1] if finished is None else finished,
        sent=sent,
        first_token=token_times[0] if token_times else None,
        token_times=token_times,
        prompt_tokens=2060,
        completion_tokens=len(token_times) or None,
        cached_tokens=cached,
    )


def wipe(
    number: int,
    at: float,
    *,
    mode: ResetMode = ResetMode.KEEP,
    replied: float | None = None,
    preemptions: int | None = None,
    outcome: AttemptOutcome = AttemptOutcome.CLEARED,
    in_flight: int = 0,
) -> ResetRecord:
    """A reset of one attempt, called at ``at`` and answered at once unless ``replied``."""
    replied = at if replied is None else replied
    cleared = outcome in (AttemptOutcome.CLEARED, AttemptOutcome.PARTIAL)
    return ResetRecord(
        id=number,
        mode=mode,
        scheduled=at,
        outcome=outcome,
        in_flight=in_flight,
        cleared_at=replied if cleared else None,
        attempts=(ResetAttempt(at, replied, outcome, preemptions=preemptions),),
    )
