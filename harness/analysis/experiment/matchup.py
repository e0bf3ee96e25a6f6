"""Runs of one rate set against each other: control, horizon, contrasts, prices, curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise

import msgspec
import numpy as np

from harness.analysis.experiment import (
    aligned,
    arms,
    contrast,
    crossover,
    paired,
    pairs,
    stats,
    ttft,
)
from harness.analysis.experiment.aligned import AlignedCurve, Sampler, Trace
from harness.analysis.experiment.contrast import Contrast, Price
from harness.analysis.experiment.pairs import Pair, Run
from harness.analysis.experiment.recorded import Recorded
from harness.analysis.experiment.ttft import TtftExcess
from harness.design import Design
from harness.records import ResetMode

_DEAREST = (ResetMode.PREEMPT, ResetMode.KEEP, ResetMode.DEFAULT, ResetMode.SHAM)


def _dearest_first(mode: ResetMode) -> int:
    return _DEAREST.index(mode)


@dataclass(frozen=True)
class Matchup:
    """All runs of one rate in one design."""

    design: Design
    recorded: Sequence[Recorded]

    @cached_property
    def spacing(self) -> float | None:
        """Least time between two planned resets of one run; a replay's are not planned."""
        planned = [
            [reset.scheduled for reset in run.journals.manifest.plan.resets]
            for run in self.recorded
            if not (self.design is Design.AT_IDLE and run.planned_modes == {ResetMode.KEEP})
        ]
        gaps = [b - a for instants in planned for a, b in pairwise(instants)]
        return min(gaps, default=None)

    @cached_property
    def horizon(self) -> float | None:
        """H of a whole wipe's price: the spacing, or what is measured after an only reset."""
        if self.spacing is not None:
            return self.spacing
        ends = [
            run.summary.period.end - reset.scheduled
            for run in self.recorded
            for reset in run.journals.manifest.plan.resets
        ]
        return min((end for end in ends if end > 0), default=None)

    @cached_property
    def control(self) -> ResetMode | None:
        """What wipes are compared with; None if nothing of that kind was planned."""
        planned = {mode for run in self.recorded for mode in run.planned_modes}
        wanted = ResetMode.SHAM if self.design is Design.CROSSOVER else ResetMode.NONE
        return wanted if wanted in planned else None

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """The runs as contrasts see them; none where no reset was planned, or no mode contrasts."""
        if self.horizon is None or self.design in (Design.AT_IDLE, Design.CAPACITY):
            return ()
        found: list[Run] = []
        for run in self.recorded:
            if run.summary.period.length <= 0:
                continue
            block = self._block(run, found)
            one = Run.of(run.journals, run.resets, run.name, self.horizon, block=block)
            if len(one.resets) or run.planned_modes == {ResetMode.NONE}:
                found.append(one)
        return tuple(found)

    def _block(self, run: Recorded, before: Sequence[Run]) -> str:
        """Runs that replay one plan; of several experiments, or with a mode again, apart."""
        digest = run.summary.plan_digest
        if self.design is Design.CROSSOVER:
            return f"{digest}#{run.source}" if run.source else digest
        modes = set(run.planned_modes)
        again = sum(
            one.block.partition("#")[0] == digest and {one.mode()} == modes for one in before
        )
        return f"{digest}#{again}" if again else digest

    @cached_property
    def wiping(self) -> list[ResetMode]:
        """Modes that took effect at least once, in order; the control is none of them."""
        seen = {ResetMode(mode) for run in self.runs for mode in run.resets["mode"]}
        return [mode for mode in ResetMode if mode in seen and mode is not self.control]

    def contrasts(self) -> tuple[Contrast, ...]:
        """Every two modes against each other."""
        if self.horizon is None:
            return ()
        found = []
        for first, second in combinations(sorted(self.wiping, key=_dearest_first), 2):
            if self.design is Design.CROSSOVER:
                found.append(contrast.contrast(self.runs, first, second, self.horizon))
            elif self.control is not None:
                told = arms.compare(self.runs, first, second, self.horizon)
                found.append(self._against_noise(told))
        return tuple(found)

    def _against_noise(self, found: Contrast) -> Contrast:
        """``found``, void where two controls of one plan drift apart by half of the effect."""
        drift, effect = paired.control_noise(self.runs), found.short.estimate
        if found.void or drift is None or effect is None or drift <= abs(effect) / 2:
            return found
        why = (
            f"two runs without resets drifted apart by {drift:.1f} request-seconds a window, more "
            f"than half of the effect of {abs(effect):.1f}; compare within a run (crossover)"
        )
        return msgspec.structs.replace(found, void=why)

    def prices(self, relaxation: float | None) -> tuple[Price, ...]:
        """What each mode costs against the control; ``relaxation`` is the queue's, in seconds."""
        if self.horizon is None or self.control is None:
            return ()
        found = []
        for mode in self.wiping:
            if self.design is Design.CROSSOVER:
                found.append(contrast.price(self.runs, mode, self.horizon, relaxation))
            else:
                found.append(arms.price(self.runs, mode, self.horizon, relaxation))
        return tuple(found)

    def ttft(self) -> tuple[TtftExcess, ...]:
        """TTFT excess of each mode against the control."""
        if self.horizon is None or self.control is None:
            return ()
        figure = ttft.figure(self.recorded, self.horizon)
        found = []
        for mode in self.wiping:
            if self.design is Design.CROSSOVER:
                strata = pairs.pairs(self.runs, mode, self.control)
                told = stats.compare(crossover.trials(strata, figure))
            else:
                told = arms.told(self.runs, mode, self.control, figure)
            found.append(TtftExcess(mode, self.control, self.horizon, told))
        return tuple(found)

    def curves(self) -> tuple[tuple[AlignedCurve, ...], tuple[Trace, ...]]:
        """Curves of every mode, with the control subtracted and without; and every reset's own."""
        if self.horizon is None or not self.runs:
            return (), ()
        edges = aligned.bins(self.recorded[0].rate, self.horizon)
        named = {run.name: run for run in self.recorded}
        samplers = {run.name: Sampler(named[run.name], edges) for run in self.runs}
        alone = {mode: self._alone(mode) for mode in [*self.wiping, ResetMode.SHAM]}
        raw = aligned.curves(alone, None, samplers, edges)
        found = raw
        if self.control is not None:
            beside = {mode: self._beside(mode) for mode in self.wiping}
            found = (*aligned.curves(beside, self.control, samplers, edges), *raw)
        return found, aligned.traces(self.runs, samplers, edges)

    def _beside(self, mode: ResetMode) -> list[Pair]:
        if self.design is Design.CROSSOVER:
            return [p for p in pairs.pairs(self.runs, mode, ResetMode.SHAM) if p.right is not None]
        return arms.pairs(self.runs, mode)

    def _alone(self, mode: ResetMode) -> list[Pair]:
        """Every reset of a mode by itself."""
        found = []
        for run in self.runs:
            ids = run.resets.index[run.resets["mode"] == mode].to_numpy(np.int64)
            if len(ids):
                found.append(Pair(run, None, ids, np.ones(len(ids), bool)))
        return found
