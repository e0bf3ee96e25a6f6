"""Doubts about a run's resets: refused, ignored, partial, too few, too close."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from harness import settling
from harness.analysis.doubt import Doubt, DoubtCode, at_rho, doubt
from harness.analysis.occupancy import Occupancy
from harness.analysis.resets import SettledReset, Verification
from harness.plan import Plan
from harness.records import AttemptOutcome, ResetMode

RESETS_TO_COMPARE = 8
"""Fewer wipes show a shape and cannot carry a comparison."""


def find(
    plan: Plan, settled: tuple[SettledReset, ...], occupancy: Occupancy | None
) -> Iterator[Doubt]:
    """Doubts about what the resets did, how many there are and how far they lie apart."""
    resets = [one for one in settled if one.record.mode is not ResetMode.SHAM]
    for outcome, (code, saying, remedy) in _UNHAPPY.items():
        count = sum(one.record.outcome is outcome for one in resets)
        if count:
            tiers = {one.tier for one in resets if one.record.outcome is outcome and one.tier}
            where = f" (tier: {', '.join(sorted(tiers))})" if tiers else ""
            text = f"{count} of {len(resets)} resets {saying}{where}."
            yield doubt(code, text, remedy, count, 0)
    unsure = [
        one
        for one in resets
        if one.verification in (Verification.NOT_REPORTED, Verification.NO_EVIDENCE)
    ]
    if unsure:
        silent = any(one.verification is Verification.NOT_REPORTED for one in unsure)
        yield doubt(
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
    yield from _about_number(resets)
    yield from _about_spacing(plan, occupancy)


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


def _about_number(resets: list[SettledReset]) -> Iterator[Doubt]:
    wipes = [
        one.record.cleared_at
        for one in resets
        if one.record.outcome in (AttemptOutcome.CLEARED, AttemptOutcome.PARTIAL)
        and one.record.cleared_at is not None
    ]
    if resets and len(wipes) < RESETS_TO_COMPARE:
        yield doubt(
            DoubtCode.FEW_RESETS,
            f"Wipes that took effect: {len(wipes)}. At least {RESETS_TO_COMPARE} are needed to "
            "compare modes; fewer only show a shape.",
            "Run longer, for more resets.",
            len(wipes),
            RESETS_TO_COMPARE,
        )


def _about_spacing(plan: Plan, queue: Occupancy | None) -> Iterator[Doubt]:
    planned = [reset.scheduled for reset in plan.resets if reset.mode is not ResetMode.SHAM]
    if len(planned) < 2 or queue is None or queue.residence is None:
        return
    spacing = min(b - a for a, b in pairwise(planned))
    rho = queue.utilisation
    needed = settling.spacing(queue.residence, rho or 0.0)
    if spacing < needed:
        yield doubt(
            DoubtCode.SPACING_SHORT,
            f"Resets are {spacing:.0f} s apart, the rule asks for {needed:.0f} s, "
            f"max(120 s, 10 × mean latency/(1 − ρ)){at_rho(rho)}: "
            "a wipe may meet a replica that has not recovered from the last.",
            "Lower the rate." if needed == float("inf") else f"--reset-every {needed:.0f}",
            spacing,
            needed,
        )
