"""The panels of an experiment's page: prices, contrasts, curves, and each reset by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from harness.analysis.experiment.aligned import AlignedCurve, Quantity, Trace
from harness.analysis.experiment.at_idle import AtIdle
from harness.analysis.experiment.contrast import SHORT_HORIZON, Contrast, Price
from harness.analysis.experiment.modes import ResetFigures
from harness.analysis.experiment.rate import RateFindings
from harness.analysis.experiment.stats import Comparison
from harness.records import ResetMode
from harness.report.axes import MODE_DASHES, SOLID
from harness.report.svg import INK, INLINE, PANEL, colour, inline

TRACES_SHOWN = 24
"""Small multiples at most; the first resets of the plan."""
SMALL = (3.0, 1.7)
_UNIT = {
    Quantity.TTFT: ("s", 1.0),
    Quantity.LATENCY: ("s", 1.0),
    Quantity.ITL: ("ms", 1000.0),
    Quantity.IN_FLIGHT: ("requests", 1.0),
    Quantity.CACHED: ("", 1.0),
}
_HATCH = "////"


@dataclass(frozen=True)
class Panel:
    """One figure of the page."""

    title: str
    svg: str
    caption: str


def draw(draw_on: Callable[[Axes], None], name: str, title: str, caption: str) -> Panel:
    """A panel of one axis."""
    with matplotlib.rc_context(INLINE):
        figure = Figure(figsize=PANEL, layout="constrained")
        draw_on(figure.add_subplot())
        return Panel(title, inline(figure, name, f"{title}. {caption}"), caption)


def carrying(rate: RateFindings) -> Iterator[Panel]:
    """The figures that carry a rate's verdict, four or five of them."""
    name = f"r{rate.rate:g}"
    if rate.prices:
        yield draw(
            lambda axis: _draw_prices(axis, rate.prices),
            f"{name}-price",
            "What a wipe costs, and whom",
            f"∫ΔN over {rate.prices[0].horizon:g} s in request-seconds: bars are what its victims "
            "(hatched) and later arrivals pay, points and lines the total and its 95 % interval.",
        )
    if rate.contrasts:
        yield draw(
            lambda axis: _draw_contrasts(axis, rate.contrasts),
            f"{name}-contrast",
            "Modes against each other",
            "Request-seconds a reset; right of zero the first mode is dearer. A line is a 95 % "
            "interval; a point without one cannot be told.",
        )
    if rate.at_idle is not None:
        idle = rate.at_idle
        yield draw(
            lambda axis: _draw_at_idle(axis, idle),
            f"{name}-idle",
            "Default at idle, and keep at the same instants",
            f"Request-seconds a reset over {idle.horizon:g} s. They wipe the same idle replica, so "
            "they must agree: the 95 % interval of their difference must hold zero.",
        )
    for quantity in (Quantity.IN_FLIGHT, Quantity.TTFT, Quantity.CACHED):
        yield from _curves(rate, quantity)
    if any(row.window is not None for row in rate.resets):
        yield draw(
            lambda axis: _draw_sampled(axis, rate.resets),
            f"{name}-sampled",
            "In flight when each wipe came",
            "A mark a wipe, the bar their mean. Default clears only at idle instants; the other "
            "modes meet what a random instant has.",
        )


def more_curves(rate: RateFindings) -> Iterator[Panel]:
    """Latency and ITL after the wipe."""
    for quantity in (Quantity.LATENCY, Quantity.ITL):
        yield from _curves(rate, quantity)


def _curves(rate: RateFindings, quantity: Quantity) -> Iterator[Panel]:
    control = rate.control
    if quantity is Quantity.CACHED:
        control = None  # both states themselves are what is to be seen
    chosen = [
        curve for curve in rate.curves if curve.quantity is quantity and curve.control is control
    ]
    if not chosen:
        return
    what = quantity.value if quantity in (Quantity.TTFT, Quantity.ITL) else quantity.capitalize()
    minus = "" if control is None else f", {_control_name(control)} subtracted"
    yield draw(
        lambda axis: _draw_curves(axis, chosen, quantity),
        f"r{rate.rate:g}-{quantity.name}-{control}",
        f"{what} after the wipe{minus}",
        "Median over resets and its 95 % bootstrap band, which describes these resets and claims "
        "nothing." + (f" {_TTFT_NOTE}" if quantity is Quantity.TTFT else ""),
    )


_TTFT_NOTE = (
    "TTFT alone does not rank modes: preempt's victims pay in stalls and re-warm the cache for "
    "later arrivals."
)


def _control_name(control: ResetMode) -> str:
    return "control" if control is ResetMode.NONE else control.value


def _draw_prices(axis: Axes, prices: Sequence[Price]) -> None:
    for row, price in enumerate(reversed(prices)):
        shade = colour(price.mode)
        victims, later = price.victims.estimate or 0.0, price.later.estimate or 0.0
        axis.barh(row + 0.12, victims, 0.34, color="none", edgecolor=shade, hatch=_HATCH, lw=1.0)
        start = victims if victims * later > 0 else 0.0
        axis.barh(row + 0.12, later, 0.34, left=start, color=shade, alpha=0.45, lw=0)
        _interval(axis, row - 0.25, price.total, shade)
    _categories(axis, [price.mode.value for price in reversed(prices)])
    axis.set_xlabel("request-seconds")


def _draw_contrasts(axis: Axes, contrasts: Sequence[Contrast]) -> None:
    labels = []
    rows = [
        (f"{one.first} − {one.second}\n{what}", told, one)
        for one in reversed(contrasts)
        for what, told in ((f"{SHORT_HORIZON:g} s", one.short), ("victims", one.victims))
    ]
    for row, (label, told, one) in enumerate(rows):
        labels.append(label)
        dearer = one.first if (told.estimate or 0.0) > 0 else one.second
        _interval(axis, row, told, colour(dearer) if told.excludes_zero else INK)
    _categories(axis, labels)
    axis.set_xlabel("request-seconds")


def _draw_at_idle(axis: Axes, found: AtIdle) -> None:
    for row, (mode, value) in enumerate(
        ((ResetMode.KEEP, found.keep), (ResetMode.DEFAULT, found.default))
    ):
        axis.barh(row, value or 0.0, 0.4, color=colour(mode), alpha=0.6)
    _interval(axis, 2, found.difference, INK)
    _categories(axis, ["keep", "default", "default − keep"])
    axis.set_xlabel("request-seconds")


def _interval(axis: Axes, row: float, told: Comparison, shade: str) -> None:
    """A point and its interval; hollow where there is none."""
    if told.estimate is None:
        return
    known = told.low is not None and told.high is not None
    if known:
        axis.plot([told.low or 0.0, told.high or 0.0], [row, row], color=shade, lw=2.2)
    axis.plot([told.estimate], [row], "o", ms=6, mec=shade, mfc=shade if known else "none", mew=1.4)


def _categories(axis: Axes, labels: Sequence[str]) -> None:
    axis.set_yticks(range(len(labels)), labels)
    axis.set_ylim(-0.7, len(labels) - 0.3)
    axis.axvline(0, color=INK, lw=0.8)
    axis.grid(visible=False, axis="y")
    axis.tick_params(axis="y", length=0)
    low, high = axis.get_xlim()
    if low == 0 or high == 0:
        axis.margins(x=0.08)


def _draw_curves(axis: Axes, curves: Sequence[AlignedCurve], quantity: Quantity) -> None:
    unit, scale = _UNIT[quantity]
    for curve in curves:
        starts = curve.start + curve.width * np.arange(len(curve.median))
        middles = starts + curve.width / 2
        median, low, high = (
            scale * np.array([np.nan if v is None else v for v in values], np.float64)
            for values in (curve.median, curve.low, curve.high)
        )
        shade = colour(curve.mode)
        axis.fill_between(middles, low, high, color=shade, alpha=0.18, lw=0)
        dashes = MODE_DASHES.get(curve.mode, SOLID)
        axis.plot(middles, median, color=shade, ls=dashes, lw=1.8, label=curve.mode.value)
    axis.axvline(0, color=INK, lw=0.8)
    if quantity is Quantity.CACHED:
        axis.set_ylim(-0.03, 1.03)
        axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    else:
        axis.axhline(0, color=INK, lw=0.5)
    axis.set_xlabel("seconds since the wipe")
    axis.set_ylabel(unit)
    axis.legend(loc="best", ncols=len(curves), fontsize=9)


def _draw_sampled(axis: Axes, resets: Sequence[ResetFigures]) -> None:
    modes = [mode for mode in ResetMode if any(_met(resets, mode))]
    for row, mode in enumerate(reversed(modes)):
        met = np.array(_met(resets, mode), np.float64)
        order = np.argsort(met, kind="stable")
        jitter = np.linspace(-0.22, 0.22, len(met)) if len(met) > 1 else np.zeros(len(met))
        axis.plot(met[order], row + jitter, "o", ms=4.5, color=colour(mode), alpha=0.7, mew=0)
        axis.plot([met.mean()] * 2, [row - 0.34, row + 0.34], color=INK, lw=1.8)
    axis.set_yticks(range(len(modes)), [mode.value for mode in reversed(modes)])
    axis.set_ylim(-0.6, len(modes) - 0.4)
    axis.set_xlim(left=-0.5)
    axis.grid(visible=False, axis="y")
    axis.set_xlabel("requests in flight")


def _met(resets: Sequence[ResetFigures], mode: ResetMode) -> list[int]:
    return [row.in_flight for row in resets if row.mode is mode and row.window is not None]


def small_multiples(rate: RateFindings) -> list[Panel]:
    """In flight around each planned reset, one panel a reset with all its modes."""
    planned: dict[tuple[str, int], list[Trace]] = {}
    for trace in rate.traces:
        planned.setdefault((trace.block, trace.id), []).append(trace)
    top = max(
        (value for trace in rate.traces for value in trace.in_flight if value is not None),
        default=1.0,
    )
    found = []
    for (block, number), traces in list(planned.items())[:TRACES_SHOWN]:
        with matplotlib.rc_context({**INLINE, "font.size": 8.5}):
            figure = Figure(figsize=SMALL, layout="constrained")
            _draw_traces(figure.add_subplot(), traces, top)
            title = f"Reset {number}"
            svg = inline(figure, f"r{rate.rate:g}-{block}-{number}", f"In flight, {title}")
        found.append(Panel(title, svg, ", ".join(dict.fromkeys(t.mode.value for t in traces))))
    return found


def _draw_traces(axis: Axes, traces: Sequence[Trace], top: float) -> None:
    for trace in traces:
        starts = trace.start + trace.width * (np.arange(len(trace.in_flight)) + 0.5)
        values = [np.nan if value is None else value for value in trace.in_flight]
        dashes = MODE_DASHES.get(trace.mode, SOLID)
        axis.plot(starts, values, color=colour(trace.mode), ls=dashes, lw=1.4)
    axis.axvline(0, color=INK, lw=0.8)
    axis.set_ylim(0, max(1.0, 1.05 * top))
