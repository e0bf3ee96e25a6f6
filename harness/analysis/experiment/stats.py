"""What the randomisation of a plan lets one say: p-values and intervals without a model of noise.

Modes are assigned to resets (or to runs) by the plan's own draw. Had no mode mattered, every other
draw would have met the same outcomes; so the share of draws that give a difference at least as
large is an exact p-value, however runs drift and resets disturb each other. An interval holds every
difference that the same test would not reject.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np
import scipy.stats
from numpy.typing import NDArray

from harness.analysis.in_flight import Floats

Bools = NDArray[np.bool_]

MIN_UNITS = 8
"""Fewer resets than this cannot be balanced well enough to reject anything at 5 %."""
ALL_UP_TO = 20_000
"""Assignments are enumerated up to this many, and drawn beyond."""
DRAWS = 4_999
"""Assignments drawn beside the actual one where there are too many to enumerate."""


@dataclass(frozen=True)
class Trials:
    """What was assigned at random, and what came of it: one entry a unit.

    A unit is a planned reset seen in a pair of runs that gave it opposite modes (the outcome is
    then the first run's figure minus the second's), a reset of a single run, or a whole run.
    """

    outcome: Floats
    first: Bools
    """Whether the unit got the first of the two modes; for a pair, whether its first run did."""
    stratum: NDArray[np.int64]
    """Within a stratum the number of firsts was fixed and their places were drawn."""
    paired: bool
    """Whether outcomes are differences within pairs."""
    unit: str = "resets"
    """What a unit is, for messages."""
    covariates: Floats | None = None
    """(units, k): what was known before the mode acted, to be regressed out."""

    def dose(self, first: Bools) -> Floats:
        """How much of (first − second) each unit's outcome contains, for any assignment."""
        return np.where(first, 1.0, -1.0) * (1.0 if self.paired else 0.5)


class Comparison(msgspec.Struct, frozen=True):
    """The mean difference first − second, its interval and p-value, in the outcome's unit."""

    estimate: float | None
    """None where the two modes never met."""
    low: float | None
    """Ends of the interval; None where nothing can be told."""
    high: float | None
    p_value: float | None
    standard_error: float | None
    """By least squares, for planning only; None where it is not determined."""
    units: int
    assignments: int
    """How many assignments the test compared, the actual one included."""
    reason: str | None = None
    """Why nothing can be told, or None."""

    @property
    def half_width(self) -> float | None:
        """Half of the interval's length; None where nothing can be told."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval was told and leaves out zero."""
        return self.low is not None and self.high is not None and self.low * self.high > 0


def compare(trials: Trials, level: float = 0.95, seed: int = 0) -> Comparison:
    """Mean difference of the two modes by least squares, tested by re-randomisation.

    The statistic is the t of the dose in a regression of the outcome on strata, covariates and
    dose. For a difference τ the outcomes without it are y − τ·dose; each other assignment beats the
    actual one for τ inside an interval around the estimate, whose ends are two linear equations.
    So p(τ) is a count of intervals, and those τ with p(τ) > 1 − ``level`` need no search.

    Returns:
        No interval but a reason with fewer than ``MIN_UNITS`` units, or where no assignment could
        have rejected at this level.
    """
    units = len(trials.outcome)
    weights = effect_weights(trials)
    if weights is None:
        reason = "the two modes were never compared"
        return Comparison(None, None, None, None, None, units, 0, reason)
    estimate = float(weights @ trials.outcome)
    error = _standard_error(trials, weights)
    if units < MIN_UNITS:
        reason = f"{units} {trials.unit}; at least {MIN_UNITS} are needed"
        return Comparison(estimate, None, None, None, error, units, 0, reason)
    doses = trials.dose(_assignments(trials, seed))
    low, high = _not_beaten(trials, doses)
    margin = 1e-9 * float(np.abs(trials.outcome).max())
    count = math.floor((1 - level) * len(doses))
    ends = float(np.sort(low)[count]), float(np.sort(high)[::-1][count])
    if math.isinf(ends[0]) or math.isinf(ends[1]):
        reason = f"{len(doses)} possible assignments cannot reject at {1 - level:.0%}"
        return Comparison(estimate, None, None, None, error, units, len(doses), reason)
    p_value = float(np.mean((low <= margin) & (high >= -margin)))
    return Comparison(estimate, *ends, p_value, error, units, len(doses))


def further_units(comparison: Comparison, half_width: float) -> int | None:
    """How many units more would narrow the 95 % interval to ± ``half_width``; None if unknown.

    From this comparison's own standard error, which falls with the root of the units; z²/2 units
    stand for what a t quantile asks beyond the normal one.
    """
    if comparison.standard_error is None:
        return None
    z = float(scipy.stats.norm.ppf(0.975))
    wanted = comparison.units * (z * comparison.standard_error / half_width) ** 2 + z**2 / 2
    return max(0, math.ceil(max(wanted, MIN_UNITS)) - comparison.units)


def half_life(grid: Floats, accrued: Floats, total: Comparison) -> float | None:
    """When half of the pooled excess had accrued; None unless ``total`` excludes zero.

    Args:
        grid: ascending, from 0 to the horizon; the result is in its unit.
        accrued: the pooled excess up to each grid point, 0 at the first.
        total: the excess over the whole horizon.
    """
    if not total.excludes_zero or accrued[-1] == 0:
        return None
    share = accrued / accrued[-1]
    place = int(np.argmax(share >= 0.5))
    return float(np.interp(0.5, share[place - 1 : place + 1], grid[place - 1 : place + 1]))


def median_band(
    curves: Floats, level: float = 0.95, draws: int = 999, seed: int = 0
) -> tuple[Floats, Floats, Floats]:
    """Median over resets at each grid point, and the ends of its bootstrap band.

    Describes the resets of these runs; it makes no claim about a mode, since resets of one run are
    not independent.

    Args:
        curves: (resets, grid), at least two resets.
        level: of the pointwise percentile band.
        draws: bootstrap samples of whole curves.
        seed: of those samples.
    """
    band = scipy.stats.bootstrap(
        (curves,),
        np.median,
        axis=0,
        vectorized=True,
        n_resamples=draws,
        batch=100,
        confidence_level=level,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return np.median(curves, axis=0), np.asarray(band.low), np.asarray(band.high)


def trend(values: Floats) -> float:
    """Change from the first to the last of equally spaced values, by a least-squares line."""
    if len(values) < 2:
        return 0.0
    return float(np.polyfit(np.linspace(0, 1, len(values)), values, 1)[0])


def effect_weights(trials: Trials) -> Floats | None:
    """Weights whose product with any outcome of these units is its estimated first − second.

    The least-squares coefficient of the dose, with strata and covariates regressed out; None where
    no stratum holds both modes.
    """
    if len(trials.outcome) == 0:
        return None
    basis, dose = _basis(trials), trials.dose(trials.first)
    rest = dose - basis @ (basis.T @ dose)
    strength = float(rest @ rest)
    return np.asarray(rest / strength) if strength > 1e-9 * len(dose) else None


def _standard_error(trials: Trials, weights: Floats) -> float | None:
    basis, dose = _basis(trials), trials.dose(trials.first)
    rest = trials.outcome - dose * float(weights @ trials.outcome)
    residual = rest - basis @ (basis.T @ rest)
    free = len(residual) - basis.shape[1] - 1
    return math.sqrt(float(residual @ residual) / free * float(weights @ weights)) if free else None


def _basis(trials: Trials) -> Floats:
    """Orthonormal basis of what is regressed out: stratum means and covariates."""
    strata = trials.stratum[:, None] == np.unique(trials.stratum)[None, :]
    columns = strata.astype(np.float64)
    if trials.covariates is not None:
        columns = np.column_stack([columns, trials.covariates])
    left, sizes, _ = np.linalg.svd(columns, full_matrices=False)
    return np.asarray(left[:, sizes > 1e-9 * sizes[0]])


def _not_beaten(trials: Trials, doses: Floats) -> tuple[Floats, Floats]:
    """Ends of the interval of τ in which each assignment is at least as extreme as the actual one.

    With M the projection off the basis and d the actual dose, an assignment e is as extreme when
    |e'My − τ e'Md| / √(e'Me) ≥ |d'My − τ d'Md| / √(d'Md). Both sides are linear in τ up to sign,
    and the right side is 0 at the estimate, so its ends are the crossings on either side.
    """
    basis, y, dose = _basis(trials), trials.outcome, trials.dose(trials.first)
    rest = dose - basis @ (basis.T @ dose)
    length = np.sqrt(np.maximum(np.sum(doses**2, 1) - np.sum((doses @ basis) ** 2, 1), 1e-300))
    along = (doses @ (y - basis @ (basis.T @ y))) / length
    cross = (doses @ rest) / length
    own = math.sqrt(float(rest @ rest))
    effect = float(rest @ y) / own
    itself = np.abs(cross) > (1 - 1e-9) * own  # the actual assignment or its mirror image
    nearer = np.where(itself, 0.0, cross)
    ends = np.stack([(effect - along) / (own - nearer), (effect + along) / (own + nearer)])
    low = np.where(itself, -math.inf, ends.min(axis=0))
    high = np.where(itself, math.inf, ends.max(axis=0))
    return low, high


def _assignments(trials: Trials, seed: int) -> Bools:
    """Every assignment the plan could have drawn, or the actual one and ``DRAWS`` others."""
    groups = [np.flatnonzero(trials.stratum == label) for label in np.unique(trials.stratum)]
    chosen = [int(trials.first[group].sum()) for group in groups]
    possible = math.prod(math.comb(len(group), k) for group, k in zip(groups, chosen, strict=True))
    if possible <= ALL_UP_TO:
        return np.array(list(_all(groups, chosen, len(trials.first))))
    rng = np.random.default_rng(seed)
    drawn = np.zeros((DRAWS + 1, len(trials.first)), bool)
    for group, k in zip(groups, chosen, strict=True):
        order = rng.random((DRAWS + 1, len(group))).argsort(axis=1)
        np.put_along_axis(drawn, group[order[:, :k]], values=True, axis=1)
    drawn[0] = trials.first
    return drawn


def _all(groups: list[NDArray[np.intp]], chosen: list[int], units: int) -> Iterator[Bools]:
    parts = [itertools.combinations(g, k) for g, k in zip(groups, chosen, strict=True)]
    for pick in itertools.product(*parts):
        row = np.zeros(units, bool)
        row[list(itertools.chain.from_iterable(pick))] = True
        yield row
