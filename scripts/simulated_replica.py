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
    """How runs of one plan differ. All are standard deviations, as shares."""

    request: float = 0.10
    """Of each request's work, drawn anew in each run."""
    run: float = 0.01
    """Of each run's speed."""
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
    """(runs, resets)."""
    modes: NDArray[np.str_]
    """(runs, resets): values of ResetMode."""


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
    state = _State(batch, replica, clock.stretch(batch.sent), work)
    state.run(clock.stretch(batch.resets))
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
        speed = np.exp(noise.run * rng.normal(0, 1, (runs, 1)) + noise.drift * drift)
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
    """All runs of a batch between two events. Slots 0 .. count − 1 of a row are in flight."""

    def __init__(self, batch: Batch, replica: Replica, sent: Floats, work: Floats) -> None:
        runs, _ = sent.shape
        self.replica, self.batch = replica, batch
        self.sent = np.concatenate([sent, np.full((runs, 1), np.inf)], axis=1)
        self.work = work
        self.finished = np.full(sent.shape, np.nan)
        self.now, self.done = np.zeros(runs), np.zeros(runs)
        self.count, self.following = np.zeros(runs, np.int64), np.zeros(runs, np.int64)
        self.end = np.full((runs, 32), np.inf)
        self.request = np.zeros((runs, 32), np.int64)
        self.cached = np.ones((runs, replica.prefixes))
        self.rows = np.arange(runs)

    def run(self, resets: Floats) -> None:
        pending = np.concatenate([resets, np.full((len(resets), 1), np.inf)], axis=1)
        reset = np.zeros(len(resets), np.int64)
        while True:
            occupied = max(1, int(self.count.max()))
            slot = self.end[:, :occupied].argmin(axis=1)
            slowness = self.replica.a + self.replica.b * self.count
            departure = self.now + (self.end[self.rows, slot] - self.done) * slowness
            arrival = self.sent[self.rows, self.following]
            wipe = pending[self.rows, reset]
            then = np.minimum(np.minimum(departure, arrival), wipe)
            live = np.isfinite(then)
            if not live.any():
                return
            self.done += np.where(live, then - self.now, 0.0) / slowness
            self.now = np.where(live, then, self.now)
            leaves = live & (departure <= np.minimum(arrival, wipe))
            comes = live & ~leaves & (arrival <= wipe)
            self.leave(np.flatnonzero(leaves), slot)
            self.come(np.flatnonzero(comes))
            for row in np.flatnonzero(live & ~leaves & ~comes):
                self.wipe(int(row), ResetMode(self.batch.modes[row, reset[row]]))
                reset[row] += 1

    def leave(self, rows: Ints, slots: Ints) -> None:
        slot, last = slots[rows], self.count[rows] - 1
        self.finished[rows, self.request[rows, slot]] = self.now[rows]
        self.end[rows, slot] = self.end[rows, last]
        self.request[rows, slot] = self.request[rows, last]
        self.end[rows, last] = np.inf
        self.count[rows] = last

    def come(self, rows: Ints) -> None:
        if len(rows) == 0:
            return
        request, slot = self.following[rows], self.count[rows]
        if int(slot.max()) >= self.end.shape[1]:
            self.end = np.concatenate([self.end, np.full_like(self.end, np.inf)], axis=1)
            self.request = np.concatenate([self.request, np.zeros_like(self.request)], axis=1)
        prefix = self.batch.prefix[rows, request]
        extra = self.replica.miss * (1 - self.cached[rows, prefix])
        self.cached[rows, prefix] = 1.0
        self.end[rows, slot] = self.done[rows] + self.work[rows, request] * (1 + extra)
        self.request[rows, slot] = request
        self.count[rows] += 1
        self.following[rows] += 1

    def wipe(self, row: int, mode: ResetMode) -> None:
        if mode is ResetMode.SHAM:
            return
        self.cached[row] = 0.0
        if mode is ResetMode.PREEMPT:
            running = self.request[row, : self.count[row]]
            prefix, first = np.unique(self.batch.prefix[row, running], return_index=True)
            redo = np.full(len(running), self.replica.redo_again)
            redo[first] = self.replica.redo
            self.end[row, : self.count[row]] += self.replica.severity * redo
            self.cached[row, prefix] = self.replica.severity
