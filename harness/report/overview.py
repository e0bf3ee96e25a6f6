"""The panels that hold all loads of an experiment: price against rate, and throughput."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from harness.analysis.experiment.capacity import Capacity
from harness.analysis.experiment.rate import RateFindings
from harness.records import ResetMode
from harness.report.axes import MODE_DASHES, SOLID
from harness.report.panels import Panel, draw
from harness.report.svg import INK, colour


def load_sweep(rates: Sequence[RateFindings]) -> Panel | None:
    """Price against rate; None with fewer than two rates that tell one."""
    priced = [rate for rate in rates if rate.prices]
    if len(priced) < 2:
        return None
    return draw(
        lambda axis: _draw_sweep(axis, priced),
        "sweep",
        "What a wipe costs at each load",
        "∫ΔN over one reset spacing, in request-seconds, with 95 % intervals.",
    )


def _draw_sweep(axis: Axes, rates: Sequence[RateFindings]) -> None:
    modes = [mode for mode in ResetMode if any(p.mode is mode for r in rates for p in r.prices)]
    nudges = np.linspace(-0.03, 0.03, len(modes)) if len(modes) > 1 else [0.0]
    for nudge, mode in zip(nudges, modes, strict=True):
        points = [
            (rate.rate * (1 + nudge), price.total)
            for rate in rates
            for price in rate.prices
            if price.mode is mode and price.total.estimate is not None
        ]
        shade = colour(mode)
        for at, told in points:
            if told.low is not None and told.high is not None:
                axis.plot([at, at], [told.low, told.high], color=shade, lw=2)
        axis.plot(
            [at for at, _ in points],
            [told.estimate or 0.0 for _, told in points],
            marker="o",
            ms=5,
            color=shade,
            ls=MODE_DASHES.get(mode, SOLID),
            lw=1.2,
            label=mode.value,
        )
    axis.axhline(0, color=INK, lw=0.8)
    axis.set_xlabel("requests a second")
    axis.set_ylabel("request-seconds")
    axis.legend(loc="upper left")


def throughput(capacity: Capacity) -> Panel:
    """What went out against what came in."""
    return draw(
        lambda axis: _draw_throughput(axis, capacity),
        "throughput",
        "Requests that ended against requests sent",
        "A second, over the second half of each run. On the diagonal the replica keeps up; where "
        "it turns away lies the capacity.",
    )


def _draw_throughput(axis: Axes, capacity: Capacity) -> None:
    top = max((run.sent for run in capacity.runs), default=1.0) * 1.05
    axis.plot([0, top], [0, top], color=INK, lw=0.8, ls=(0, (2, 2)))
    for bracket in capacity.brackets:
        own = [run for run in capacity.runs if run.mode is bracket.mode]
        warm = bracket.mode is ResetMode.NONE
        axis.plot(
            [run.sent for run in own],
            [run.ended for run in own],
            marker="o" if warm else "^",
            ms=6,
            lw=1.2,
            color=colour(bracket.mode),
            label="warm" if warm else f"cold by {bracket.mode}",
        )
    axis.set_xlim(0, top)
    axis.set_ylim(bottom=0)
    axis.set_xlabel("sent a second")
    axis.set_ylabel("ended a second")
    axis.legend(loc="upper left")
