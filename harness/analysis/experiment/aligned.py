"""Curves of each mode against the time since the wipe, its control subtracted, over resets.

A reset's curve is a mean per bin of time since its wipe. Where the same planned instant had a
control (a sham in a mirrored run, or the same plan without resets), the control's curve there is
subtracted. The median over resets and its bootstrap band describe the resets of these runs; claims
are made by ``contrast``, not by bands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from harness.analysis.cohorts import Cohorts, effect
from harness.analysis.curves import BIN_REQUESTS, WIDTHS
from harness.analysis.experiment import stats
from harness.analysis.experiment.pairs import Pair, Run
from harness.analysis.experiment.recorded import Recorded
from harness.analysis.in_flight import Floats
from harness.analysis.period import Period
from harness.analysis.timings import gaps
from harness.records import ResetMode

BEFORE = 10.0
"""Seconds before the wipes from which curves start."""
MOST_BINS = 60
"""After the wipe; bins are no narrower than this makes them."""
DRAWS = 499
"""Bootstrap samples of a band."""


class Quantity(StrEnum):
    """What a curve shows."""

    TTFT = "TTFT"
    """Seconds, by planned instant."""
    LATENCY = "latency"
    """Seconds, by planned instant."""
    ITL = "ITL"
    """Seconds between chunks, by when the later one came."""
    IN_FLIGHT = "in flight"
    """Time average of the requests in flight."""
    CACHED = "cached share"
    """Prompt tokens from the cache over all prompt tokens, by planned instant."""


class AlignedCurve(msgspec.Struct, frozen=True):
    """One quantity after the wipes of one mode; bin ``k`` begins at ``start + k·width`` seconds."""

    quantity: Quantity
    mode: ResetMode
    control: ResetMode | None
    """What was subtracted; None if nothing was."""
    resets: int
    start: float
    width: float
    median: tuple[float | None, ...]
    """Over resets; None in a bin that fewer than two resets saw, and below it the 95 % band."""
    low: tuple[float | None, ...]
    high: tuple[float | None, ...]


class Trace(msgspec.Struct, frozen=True):
    """The number in flight after one reset, for small multiples; bins as in ``AlignedCurve``."""

    run: str
    block: str
    """Runs of one block replay the same arrivals."""
    id: int
    mode: ResetMode
    start: float
    width: float
    in_flight: tuple[float | None, ...]


def bins(rate: float, horizon: float) -> Floats:
    """Edges of the bins, seconds since the wipe: ``BIN_REQUESTS`` a bin, at most ``MOST_BINS``."""
    least = max(BIN_REQUESTS / rate, horizon / MOST_BINS)
    width = next((width for width in WIDTHS if width >= least), WIDTHS[-1])
    steps = np.arange(-int(BEFORE // width), max(1, int(horizon // width)) + 1)
    return np.asarray(steps * width, np.float64)


class Sampler:
    """Means of one run's quantities in bins after given instants."""

    def __init__(self, recorded: Recorded, edges: Floats) -> None:
        self._edges = edges
        self._count = recorded.in_flight
        self._period = recorded.summary.period
        self._requests = recorded.journals.requests
        self._cohorts = Cohorts(self._requests)
        found = [effect(reset) for reset in recorded.resets]
        self._effects = np.sort([at for at in found if at is not None])
        frame = self._requests.frame
        self._by_start = frame["scheduled"].to_numpy(np.float64)
        self._cached, self._prompt = (
            frame[name].to_numpy(np.float64) for name in ("cached_tokens", "prompt_tokens")
        )

    def sample(self, quantity: Quantity, instants: Floats) -> Floats:
        """(instants, bins) means; NaN where the run cannot tell or another reset has a hand in."""
        if not len(instants):
            return np.zeros((0, len(self._edges) - 1))
        cohorts = self._cohorts
        match quantity:
            case Quantity.IN_FLIGHT:
                grid = instants[:, None] + self._edges
                areas = self._count.integral(grid[:, :-1], grid[:, 1:])
                return self._own(np.asarray(areas / np.diff(self._edges)), instants, None)
            case Quantity.ITL:
                return self._own(self._mean(*self._gaps, instants), instants, None)
            case Quantity.TTFT:
                means = self._mean(cohorts.scheduled, cohorts.ttft, instants)
                return self._own(means, instants, cohorts.first_token)
            case Quantity.LATENCY:
                means = self._mean(cohorts.scheduled, cohorts.latency, instants)
                return self._own(means, instants, cohorts.finished)
            case Quantity.CACHED:
                known = ~np.isnan(self._cached) & ~np.isnan(self._prompt)
                times = self._by_start[known]
                cached = self._sums(times, self._cached[known], instants)
                prompt = self._sums(times, self._prompt[known], instants)
                shares = np.full(cached.shape, np.nan)
                np.divide(cached, prompt, out=shares, where=prompt > 0)
                return self._own(shares, instants, cohorts.first_token)

    @cached_property
    def _gaps(self) -> tuple[Floats, Floats]:
        """When each gap between successive chunks of one request ended, and how long it was."""
        times, offsets = self._requests.token_times, self._requests.token_offsets
        later = np.ones(len(times), np.bool_)
        later[offsets[:-1][offsets[:-1] < len(times)]] = False
        return np.asarray(times[later]), gaps(self._requests, Period(-np.inf, np.inf))

    def _mean(self, times: Floats, values: Floats, instants: Floats) -> Floats:
        known = ~np.isnan(values)
        sums = self._sums(times[known], values[known], instants)
        counts = self._sums(times[known], np.ones(int(known.sum())), instants)
        means = np.full(sums.shape, np.nan)
        np.divide(sums, counts, out=means, where=counts > 0)
        return means

    def _sums(self, times: Floats, values: Floats, instants: Floats) -> Floats:
        """Sum of the values in each bin, without sorting them: one bisection of the edges each."""
        edges = (instants[:, None] + self._edges).ravel()
        order = np.argsort(edges, kind="stable")
        place = np.searchsorted(edges[order], times, side="right")
        before = np.cumsum(np.bincount(place, values, minlength=len(edges) + 1))[:-1]
        at_edge = np.empty(len(edges))
        at_edge[order] = before
        return np.diff(at_edge.reshape(len(instants), -1), axis=1)

    def _own(self, values: Floats, instants: Floats, events: Floats | None) -> Floats:
        """``values`` without the bins that reach into another reset's time.

        With ``events`` (a stamp of each request, in the order of planned instants) a reset's time
        ends with the first request whose stamp came after the next reset: leaving out only such
        requests would keep the fast of the last ones.
        """
        for row, at in enumerate(instants):
            place = int(np.searchsorted(self._effects, at + 1e-9))
            until = float(self._effects[place]) if place < len(self._effects) else np.inf
            end = min(until, self._period.end)
            earlier = int(np.searchsorted(self._effects, at - 1e-9))
            previous = float(self._effects[earlier - 1]) if earlier else 0.0
            if events is not None and until < np.inf:
                rows = self._cohorts.rows(at, end)
                late = np.flatnonzero(events[rows] >= end)
                if len(late):
                    end = float(self._cohorts.scheduled[rows][late[0]])
            outside = (at + self._edges[1:] > end) | (at + self._edges[:-1] < previous)
            values[row, outside] = np.nan
        return values


def curves(
    pairs: Mapping[ResetMode, Sequence[Pair]],
    control: ResetMode | None,
    samplers: Mapping[str, Sampler],
    edges: Floats,
) -> tuple[AlignedCurve, ...]:
    """Curves of every mode of ``pairs`` (its strata with ``control``, or its resets alone)."""
    found = []
    for mode, strata in pairs.items():
        for quantity in Quantity:
            values = [_difference(pair, quantity, samplers) for pair in strata]
            together = np.concatenate(values) if values else np.zeros((0, len(edges) - 1))
            if len(together) >= 2 and not np.all(np.isnan(together)):
                found.append(_curve(quantity, mode, control, together, edges))
    return tuple(found)


def _difference(pair: Pair, quantity: Quantity, samplers: Mapping[str, Sampler]) -> Floats:
    """Mode minus control, a row a reset, whichever of the two runs had the mode."""
    if quantity is Quantity.CACHED:  # a share does not grow with the speed of a run
        pair = replace(pair, scale=1.0)

    def sampled(run: Run, at: Floats) -> Floats:
        return samplers[run.name].sample(quantity, at)

    rows = pair.difference(sampled)
    return rows if pair.right is None else rows * np.where(pair.first, 1.0, -1.0)[:, None]


def _curve(
    quantity: Quantity, mode: ResetMode, control: ResetMode | None, values: Floats, edges: Floats
) -> AlignedCurve:
    median, low, high = (np.full(values.shape[1], np.nan) for _ in range(3))
    known = ~np.isnan(values)
    patterns, which = np.unique(known, axis=1, return_inverse=True)
    for number, pattern in enumerate(patterns.T):
        columns = np.flatnonzero(which.ravel() == number)
        if pattern.sum() >= 2:
            part = values[np.ix_(pattern, columns)]
            median[columns], low[columns], high[columns] = stats.median_band(part, draws=DRAWS)
    return AlignedCurve(
        quantity=quantity,
        mode=mode,
        control=control,
        resets=len(values),
        start=float(edges[0]),
        width=float(edges[1] - edges[0]),
        median=_told(median),
        low=_told(low),
        high=_told(high),
    )


def traces(
    runs: Sequence[Run], samplers: Mapping[str, Sampler], edges: Floats
) -> tuple[Trace, ...]:
    """The number in flight after every reset that took effect."""
    found = []
    for run in runs:
        table = run.resets
        rows = samplers[run.name].sample(Quantity.IN_FLIGHT, table["instant"].to_numpy(np.float64))
        for row, (number, mode) in zip(
            rows, zip(table.index.tolist(), table["mode"], strict=True), strict=True
        ):
            found.append(
                Trace(
                    run.name,
                    run.block,
                    int(number),
                    ResetMode(mode),
                    float(edges[0]),
                    float(edges[1] - edges[0]),
                    _told(row),
                )
            )
    return tuple(found)


def last_exit(curve: AlignedCurve, level: float, share: float) -> float | None:
    """End of the last bin after the wipe whose median lies further than ``share`` off ``level``.

    In seconds since the wipe; 0 if none does. None if it is the last bin that was seen: the curve
    had not come back.
    """
    starts = curve.start + curve.width * np.arange(len(curve.median))
    seen = [
        (float(start), value)
        for start, value in zip(starts, curve.median, strict=True)
        if value is not None and start >= 0
    ]
    outside = [k for k, (_, value) in enumerate(seen) if abs(value - level) > share * level]
    if not outside:
        return 0.0 if seen else None
    last = outside[-1]
    return None if last == len(seen) - 1 else seen[last][0] + curve.width


def _told(values: NDArray[np.float64]) -> tuple[float | None, ...]:
    return tuple(None if np.isnan(value) else round(float(value), 6) for value in values)
