"""How much was asked of the server and how much came back, in counts and rates."""

from __future__ import annotations

import msgspec
import numpy as np

from harness.analysis.period import Period, unrecorded
from harness.analysis.timings import chunks
from harness.journals import Journals
from harness.records import Outcome
from harness.scenario import PromptForm


class Volume(msgspec.Struct, frozen=True):
    """Counts of one run. Those of the measured period count each event where it happened."""

    planned: int
    """Arrivals in the whole plan, warm-up included."""
    unrecorded: int
    """Planned arrivals that left no record: never sent, or in flight when the run was killed."""
    resets_planned: int
    resets_unrecorded: int
    sent: int
    """Sent in the measured period."""
    rate: float | None
    """Sent a second."""
    ended: int
    """Ended in the measured period, well or not."""
    failures: dict[Outcome, int]
    """Failures in the measured period by kind; a kind that did not occur is absent."""
    failed_share: float | None
    """Of those that ended."""
    tokens: float
    """Generated tokens that arrived in the measured period."""
    tokens_per_second: float | None
    without_usage: int
    """Requests with tokens whose number the server did not tell: each chunk counts as one."""
    cached_share: float | None
    """Prompt tokens from the prefix cache over all prompt tokens, by the replies' usage."""
    prompt_tokens: float | None = None
    """Mean size of a prompt by the replies' usage, where prompts are text; token ids are exact."""


def measure(journals: Journals, period: Period) -> Volume:
    """Counts over the whole run and over its measured ``period``."""
    frame, plan = journals.requests.frame, journals.manifest.plan
    sent = int(period.holds(frame["sent"].to_numpy(np.float64)).sum())
    ended = frame["outcome"][period.holds(frame["finished"].to_numpy(np.float64))]
    kinds = ((Outcome(str(kind)), int(count)) for kind, count in ended.value_counts().items())
    failures: dict[Outcome, int] = {kind: count for kind, count in kinds if kind is not Outcome.OK}
    tokens, without_usage = _tokens(journals, period)
    length = period.length
    return Volume(
        planned=len(plan.arrivals),
        unrecorded=len(unrecorded(journals)),
        resets_planned=len(plan.resets),
        resets_unrecorded=max(0, len(plan.resets) - len(journals.resets)),
        sent=sent,
        rate=sent / length if length else None,
        ended=len(ended),
        failures=failures,
        failed_share=sum(failures.values()) / len(ended) if len(ended) else None,
        tokens=tokens,
        tokens_per_second=tokens / length if length else None,
        without_usage=without_usage,
        cached_share=_cached_share(journals, period),
        prompt_tokens=_prompt_tokens(journals, period),
    )


def _tokens(journals: Journals, period: Period) -> tuple[float, int]:
    """Tokens that arrived inside ``period``; a request's tokens are spread over its chunks."""
    of_request = np.diff(journals.requests.token_offsets)
    inside = chunks(journals.requests, period)
    told = journals.requests.frame["completion_tokens"].to_numpy(np.float64)
    counted = np.where(np.isnan(told), of_request, told)
    each = np.divide(counted, of_request, out=np.zeros(len(counted)), where=of_request > 0)
    return float(inside @ each), int(np.sum(np.isnan(told) & (inside > 0)))


def _prompt_tokens(journals: Journals, period: Period) -> float | None:
    if journals.manifest.plan.scenario.prompts.form is PromptForm.TOKEN_IDS:
        return None
    frame = journals.requests.frame
    told = frame["prompt_tokens"][period.holds(frame["sent"].to_numpy(np.float64))].dropna()
    return float(told.mean()) if len(told) else None


def _cached_share(journals: Journals, period: Period) -> float | None:
    frame = journals.requests.frame
    begun = frame[period.holds(frame["first_token"].to_numpy(np.float64))]
    told = begun.dropna(subset=["cached_tokens", "prompt_tokens"])
    prompt = float(told["prompt_tokens"].sum())
    return float(told["cached_tokens"].sum()) / prompt if prompt else None
