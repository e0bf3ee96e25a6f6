"""Resets with their final outcomes: ``cleared`` is verified, not believed.

After a wipe, and until a prefix has been computed again, no admission may report it cached. vLLM
hashes whole blocks and looks them up from the first one, and prompts of different prefixes share
none, so every request that was surely admitted after the wipe must either miss or come after
another one of its prefix that may have computed it since. A hit without such a forerunner is
something from before the wipe, and the reset was ``partial``.
"""

from __future__ import annotations

import math
from enum import StrEnum

import msgspec
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from harness.analysis import preemptions
from harness.analysis.counters import Counter
from harness.analysis.period import unrecorded
from harness.analysis.preemptions import ResetPreemptions
from harness.analysis.victims import Roll, Rows
from harness.journals import Journals
from harness.records import AttemptOutcome, Outcome, ResetMode, ResetRecord
from harness.scenario import PromptForm, PromptSpec

Floats = NDArray[np.float64]

EXTERNAL_HITS = "external_prefix_cache_hits"


class Verification(StrEnum):
    """What the requests after a wipe say about it."""

    CONFIRMED = "confirmed"
    """Requests that would have hit something from before missed, and none hit it."""
    CONTRADICTED = "contradicted"
    """A request hit something from before."""
    NOT_REPORTED = "not_reported"
    """The server does not report cached tokens (vLLM: ``--enable-prompt-tokens-details``)."""
    NO_EVIDENCE = "no_evidence"
    """No request came that could tell: none was surely admitted after the wipe."""
    NOT_CLEARED = "not_cleared"
    """Nothing to verify: the server did not say that it wiped."""


class Tier(StrEnum):
    """Where something from before a wipe was found."""

    LOCAL = "local"
    """The engine's own prefix cache."""
    EXTERNAL = "external"
    """A KV connector: ``vllm:external_prefix_cache_hits`` grew meanwhile."""
    UNKNOWN = "unknown"
    """No server sample covers the hit."""


class SettledReset(msgspec.Struct, frozen=True):
    """A reset with what only the rest of the run could tell."""

    record: ResetRecord
    """The journal's record; outcome and preemptions are final."""
    verification: Verification
    prefixes_checked: int = 0
    """Prefixes of which an admission after the wipe was seen to miss."""
    leftovers: int = 0
    """Requests that hit something from before the wipe."""
    leftover_tokens: int = 0
    """Most cached tokens that one of them reported."""
    tier: Tier | None = None
    """Where; None without leftovers."""


def settle(journals: Journals) -> tuple[SettledReset, ...]:
    """Every reset of the run, in order, with its final outcome and its preemptions."""
    return settle_with(journals, preemptions.attribute(journals).resets)


def settle_with(
    journals: Journals, counts: tuple[ResetPreemptions, ...]
) -> tuple[SettledReset, ...]:
    """``settle``, given the preemptions of each reset."""
    audit = _Audit(journals)
    settled = []
    for reset, count, until in zip(
        journals.resets, counts, _next_wipes(journals.resets), strict=True
    ):
        record = msgspec.structs.replace(
            reset,
            preemptions=count.count,
            preemptions_unresolved=count.unresolved,
            preemptions_source=count.source,
        )
        settled.append(audit.settle(record, until))
    return tuple(settled)


def _next_wipes(resets: tuple[ResetRecord, ...]) -> list[float]:
    """For each reset, the first instant at which a later one may have wiped the cache again."""
    harmless = (AttemptOutcome.REFUSED, AttemptOutcome.MARKED)
    wipes, until = [], math.inf
    for reset in reversed(resets):
        wipes.append(until)
        until = next((a.called for a in reset.attempts if a.outcome not in harmless), until)
    return wipes[::-1]


class _Audit:
    """Looks for hits on what a wipe should have removed."""

    def __init__(self, journals: Journals) -> None:
        frame = journals.requests.frame
        self._roll = Roll(journals.requests)
        self._prefix = frame["prefix"].to_numpy(np.int64)
        self._sent, self._first_token, self._finished, self._cached = (
            frame[name].to_numpy(np.float64)
            for name in ("sent", "first_token", "finished", "cached_tokens")
        )
        self._known = ~np.isnan(self._cached)
        self._ok = (frame["outcome"] == Outcome.OK).to_numpy(np.bool_)
        self._hit = self._cached >= _least_hit(frame, journals.manifest.plan.scenario.prompts)
        self._pressure = Counter.read(journals.server, preemptions.COUNTER)
        self._external = Counter.read(journals.server, EXTERNAL_HITS)
        lost = unrecorded(journals)
        self._gap = float(lost[0]) if len(lost) else math.inf

    def settle(self, reset: ResetRecord, until: float) -> SettledReset:
        """Verify one reset, given that the cache was not wiped again before ``until``."""
        if reset.outcome is not AttemptOutcome.CLEARED or not reset.attempts:
            return SettledReset(reset, Verification.NOT_CLEARED)
        if not self._known.any():
            # Usage comes with the end of a reply; where none ended well, none could tell.
            silent = bool(self._ok.any())
            return SettledReset(
                reset, Verification.NOT_REPORTED if silent else Verification.NO_EVIDENCE
            )
        wipe = reset.attempts[-1]
        gone = wipe.called if wipe.replied is None else wipe.replied
        after = self._roll.sent_between(gone, until)
        telling = after[self._known[after] & (self._first_token[after] < min(until, self._gap))]
        leftovers = self._leftovers(reset.mode, wipe.called, gone, after, telling)
        if len(leftovers):
            return SettledReset(
                msgspec.structs.replace(reset, outcome=AttemptOutcome.PARTIAL),
                Verification.CONTRADICTED,
                leftovers=len(leftovers),
                leftover_tokens=int(self._cached[leftovers].max()),
                tier=self._tier(gone, float(self._first_token[leftovers].min())),
            )
        missed = np.unique(self._prefix[telling[~self._hit[telling]]])
        # Where nothing is ever hit, a miss proves nothing.
        if not len(missed) or not self._hit.any():
            return SettledReset(reset, Verification.NO_EVIDENCE)
        return SettledReset(reset, Verification.CONFIRMED, prefixes_checked=len(missed))

    def _leftovers(
        self, mode: ResetMode, called: float, gone: float, after: Rows, telling: Rows
    ) -> Rows:
        """Rows of ``telling`` that hit, though nothing can have computed their prefix before."""
        straddling = self._roll.in_flight(called, gone)
        if mode is ResetMode.PREEMPT:
            computing = straddling  # a preempted request prefills again
        else:
            # One that was admitted before the wipe holds its blocks and does not cache them again;
            # one without a token by then may have been admitted after it.
            late = ~(self._first_token[straddling] <= called) & ~self._hit[straddling]
            computing = straddling[late]
        computing = np.concatenate([computing, after[~self._hit[after]]])
        begun = np.full(int(self._prefix.max()) + 1, np.inf)  # by prefix: earliest that may compute
        np.minimum.at(begun, self._prefix[computing], self._sent[computing])
        hits = telling[self._hit[telling]]
        orphans = hits[begun[self._prefix[hits]] >= self._first_token[hits]]
        held = np.isin(self._prefix[orphans], self._prefix[straddling])
        if self._pressure is None or self._pressure.growth(gone, math.inf) <= 0:
            held[:] = False
        else:
            held[held] = [self._preempted(gone, row) for row in orphans[held].tolist()]
        return np.asarray(orphans[~held])

    def _preempted(self, gone: float, row: int) -> bool:
        """Whether memory pressure may have made a request prefill again before ``row`` ended."""
        if self._pressure is None:
            return False
        read = self._pressure.read_after(float(self._finished[row]))
        return self._pressure.growth(gone, math.inf if read is None else read) > 0

    def _tier(self, gone: float, hit: float) -> Tier:
        if self._external is None or self._external.read_before(math.inf) < gone:
            return Tier.UNKNOWN
        read = self._external.read_after(hit + preemptions.SETTLING)
        grown = self._external.growth(gone, math.inf if read is None else read)
        return Tier.EXTERNAL if grown > 0 else Tier.LOCAL


def _least_hit(frame: pd.DataFrame, prompts: PromptSpec) -> Floats:
    """Cached tokens of each request from which on it has hit its own prefix.

    Any, for token ids and text. All chat prompts begin with the template's own words, which other
    prefixes may have cached meanwhile; there half of the shared prefix's share of the prompt.
    """
    if prompts.form is not PromptForm.CHAT:
        return np.ones(len(frame))
    told = frame["prompt_tokens"].fillna(prompts.prefix_tokens)
    return np.asarray(told * prompts.shared_share / 2)
