"""Preemptions that a reset caused, and those of memory pressure, which share one counter.

A reply that tells is exact. Otherwise ``vllm:num_preemptions`` is read: vLLM counts a preempted
request only when it next emits a token (``v1/metrics/stats.py``, ``IterationStats``), and never if
it is aborted first. So the counter is followed until every request that was in flight at the reset
has emitted again or ended, and what it shows is a lower bound while some have done neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np

from harness.analysis.counters import Counter
from harness.analysis.period import unrecorded
from harness.analysis.victims import Roll, next_chunk
from harness.journals import Journals
from harness.records import Outcome, PreemptionSource, ResetMode, ResetRecord

COUNTER = "num_preemptions"
SETTLING = 0.1
"""Seconds by which the server may publish a count later than the client sees its token."""
FORCING_MODES = frozenset({ResetMode.PREEMPT, ResetMode.KEEP})
"""Modes whose preemptions are looked for in the counter. ``keep`` should cause none, which is to
be seen and not assumed. A ``default`` reset and a sham touch no request (vLLM's
``Scheduler.reset_prefix_cache``): what the counter shows around them is memory pressure."""


class ResetPreemptions(msgspec.Struct, frozen=True):
    """Preemptions because of one reset: between ``count`` and ``count + unresolved``."""

    count: int | None = None
    """None where neither the reply nor the counter tells."""
    unresolved: int | None = None
    """Requests whose preemption the counter could not, or not yet, show."""
    source: PreemptionSource | None = None


class MemoryPressure(msgspec.Struct, frozen=True):
    """Preemptions that no reset caused: between ``at_least`` and ``at_most``."""

    at_least: int
    at_most: int


@dataclass(frozen=True)
class Preemptions:
    """Every preemption of a run and its cause."""

    resets: tuple[ResetPreemptions, ...]
    """One entry a reset, in the journal's order."""
    memory_pressure: MemoryPressure | None
    """None without the counter, or where the preemptions of a reset are unknown."""


@dataclass(frozen=True)
class _Watch:
    """What the counter showed from a reset's first call on, until no victim was open."""

    grown: int
    victims: int
    """Requests that were in flight at the reset, or may have been."""
    open: int
    """Victims that never emitted again, or not before the watch ended."""
    inherited: int
    """Victims of earlier resets whose preemptions may be among ``grown``."""


def attribute(journals: Journals) -> Preemptions:
    """Say what caused each preemption of the run."""
    told = [_told(reset) for reset in journals.resets]
    counter = Counter.read(journals.server, COUNTER)
    if counter is None:
        return Preemptions(tuple(one or ResetPreemptions() for one in told), None)
    watches = list(_watch(journals, counter))
    resets = tuple(one or _counted(w) for one, w in zip(told, watches, strict=True))
    least = most = 0
    for reset, watch in zip(resets, watches, strict=True):
        count, unresolved = reset.count or 0, reset.unresolved or 0
        if reset.source is PreemptionSource.REPLY:
            # Told by the reply, but in the counter only if it has emitted again.
            least += max(0, count - watch.open)
        else:
            least += count
        most += count + unresolved
    grown = round(counter.growth(-np.inf, np.inf))
    return Preemptions(resets, MemoryPressure(max(0, grown - most), max(0, grown - least)))


def _told(reset: ResetRecord) -> ResetPreemptions | None:
    """What the replies to all attempts say; None if one of them does not say it."""
    counts = [attempt.preemptions for attempt in reset.attempts]
    known = [count for count in counts if count is not None]
    if not counts or len(known) < len(counts):
        return None
    return ResetPreemptions(sum(known), 0, PreemptionSource.REPLY)


def _counted(watch: _Watch) -> ResetPreemptions:
    own = max(0, watch.grown - watch.inherited)
    return ResetPreemptions(
        count=min(own, watch.victims),
        unresolved=watch.open + min(watch.inherited, watch.grown),
        source=PreemptionSource.COUNTER,
    )


def _watch(journals: Journals, counter: Counter) -> Iterator[_Watch]:
    """Watches of all resets, in order; one that overlaps the next reset ends with its call."""
    roll, lost = Roll(journals.requests), unrecorded(journals)
    calls = [_called(reset) for reset in journals.resets]
    inherited = 0
    for number, reset in enumerate(journals.resets):
        start = calls[number]
        if start is None:
            yield _Watch(0, 0, 0, 0)
            continue
        replied = max(a.called if a.replied is None else a.replied for a in reset.attempts)
        emitted = _emissions(journals, roll, start, replied)
        limit = next((call for call in calls[number + 1 :] if call is not None), np.inf)
        settled = float(np.nanmax(emitted, initial=replied)) + SETTLING
        read = counter.read_after(settled)
        end = limit if read is None else min(read, limit)
        seen = counter.read_before(end) - SETTLING
        unknown = int(np.searchsorted(lost, replied, side="right"))
        watch = _Watch(
            grown=round(counter.growth(start, end)),
            victims=len(emitted) + unknown,
            open=int(np.sum(~(emitted <= seen))) + unknown,
            inherited=inherited,
        )
        yield watch
        inherited = watch.open + inherited if end == limit else 0


def _called(reset: ResetRecord) -> float | None:
    """When a reset that can preempt was first called; None for one that cannot."""
    if reset.mode not in FORCING_MODES or not reset.attempts:
        return None
    return reset.attempts[0].called


def _emissions(
    journals: Journals, roll: Roll, start: float, replied: float
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """When each victim's fate was in the counter: its next token, its good end; NaN for never."""
    rows = roll.in_flight(start, replied)
    emitted = next_chunk(journals.requests, rows, replied)
    frame = journals.requests.frame.iloc[rows]
    ended = frame["finished"].to_numpy(np.float64)
    well = (frame["outcome"] == Outcome.OK).to_numpy(np.bool_)
    return np.where(np.isnan(emitted) & well, ended, emitted)
