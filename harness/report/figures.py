"""``recovery.png``: one run over time, and its recovery curves aligned at the wipes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from harness.analysis.in_flight import InFlight
from harness.analysis.summary import RunSummary
from harness.journals import Journals, RequestTable
from harness.records import AttemptOutcome, Outcome, ResetMode, ResetRecord
from harness.report.axes import MODE_COLOURS, SOLID, STYLE, Dashes, say, scale
from harness.report.curves import draw_curves

Floats = NDArray[np.float64]

LINE_OF: dict[AttemptOutcome, Dashes] = {
    AttemptOutcome.CLEARED: SOLID,
    AttemptOutcome.PARTIAL: (0, (4, 2)),
    AttemptOutcome.MARKED: (0, (1, 2)),
}
"""How a reset's line is drawn; the other outcomes, which wiped nothing, are dash-dotted."""
DASH_DOT: Dashes = (0, (6, 2, 1, 2))
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
            draw_curves([figure.add_subplot(grid[row, 1]) for row in range(3)], curves)
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
            say(axes[0], "No request was recorded.")

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
        scale(axis, spans)

    def _mark(self, axis: Axes) -> None:
        """Warm-up and drain shaded, resets as lines, refused attempts as ticks at the top."""
        plan = self._journals.manifest.plan
        axis.set_xlim(0, self._end)
        axis.axvspan(0, plan.scenario.load.warmup, color=SHADE, zorder=0)
        axis.axvspan(plan.end, self._end, color=SHADE, zorder=0)
        records = [row.reset.record for row in self._summary.resets]
        for mode, outcome in _seen(records):
            axis.vlines(
                [_instant(one) for one in records if (one.mode, one.outcome) == (mode, outcome)],
                0,
                1,
                transform=axis.get_xaxis_transform(),
                colors=MODE_COLOURS[mode],
                linestyles=LINE_OF.get(outcome, DASH_DOT),
                lw=1.4,
                zorder=2,
            )
        attempts = [attempt for record in records for attempt in record.attempts]
        refused = [a.called for a in attempts if a.outcome is AttemptOutcome.REFUSED]
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
        handles += [
            Line2D(
                [],
                [],
                color=MODE_COLOURS[mode],
                ls=LINE_OF.get(outcome, DASH_DOT),
                label=f"{mode} {outcome}",
            )
            for mode, outcome in _seen(records)
        ]
        attempts = [attempt for record in records for attempt in record.attempts]
        if any(attempt.outcome is AttemptOutcome.REFUSED for attempt in attempts):
            handles.append(_rug([]))
        return [*handles, Patch(color=SHADE, label="warm-up, drain")]


def _seen(records: list[ResetRecord]) -> list[tuple[ResetMode, AttemptOutcome]]:
    """Modes and outcomes that have a line; a refused reset has its attempts' ticks instead."""
    pairs = dict.fromkeys((record.mode, record.outcome) for record in records)
    return [(mode, outcome) for mode, outcome in pairs if outcome is not AttemptOutcome.REFUSED]


def _instant(record: ResetRecord) -> float:
    return record.scheduled if record.cleared_at is None else record.cleared_at


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
