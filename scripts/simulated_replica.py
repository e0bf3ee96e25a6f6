"""A replica that loses its prefix cache, simulated: processor sharing with a known service law.

While n requests are in flight each progresses at speed/(a + b·n). Prefixes are drawn by a Zipf law;
a request whose prefix is not cached has twice the work and leaves the prefix cached. All runs of a
batch advance together, one event of each per step, so that a thousand runs cost little more than
one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.records import ResetMode

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Noise:
    """What a run draws anew. All are standard deviations, as shares."""

    request: float = 0.10
    """Of each request's work, drawn anew in each run."""
    drift: float = 0.0
    """Of the speed within a run: an Ornstein-Uhlenbeck path."""
    drift_seconds: float = 30.0
    """Correlation time of the drift."""


@dataclass(frozen=True)
class Replica:
    """The service law and what a wipe costs, in units of a hot request's work."""

    a: float = 0.878
    b: float = 0.199
    prefixes: int = 40
    zipf: float = 1.0
    miss: float = 1.0
    """Extra work of a request whose prefix is not cached."""
    redo: float = 1.0
    """Extra work of a preempted request that is the first of its prefix to prefill again."""
    redo_again: float = 0.1
    """Extra work of every other preempted request: its own tokens."""
    severity: float = 1.0
    """Share of that extra work that preempt really causes, and of those prefixes it caches."""

    def popularity(self) -> Floats:
        """Probability of each prefix."""
        weights = np.arange(1, self.prefixes + 1) ** -self.zipf
        return np.asarray(weights / weights.sum())


@dataclass(frozen=True)
class Batch:
    """Plans of several runs, one a row; rows may share a plan."""

    sent: Floats
    """(runs, requests), ascending along a row; infinity pads short rows."""
    prefix: Ints
    resets: Floats
    """(runs, resets), ascending along a row."""
    modes: NDArray[np.str_]
    """(runs, resets): values of ResetMode."""
    speed: Floats
    """(runs,): 1 for the speed of the service law."""


def arrivals(
    plans: int, rate: float, duration: float, replica: Replica, rng: np.random.Generator
) -> tuple[Floats, Ints]:
    """Poisson arrivals and their prefixes, one plan a row, padded with infinity."""
    counts = rng.poisson(rate * duration, plans)
    sent = rng.uniform(0, duration, (plans, int(counts.max())))
    sent[np.arange(sent.shape[1]) >= counts[:, None]] = np.inf
    sent.sort(axis=1)
    prefix = rng.choice(replica.prefixes, sent.shape, p=replica.popularity())
    return sent, prefix


def simulate(batch: Batch, replica: Replica, noise: Noise, rng: np.random.Generator) -> Floats:
    """When each request finishes, seconds; NaN where the plan is padded.

    Speed only stretches time, so each run is simulated at speed 1 on its own stretched clock.
    """
    clock = _Clock.drawn(batch, noise, rng)
    work = np.maximum(rng.normal(1, noise.request, batch.sent.shape), 0.1)
    state = _State(batch, replica, clock, work)
    state.run()
    return clock.relax(state.finished)


@dataclass(frozen=True)
class _Clock:
    """u(t) = ∫ speed dt of each run, on a grid of one second, straight beyond its end."""

    grid: Floats
    stretched: Floats

    @classmethod
    def drawn(cls, batch: Batch, noise: Noise, rng: np.random.Generator) -> _Clock:
        runs = len(batch.sent)
        last = float(batch.sent[np.isfinite(batch.sent)].max())
        grid = np.arange(np.ceil(last) + 2)
        keep = np.exp(-1 / noise.drift_seconds)
        drift = np.empty((runs, len(grid) - 1))
        level = rng.normal(0, 1, runs)
        for second in range(len(grid) - 1):
            drift[:, second] = level
            level = keep * level + np.sqrt(1 - keep**2) * rng.normal(0, 1, runs)
        speed = batch.speed[:, None] * np.exp(noise.drift * drift)
        return cls(grid, np.concatenate([np.zeros((runs, 1)), np.cumsum(speed, axis=1)], axis=1))

    def stretch(self, t: Floats) -> Floats:
        inside = np.where(np.isfinite(t), t, 0.0)
        rows = zip(inside, self.stretched, strict=True)
        out = np.stack([np.interp(row, self.grid, stretched) for row, stretched in rows])
        return np.where(np.isfinite(t), out, np.inf)

    def relax(self, u: Floats) -> Floats:
        rows = zip(u, self.stretched, strict=True)
        inside = np.stack([np.interp(row, stretched, self.grid) for row, stretched in rows])
        return np.asarray(inside + np.maximum(u - self.stretched[:, -1:], 0.0))


class _State:
    """All runs of a batch between two events, with what is yet to come in each.

    Slots 0 .. count − 1 of a row are in flight. What comes is one list a row, requests and resets
    in order, kept flat: indexing flat arrays is what a step spends its time on.
    """

    def __init__(self, batch: Batch, replica: Replica, clock: _Clock, work: Floats) -> None:
        runs, requests = batch.sent.shape
        resets = batch.resets.shape[1]
        self.batch, self.replica, self.work = batch, replica, work.ravel()
        when = np.concatenate([clock.stretch(batch.sent), clock.stretch(batch.resets)], axis=1)
        order = when.argsort(axis=1, kind="stable")
        rows = np.arange(runs)[:, None]
        ends = np.full((runs, 1), np.inf)
        self.coming = np.concatenate(
            [np.take_along_axis(when, order, axis=1), ends], axis=1
        ).ravel()
        what = np.where(order < requests, rows * requests + order, requests - 1 - order)
        self.what = np.concatenate([what, what[:, :1]], axis=1).ravel()
        """Flat row of a request, or −1 − number of a reset."""
        self.following = np.arange(runs) * (requests + resets + 1)
        self.finished = np.full(runs * requests, np.nan)
        self.now, self.done = np.zeros(runs), np.zeros(runs)
        self.count = np.zeros(runs, np.int64)
        self.end = np.full((runs, 32), np.inf)
        self.request = np.zeros((runs, 32), np.int64)
        self.cached = np.ones((runs, replica.prefixes))
        self.prefix = batch.prefix.ravel()

    def run(self) -> None:
        rows = np.arange(len(self.now))
        while True:
            occupied = max(1, int(self.count.max()))
            slot = self.end[:, :occupied].argmin(axis=1)
            slowness = self.replica.a + self.replica.b * self.count
            departure = self.now + (self.end[rows, slot] - self.done) * slowness
            arrival = self.coming[self.following]
            then = np.minimum(departure, arrival)
            live = then < np.inf
            if not live.all():
                if not live.any():
                    break
                then = np.where(live, then, self.now)
            self.done += (then - self.now) / slowness
            self.now = then
            leaves = departure <= arrival
            self.leave(np.flatnonzero(leaves & live), slot)
            self.come(np.flatnonzero(~leaves & live))
        self.finished = self.finished.reshape(self.batch.sent.shape)

    def leave(self, rows: Ints, slots: Ints) -> None:
        slot, last = slots[rows], self.count[rows] - 1
        self.finished[self.request[rows, slot]] = self.now[rows]
        self.end[rows, slot] = self.end[rows, last]
        self.request[rows, slot] = self.request[rows, last]
        self.end[rows, last] = np.inf
        self.count[rows] = last

    def come(self, rows: Ints) -> None:
        what = self.what[self.following[rows]]
        self.following[rows] += 1
        if len(what) and what.min() < 0:
            for row, reset in zip(rows[what < 0], -1 - what[what < 0], strict=True):
                self.wipe(int(row), ResetMode(self.batch.modes[row, reset]))
            rows, what = rows[what >= 0], what[what >= 0]
        slot = self.count[rows]
        if slot.max(initial=0) >= self.end.shape[1]:
            self.end = np.concatenate([self.end, np.full_like(self.end, np.inf)], axis=1)
            self.request = np.concatenate([self.request, np.zeros_like(self.request)], axis=1)
        prefix = self.prefix[what]
        extra = self.replica.miss * (1 - self.cached[rows, prefix])
        self.cached[rows, prefix] = 1.0
        self.end[rows, slot] = self.done[rows] + self.work[what] * (1 + extra)
        self.request[rows, slot] = what
        self.count[rows] = slot + 1

    def wipe(self, row: int, mode: ResetMode) -> None:
        if mode is ResetMode.SHAM:
            return
        self.cached[row] = 0.0
        if mode is ResetMode.PREEMPT:
            running = self.request[row, : self.count[row]]
            prefix, first = np.unique(self.prefix[running], return_index=True)
            redo = np.full(len(running), self.replica.redo_again)
            redo[first] = self.replica.redo
            self.end[row, : self.count[row]] += self.replica.severity * redo
            self.cached[row, prefix] = self.replica.severity
