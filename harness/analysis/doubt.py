"""What a doubt is: a reason not to believe a run's figures, and its remedy."""

from __future__ import annotations

from enum import StrEnum

import msgspec


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


def doubt(
    code: DoubtCode, text: str, remedy: str, value: float | None = None, limit: float | None = None
) -> Doubt:
    """A doubt that leaves the figures usable."""
    return Doubt(code, Severity.DOUBT, text, remedy, value, limit)


def void(
    code: DoubtCode, text: str, remedy: str, value: float | None = None, limit: float | None = None
) -> Doubt:
    """A doubt that voids the figures it names."""
    return Doubt(code, Severity.VOID, text, remedy, value, limit)


def at_rho(rho: float | None) -> str:
    """How a rule that needs ρ names the ρ it used."""
    return " (ρ unknown, taken as 0)" if rho is None else f" at ρ = {rho:.2f}"
