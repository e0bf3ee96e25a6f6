"""Figures as SVG that lives inside a page: the page's text colour and palette, light and dark."""

from __future__ import annotations

import io
import re
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from harness.records import ResetMode
from harness.report.axes import MODE_COLOURS, STYLE

INK, GRID, CONTROL = "#010203", "#040506", "#070809"
"""Stand-ins that the page's own colours replace: text and axes, grid lines, the control."""
PAGE_COLOURS = {
    INK: "var(--ink)",
    GRID: "var(--grid)",
    CONTROL: "var(--control)",
    **{colour: f"var(--{mode})" for mode, colour in MODE_COLOURS.items() if mode.value},
}
INLINE: dict[Any, Any] = {
    **STYLE,
    "font.size": 9.5,
    "axes.titlesize": 10.0,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "grid.color": GRID,
    "axes.linewidth": 0.7,
    "svg.fonttype": "none",
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}
PANEL = (4.4, 2.75)
"""Inches of one panel: 422 × 264 CSS pixels, so that a phone shows it at full size."""


def colour(mode: ResetMode) -> str:
    """The colour that stands for a mode in an inline figure."""
    return CONTROL if mode in (ResetMode.NONE, ResetMode.SHAM) else MODE_COLOURS[mode]


def inline(figure: Figure, name: str, title: str) -> str:
    """``figure`` as an ``<svg>`` element that scales to its box.

    Args:
        figure: drawn under ``INLINE``.
        name: salts the ids inside, which must differ between the figures of one page.
        title: what it shows, for those who cannot see it.
    """
    out = io.StringIO()
    with matplotlib.rc_context({**INLINE, "svg.hashsalt": name}):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    for stand_in, real in PAGE_COLOURS.items():
        text = re.sub(re.escape(stand_in), real, text, flags=re.IGNORECASE)
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font: \1px var(--sans)", text)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    used = {*re.findall(r"url\(#([^)]+)\)", text), *re.findall(r'href="#([^"]+)"', text)}
    text = re.sub(r' id="([^"]+)"', lambda found: found[0] if found[1] in used else "", text)
    return text.replace("<svg", f'<svg role="img" aria-label="{_escaped(title)}"', 1)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
