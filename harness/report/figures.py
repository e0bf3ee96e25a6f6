"""``recovery.png``: one run over time, and its recovery curves aligned at the wipes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import (
    FuncFormatter,
    LogLocator,
    NullFormatter,
    PercentFormatter,
)
from numpy.typing import NDArray

from harness.analysis.curves import CurveBin, Quartiles, RecoveryCurve
from harness.analysis.in_flight import InFlight
from harness.analysis.summary import RunSummary
from harness.journals import Journals, RequestTable
from harness.records import AttemptOutcome, Outcome, ResetMode

Floats = NDArray[np.float64]

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
MODE_DASHES = {
    ResetMode.DEFAULT: (0, (1, 1)),
    ResetMode.PREEMPT: (0, (4, 1.5)),
    ResetMode.KEEP: "solid",
    ResetMode.SHAM: (0, (1, 3)),
}
LINE_OF = {
    AttemptOutcome.CLEARED: "solid",
    AttemptOutcome.PARTIAL: "dashed",
    AttemptOutcome.MARKED: "dotted",
}
"""How a reset's line is drawn; the other outcomes, which wiped nothing, are dash-dotted."""
REFUSED_COLOUR = "#CC79A7"
SHADE = "#f0f0f0"
DRAIN_SHARE = 0.15
"""How much of a long drain is shown, as a share of the load."""


@dataclass(frozen=True)
class _Kind:
    """One kind of request in the scatter plots."""

    label: str
    colour: str
    marker: str
    size: float
    rows: NDArray[np.bool_]


def draw_recovery(journals: Journals, summary: RunSummary, path: Path) -> None:
    """Write the figure of one run to ``path`` (PNG, 1200 × 800 pixels), whatever it holds.

    Raises:
        OSError: ``path`` cannot be written.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(12, 8), dpi=100, layout="constrained")
        curves = [curve for curve in summary.curves if curve.bins]
        grid = GridSpec(3, 2 if curves else 1, figure, width_ratios=[1.75, 1] if curves else None)
        run = _Run(journals, summary)
        axes = [figure.add_subplot(grid[row, 0]) for row in range(3)]
        run.draw(axes)
        if curves:
            _draw_curves([figure.add_subplot(grid[row, 1]) for row in range(3)], curves)
        figure.suptitle(_title(summary), fontsize=13, x=0.01, ha="left")
        handles = run.legend()
        figure.legend(handles=handles, loc="outside lower left", ncols=min(len(handles), 5))
        figure.savefig(path, format="png")


def _title(summary: RunSummary) -> str:
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in summary.outcomes.items())
    return (
        f"{summary.scenario}: reset mode {summary.mode}, {summary.rate:g} req/s"
        + (f" — resets: {outcomes}" if outcomes else "")
        + ("" if summary.status == "complete" else f" — {summary.status}")
    )


class _Run:
    """The left column: every request over the run, and the number in flight."""

    def __init__(self, journals: Journals, summary: RunSummary) -> None:
        self._journals = journals
        self._summary = summary
        self._frame = journals.requests.frame
        self._scheduled = self._frame["scheduled"].to_numpy(np.float64)
        self._kinds = [kind for kind in _kinds(journals.requests) if kind.rows.any()]
        finished = self._frame["finished"].to_numpy(np.float64)
        load = journals.manifest.plan.end
        drained = float(np.max(finished, initial=load))
        self._end = min(max(drained, load), load * (1 + DRAIN_SHARE))

    def draw(self, axes: list[Axes]) -> None:
        """Fill three axes: TTFT, latency, in flight."""
        first_token = self._frame["first_token"].to_numpy(np.float64)
        finished = self._frame["finished"].to_numpy(np.float64)
        failed = (self._frame["outcome"] != Outcome.OK).to_numpy(np.bool_)
        ended = np.where(failed & np.isnan(first_token), finished, first_token)
        self._scatter(axes[0], "TTFT of each request, by planned instant", ended)
        self._scatter(axes[1], "Latency", finished)
        axes[2].set_title("Requests in flight")
        in_flight = InFlight.from_stamps(self._frame["sent"], finished)
        axes[2].step(in_flight.times, in_flight.level, where="post", color="#333333", lw=0.8)
        axes[2].set_ylim(0, max(1.0, 1.05 * float(in_flight.level.max())))
        axes[2].set_xlabel("seconds since the run's zero")
        for axis in axes:
            self._mark(axis)
        for axis in axes[:2]:
            axis.tick_params(labelbottom=False)
        if not len(self._frame):
            _say(axes[0], "No request was recorded.")

    def _scatter(self, axis: Axes, title: str, ended: Floats) -> None:
        axis.set_title(title)
        spans = ended - self._scheduled
        for kind in self._kinds:
            axis.plot(
                self._scheduled[kind.rows],
                spans[kind.rows],
                ls="",
                marker=kind.marker,
                ms=kind.size,
                mfc=kind.colour,
                mec=kind.colour,
                mew=1.2 if kind.marker == "x" else 0,
                zorder=3,
            )
        _scale(axis, spans)

    def _mark(self, axis: Axes) -> None:
        """Warm-up and drain shaded, resets as lines, refused attempts as ticks at the top."""
        plan = self._journals.manifest.plan
        axis.set_xlim(0, self._end)
        axis.axvspan(0, plan.scenario.load.warmup, color=SHADE, zorder=0)
        axis.axvspan(plan.end, self._end, color=SHADE, zorder=0)
        refused = []
        for row in self._summary.resets:
            record = row.reset.record
            refused += [a.called for a in record.attempts if a.outcome is AttemptOutcome.REFUSED]
            at = record.scheduled if record.cleared_at is None else record.cleared_at
            if record.outcome is not AttemptOutcome.REFUSED:
                line = LINE_OF.get(record.outcome, "dashdot")
                axis.axvline(at, color=MODE_COLOURS[record.mode], ls=line, lw=1.4, zorder=2)
        if refused:
            rug = _rug(refused)
            rug.set_transform(axis.get_xaxis_transform())
            axis.add_line(rug)

    def legend(self) -> list[Line2D | Patch]:
        """One handle for each thing that is drawn."""
        handles: list[Line2D | Patch] = [
            Line2D([], [], color=kind.colour, marker=kind.marker, ls="", ms=6, label=kind.label)
            for kind in self._kinds
        ]
        records = [row.reset.record for row in self._summary.resets]
        seen = dict.fromkeys((record.mode, record.outcome) for record in records)
        handles += [
            Line2D(
                [],
                [],
                color=MODE_COLOURS[mode],
                ls=LINE_OF.get(outcome, "dashdot"),
                label=f"{mode} {outcome}",
            )
            for mode, outcome in seen
            if outcome is not AttemptOutcome.REFUSED
        ]
        attempts = [attempt for record in records for attempt in record.attempts]
        if any(attempt.outcome is AttemptOutcome.REFUSED for attempt in attempts):
            handles.append(_rug([]))
        return [*handles, Patch(color=SHADE, label="warm-up, drain")]


def _rug(instants: list[float]) -> Line2D:
    """Ticks across the top of an axis, one a refused attempt; heights are shares of the axis."""
    return Line2D(
        instants,
        [1.0] * len(instants),
        color=REFUSED_COLOUR,
        marker="|",
        markersize=10,
        markeredgewidth=1.6,
        linestyle="",
        label="refused attempt",
        clip_on=False,
    )


def _kinds(requests: RequestTable) -> Iterable[_Kind]:
    """Requests by what became of them; how much was cached, where the server tells."""
    ok = (requests.frame["outcome"] == Outcome.OK).to_numpy(np.bool_)
    cached = requests.frame["cached_tokens"].to_numpy(np.float64)
    yield _Kind("prefix cached", "#56B4E9", "o", 3, ok & (cached > 0))
    yield _Kind("prefix not cached", "#E69F00", "^", 4.5, ok & (cached == 0))
    yield _Kind("request", "#56B4E9", "o", 3, ok & np.isnan(cached))
    yield _Kind("failed (at the time it took)", "black", "x", 5, ~ok)


def _draw_curves(axes: list[Axes], curves: list[RecoveryCurve]) -> None:
    """The right column: TTFT, latency and cached share against the time since the wipe."""
    wipes = sum(curve.resets for curve in curves)
    _draw_spread(axes[0], curves, lambda one: one.ttft)
    axes[0].set_title(f"TTFT after {wipes} wipes: median, quartiles")
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
        _say(axes[2], "No reply told it.")
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
    _scale(axis, np.array(everything))
    if not everything:
        _say(axis, "No request succeeded.")


def _plot(axis: Axes, curve: RecoveryCurve, bins: list[CurveBin], values: list[float]) -> None:
    axis.plot(
        _middles(bins),
        values,
        color=MODE_COLOURS[curve.mode],
        ls=MODE_DASHES[curve.mode],
        lw=1.8,
        label=f"{curve.mode} ({curve.resets})",
    )


def _middles(bins: Iterable[CurveBin]) -> list[float]:
    return [(one.start + one.end) / 2 for one in bins]


def _scale(axis: Axes, seconds: Floats) -> None:
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


def _say(axis: Axes, text: str) -> None:
    """Say why an axis is empty, in place of its ticks."""
    axis.set_yticks([])
    axis.text(0.5, 0.5, text, transform=axis.transAxes, ha="center", va="center", color="#555555")
