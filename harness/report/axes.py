"""How figures look: style, colours, and axes in seconds."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray

from harness.records import ResetMode

Dashes = tuple[float, tuple[float, ...]]
"""Offset and lengths of dashes and gaps, as matplotlib takes them."""
SOLID: Dashes = (0, ())

STYLE: dict[Any, Any] = {
    "font.size": 11.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11.0,
    "axes.titlelocation": "left",
    "axes.grid": True,
    "grid.color": "#e5e5e5",
    "axes.axisbelow": True,
    "legend.frameon": False,
}
# Colours of Okabe and Ito (2008), told apart by all common kinds of colour blindness; marks and
# dashes say the same again.
MODE_COLOURS = {
    ResetMode.DEFAULT: "#009E73",
    ResetMode.PREEMPT: "#D55E00",
    ResetMode.KEEP: "#0072B2",
    ResetMode.SHAM: "#777777",
}
MODE_DASHES: dict[ResetMode, Dashes] = {
    ResetMode.DEFAULT: (0, (1, 1)),
    ResetMode.PREEMPT: (0, (4, 1.5)),
    ResetMode.KEEP: SOLID,
    ResetMode.SHAM: (0, (1, 3)),
}


def scale(axis: Axes, seconds: NDArray[np.float64]) -> None:
    """A logarithmic axis where values span more than a factor of ten, else one from 0."""
    known = seconds[seconds > 0]
    largest, smallest = (known.max(), known.min()) if len(known) else (1.0, 1.0)
    if largest > 10 * smallest:
        axis.set_yscale("log", nonpositive="clip")
        few_decades = largest < 300 * smallest
        axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0) if few_decades else (1.0,)))
        axis.yaxis.set_minor_formatter(NullFormatter())
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value, value)))
    else:
        axis.set_ylim(bottom=0)
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value, largest)))


def _tick(seconds: float, largest: float) -> str:
    """A tick's label; in milliseconds where the axis' largest value is below a second."""
    if seconds == 0:
        return "0"
    return f"{1000 * seconds:.4g} ms" if largest < 0.9995 else f"{seconds:,.4g} s"


def say(axis: Axes, text: str) -> None:
    """Say why an axis is empty, in place of its ticks."""
    axis.set_yticks([])
    axis.text(0.5, 0.5, text, transform=axis.transAxes, ha="center", va="center", color="#555555")
