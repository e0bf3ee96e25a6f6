"""The frozen types that flow from the plan to the report.

All instants are float seconds since the run's zero, read from one monotonic clock
(``time.perf_counter``). A value that was not observed is ``None``, never 0.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec


class ResetMode(StrEnum):
    """What is done to the prefix cache at a planned reset."""

    NONE = "none"
    """Plan no reset at all: a control. No planned reset carries it."""
    DEFAULT = "default"
    """vLLM's own reset; refused while any block is held."""
    PREEMPT = "preempt"
    """Preempt every running request, then reset (``reset_running_requests=true``)."""
    KEEP = "keep"
    """Empty the lookup map and let running requests carry on (``keep_running_requests=true``)."""
    SHAM = "sham"
    """Call nothing; leave a mark in the journal."""


class Outcome(StrEnum):
    """How a request ended."""

    OK = "ok"
    CONNECT_FAILED = "connect_failed"
    """No connection, or it broke before the headers were handed to the socket."""
    DISCONNECTED = "disconnected"
    """The connection broke after the request was sent and before its response was whole."""
    TIMEOUT = "timeout"
    """Nothing was received for longer than the configured limit."""
    HTTP_ERROR = "http_error"
    """A status other than 200; ``http_status`` says which."""
    MALFORMED = "malformed"
    """Bytes that are not the HTTP, SSE or JSON they should be."""
    STREAM_ERROR = "stream_error"
    """The stream carried an error object."""
    TRUNCATED = "truncated"
    """The stream ended properly but without a finish reason."""
    NO_TOKENS = "no_tokens"
    """The stream finished without carrying any generated content."""
    ABANDONED = "abandoned"
    """Still in flight when the run was stopped."""


class AttemptOutcome(StrEnum):
    """How one call of the reset route ended, or, for a reset, its last call."""

    CLEARED = "cleared"
    REFUSED = "refused"
    """The server answered ``success: false``."""
    PARTIAL = "partial"
    """The server answered ``success: true``, yet something from before is still hit."""
    IGNORED = "ignored"
    """The server did not understand the mode and did something else."""
    REJECTED = "rejected"
    """An HTTP status other than 200."""
    FAILED = "failed"
    """No answer, or one that is not the route's."""
    MARKED = "marked"
    """A sham: nothing was called."""


class PreemptionSource(StrEnum):
    """Where a count of preemptions comes from."""

    REPLY = "reply"
    """The reset's own reply: exact."""
    COUNTER = "counter"
    """``vllm:num_preemptions_total``: a lower bound while some are unresolved."""


class Turn(msgspec.Struct, frozen=True):
    """A later turn of a session, which comes when its user has thought about the last answer."""

    id: int
    think: float
    """Seconds between the end of the turn before and this one's planned instant."""
    output_tokens: int


class Arrival(msgspec.Struct, frozen=True, omit_defaults=True):
    """One planned request; its prompt is made from the plan by ``load.prompts``.

    What has a default came later and is left out where it says nothing: digests are over arrivals.
    """

    id: int
    scheduled: float
    prefix: int
    """Which shared prefix its prompt begins with: prompts of different ones share nothing.

    In a tree the child of the root, in a trace the first block, by order of appearance; 0 where
    nothing is shared.
    """
    output_tokens: int
    path: tuple[int, ...] = ()
    """What its prompt is made of: the way down a tree, or a trace's hash ids."""
    prompt_tokens: int | None = None
    """Size of its prompt, where a trace decides it."""
    row: int | None = None
    """Which row of a trace holds its prompt's text, from 0."""
    later: tuple[Turn, ...] = ()
    """The turns of its session that follow it."""
    closed_loop: bool = False
    """Whether its planned instant was counted from the end of another request."""


class PlannedReset(msgspec.Struct, frozen=True):
    """One planned reset."""

    id: int
    scheduled: float
    mode: ResetMode


class RequestRecord(msgspec.Struct, frozen=True):
    """What happened to one arrival; one line of ``requests.jsonl``."""

    id: int
    scheduled: float
    started: float
    prefix: int
    outcome: Outcome
    finished: float
    """When the last byte arrived, or when the failure was seen."""
    sent: float | None = None
    """When the request's headers were handed to the socket."""
    first_token: float | None = None
    """When the first chunk with generated content arrived."""
    token_times: tuple[float, ...] = ()
    """When each chunk with generated content arrived; a chunk may hold several tokens."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    """Prompt tokens the server took from its prefix cache, where it says."""
    http_status: int | None = None
    error: str | None = None
    """The first 500 characters of the reason, for anything but ``ok``."""
    closed_loop: bool = False
    """Whether ``scheduled`` counts from the end of the session's turn before: no open loop."""


class ResetAttempt(msgspec.Struct, frozen=True):
    """One call of the reset route."""

    called: float
    replied: float | None
    outcome: AttemptOutcome
    http_status: int | None = None
    preemptions: int | None = None
    """Requests preempted by this call, where the reply says."""
    reply: dict[str, Any] | None = None
    """The server's own words, parsed."""
    error: str | None = None
    """Why there is no usable reply; at most 500 characters."""


class ResetRecord(msgspec.Struct, frozen=True):
    """What happened at one planned reset; one line of ``resets.jsonl``.

    The journal holds what was seen when the reset ended. ``analysis.resets.settle`` fills in what
    only the rest of the run can tell: ``partial``, and preemptions read from the counter.
    """

    id: int
    mode: ResetMode
    scheduled: float
    outcome: AttemptOutcome
    in_flight: int
    """Requests of this client in flight when the (last) call was made."""
    cleared_at: float | None = None
    """When the wipe took effect, as closely as the reply tells; the mark's instant for a sham."""
    preemptions: int | None = None
    preemptions_unresolved: int | None = None
    """Requests in flight at the reset whose fate the counter can no longer show."""
    preemptions_source: PreemptionSource | None = None
    attempts: tuple[ResetAttempt, ...] = ()


class ServerSample(msgspec.Struct, frozen=True):
    """One engine's metrics at one scrape; one line of ``server.jsonl``.

    ``metrics`` maps Prometheus names without the ``vllm:`` prefix to values; on disk they stand
    beside ``t`` and ``engine``. An engine behind the n-th metrics address of several is
    ``n/engine``.
    """

    t: float
    engine: str
    metrics: dict[str, float]


class ClientSample(msgspec.Struct, frozen=True):
    """One second of a client process's own health; one line of ``client.jsonl``."""

    t: float
    cpu: float
    """CPU seconds the process has used so far."""
    overshoots: tuple[float, ...]
    """How late each tick of its 20 ms ticker woke, in seconds."""
    process: int = 0
    """0 for the run itself; from 1 for the processes that send its load, if those are several."""


class Phase(StrEnum):
    """What a run is doing."""

    PREPARING = "preparing the cache"
    WARMING = "warming up"
    MEASURING = "measuring"
    DRAINING = "draining"


class Progress(msgspec.Struct, frozen=True):
    """Where a run stands, for whoever watches it."""

    phase: Phase
    t: float
    end: float
    """When load ends, seconds since the run's zero."""
    in_flight: int = 0
    sent: int = 0
    done: int = 0
    """Requests that ended ``ok``."""
    failed: int = 0
    ttft: float | None = None
    """Median TTFT, seconds, of the requests that ended in the last few seconds."""
    resets_done: int = 0
    resets_planned: int = 0
    last_reset: ResetRecord | None = None
