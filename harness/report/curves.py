"""Recovery curves: TTFT, latency and cached share against the time since the wipe."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from harness.analysis.curves import CurveBin, Quartiles, RecoveryCurve
from harness.report.axes import MODE_COLOURS, MODE_DASHES, say, scale


def draw_curves(axes: list[Axes], curves: list[RecoveryCurve]) -> None:
    """The right column: TTFT, latency and cached share against the time since the wipe."""
    resets = sum(curve.resets for curve in curves)
    _draw_spread(axes[0], curves, lambda one: one.ttft)
    axes[0].set_title(f"TTFT after {resets} resets: median, quartiles")
    _draw_spread(axes[1], curves, lambda one: one.latency)
    axes[1].set_title("Latency: median, quartiles")
    axes[2].set_title("Prompt tokens cached")
    axes[2].set_ylim(-0.03, 1.03)
    axes[2].yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes[2].set_xlabel("seconds since the wipe, by planned instant")
    for curve in curves:
        told = [one for one in curve.bins if one.cached_share is not None]
        shares = [one.cached_share or 0.0 for one in told]
        _plot(axes[2], curve, told, shares)
    if not any(one.cached_share is not None for curve in curves for one in curve.bins):
        say(axes[2], "No reply told it.")
    for axis in axes:
        axis.axvline(0, color="#333333", lw=1.0)
        axis.set_xlim(
            min(curve.bins[0].start for curve in curves), max(c.bins[-1].end for c in curves)
        )
    for axis in axes[:2]:
        axis.tick_params(labelbottom=False)
    if len(curves) > 1:
        axes[0].legend(loc="upper right")


def _draw_spread(
    axis: Axes, curves: list[RecoveryCurve], of: Callable[[CurveBin], Quartiles | None]
) -> None:
    everything: list[float] = []
    for curve in curves:
        seen = [(one, spread) for one in curve.bins if (spread := of(one)) is not None]
        bins = [one for one, _ in seen]
        low, high = [s.q1 for _, s in seen], [s.q3 for _, s in seen]
        axis.fill_between(
            _middles(bins), low, high, color=MODE_COLOURS[curve.mode], alpha=0.2, lw=0
        )
        _plot(axis, curve, bins, [spread.median for _, spread in seen])
        everything += low + high
    scale(axis, np.array(everything))
    if not everything:
        say(axis, "No request succeeded.")


def _plot(axis: Axes, curve: RecoveryCurve, bins: list[CurveBin], values: list[float]) -> None:
    axis.plot(
        _middles(bins),
        values,
        color=MODE_COLOURS[curve.mode],
        ls=MODE_DASHES[curve.mode],
        lw=1.8,
        marker=".",
        ms=5,
        label=f"{curve.mode} ({curve.resets})",
    )


def _middles(bins: Iterable[CurveBin]) -> list[float]:
    return [(one.start + one.end) / 2 for one in bins]
