"""An experiment's findings as rows of text: what the terminal and the page both show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from harness.analysis.experiment.cached import CACHED_EDGES
from harness.analysis.experiment.capacity import Capacity
from harness.analysis.experiment.checks import Check
from harness.analysis.experiment.contrast import SHORT_HORIZON, Recovery
from harness.analysis.experiment.modes import ModeFigures, Spread
from harness.analysis.experiment.rate import RateFindings
from harness.analysis.experiment.stats import Comparison
from harness.records import AttemptOutcome, ResetMode
from harness.report.text import UNKNOWN, duration, figures

CONTROLS = (ResetMode.NONE, ResetMode.SHAM)
_HAPPY = (AttemptOutcome.CLEARED, AttemptOutcome.MARKED)


_RECOVERY = {Recovery.NOT_RECOVERED: "not within H"}
"""What is too long for a column."""


@dataclass
class Grid:
    """A titled table; the first column names its row, the others hold figures."""

    title: str
    headers: Sequence[str]
    rows: list[tuple[str, ...]] = field(default_factory=list)

    def add(self, *cells: str) -> None:
        """Add a row, a cell a header."""
        self.rows.append(cells)


def headline(rate: RateFindings) -> str:
    """The load, in a line."""
    queue = rate.queue
    parts = [f"{rate.rate:g} req/s", f"{len(rate.runs)} run{'s' if len(rate.runs) > 1 else ''}"]
    if rate.spacing is not None:
        parts.append(f"resets every {rate.spacing:g} s")
    if queue.in_flight is not None:
        parts.append(f"undisturbed: {figures(queue.in_flight)} in flight")
        parts.append(f"mean latency {duration(queue.latency)}")
    if queue.utilisation is not None:
        parts.append(f"ρ = {queue.utilisation:.2f}")
    return ", ".join(parts)


def contrasts(rate: RateFindings) -> Grid:
    """Modes against each other by the two figures declared in advance."""
    found = Grid(
        "Modes against each other, request-seconds a reset (95 % interval)",
        ["", "units", "victims' excess", "p", f"∫ΔN over {SHORT_HORIZON:g} s", "p", "failed"],
    )
    for one in rate.contrasts:
        found.add(
            f"{one.first} − {one.second}",
            str(one.short.units),
            interval(one.victims),
            _p(one.victims),
            interval(one.short),
            _p(one.short),
            "void" if one.void else f"{max(one.failed):.1%}",
        )
    return found


def prices(rate: RateFindings) -> Grid:
    """What a whole wipe costs, split into its victims and later arrivals."""
    horizon = rate.prices[0].horizon if rate.prices else 0.0
    against = "runs without resets" if rate.control is ResetMode.NONE else str(rate.control)
    found = Grid(
        f"Price of a wipe against {against}: ∫ΔN over {horizon:g} s, request-seconds",
        [
            "",
            "units",
            "total (95 % interval)",
            "= victims",
            "+ later",
            "half-life",
            "in flight",
            "TTFT excess, s",
        ],
    )
    for price, ttft in zip(rate.prices, rate.ttft, strict=True):
        found.add(
            price.mode.value,
            str(price.total.units),
            interval(price.total),
            signed(price.victims.estimate),
            signed(price.later.estimate),
            duration(price.half_life),
            _RECOVERY.get(price.recovery, price.recovery.value),
            interval(ttft.total),
        )
    return found


def modes(rate: RateFindings) -> Grid:
    """What each mode did."""
    found = Grid(
        "What each mode did: mean a reset (most)",
        ["", "took effect", "tries", "wait", "in flight", "preempted", "of running"],
    )
    for mode in rate.modes:
        if mode.mode is ResetMode.NONE:
            continue
        done = f"{mode.took_effect} of {mode.planned}"
        unhappy = {kind: n for kind, n in mode.outcomes.items() if kind not in _HAPPY}
        if unhappy:
            done += " (" + ", ".join(f"{n} {kind}" for kind, n in unhappy.items()) + ")"
        share = mode.preempted_share
        found.add(
            mode.mode.value,
            done,
            str(mode.attempts),
            duration(mode.wait.mean),
            spread(mode.in_flight),
            spread(mode.preemptions) + (f" +{mode.unresolved}?" if mode.unresolved else ""),
            UNKNOWN if share is None else f"{share:.0%}",
        )
    return found


def work(rate: RateFindings) -> Grid:
    """What resets cost the engine, and what went on in each mode's time."""
    found = Grid(
        "What it cost the engine, and what went on between resets",
        [
            "",
            "tokens\ndiscarded",
            "engine\nstall",
            "idle\nwindows/min",
            "λ·P₀\n/min",
            "preemptions/min\nby memory pressure",
        ],
    )
    control = next((m.pressure_per_minute for m in rate.modes if m.mode in CONTROLS), None)
    for mode in rate.modes:
        stall = mode.stall
        found.add(
            "control" if mode.mode is ResetMode.NONE else mode.mode.value,
            spread(mode.discarded_tokens),
            f"{duration(stall.mean)} ({duration(stall.most)})" if stall.count else UNKNOWN,
            _two(mode.idle_per_minute),
            _two(mode.idle_expected_per_minute),
            _pressure(mode, control),
        )
    return found


def _pressure(mode: ModeFigures, control: float | None) -> str:
    """As counted, and above the control's."""
    seen = mode.pressure_per_minute
    if seen is None or control is None or mode.mode in CONTROLS:
        return _two(seen)
    return f"{seen:.2f} ({seen - control:+.2f})".replace("-", "−")


def cached(rate: RateFindings) -> Grid:
    """Cached share by prefix after a wipe of each mode."""
    edges = [f"{edge:g}" for edge in CACHED_EDGES]
    spans = [f"{start}–{end} s" for start, end in pairwise(edges)]
    found = Grid(
        "Prompt tokens cached after a wipe, by prefix (0 is the most frequent)",
        ["", "prefixes", "requests", *spans, f"{edges[-1]} s–next"],
    )
    for mode in rate.modes:
        for place, group in enumerate(mode.cached_by_prefix):
            found.add(
                "" if place else mode.mode.value,
                str(group.first) if group.first == group.last else f"{group.first}–{group.last}",
                f"{group.requests:,}",
                *(UNKNOWN if share is None else f"{share:.0%}" for share in group.cached),
            )
    return found


def runs(rate: RateFindings) -> Grid:
    """The runs behind it."""
    found = Grid(
        "Runs (means, from the planned instant)",
        ["", "status", "requests", "failed", "TTFT", "latency", "in flight", "lag p99"],
    )
    for run in rate.runs:
        found.add(
            run.name,
            run.status.value,
            f"{run.requests:,}",
            UNKNOWN if run.failed_share is None else f"{run.failed_share:.1%}",
            duration(run.ttft),
            duration(run.latency),
            UNKNOWN if run.in_flight is None else figures(run.in_flight),
            duration(run.lag_p99),
        )
    return found


def checks(rate: RateFindings) -> Grid:
    """What must hold, and whether it did."""
    found = Grid("Checks", ["", "", "observed", "expected", "unit"])
    for check in rate.checks:
        seen, expected = signed(check.observed), signed(check.expected)
        found.add(check.name, passed(check), seen, expected, check.unit)
    return found


def paired(rate: RateFindings) -> Grid:
    """Runs of one plan against each other."""
    found = Grid(
        "Runs of one plan, second − first, arrival by arrival: the noise between runs",
        ["", "modes", "requests", "latency", "", "correlation", "SD of 20 s", "drift"],
    )
    for one in rate.paired:
        modes = [",".join(mode.value for mode in each) for each in one.modes]
        found.add(
            f"{one.second} − {one.first}",
            modes[0] if modes[0] == modes[1] else f"{modes[1]} − {modes[0]}",
            f"{one.requests:,}",
            duration(one.latency).replace("-", "−"),
            UNKNOWN if one.latency_share is None else f"{one.latency_share:+.1%}",
            _two(one.correlation),
            signed(one.window_sd),
            signed(one.drift),
        )
    return found


def throughput(capacity: Capacity) -> Grid:
    """What came in and what went out."""
    found = Grid(
        "Second half of each run: what came in and what went out, requests a second",
        ["", "cache", "cached", "sent", "ended", "in flight", "", "fit predicts"],
    )
    for run in capacity.runs:
        found.add(
            run.run,
            "warm" if run.mode is ResetMode.NONE else f"{run.mode}, cold",
            UNKNOWN if run.cached_share is None else f"{run.cached_share:.0%}",
            f"{run.sent:.2f}",
            f"{run.ended:.2f}",
            f"{run.in_flight[0]} → {run.in_flight[1]}",
            "saturated" if run.saturated else "keeps up",
            UNKNOWN if run.predicted is None else f"{run.predicted:.1f}",
        )
    return found


def all_grids(rate: RateFindings, *, brief: bool) -> Iterable[Grid]:
    """Every table of a rate that has a row; ``brief`` leaves out what single resets did."""
    found = [contrasts(rate), prices(rate), modes(rate), work(rate), cached(rate)]
    kept = [modes(rate), work(rate)] if brief else found
    return [grid for grid in (*kept, runs(rate), paired(rate), checks(rate)) if grid.rows]


def passed(check: Check) -> str:
    """In words."""
    return {True: "passed", False: "FAILED", None: "cannot tell"}[check.passed]


def interval(told: Comparison) -> str:
    """``estimate (low to high)``, or the estimate and that no more can be told."""
    if told.estimate is None:
        return UNKNOWN
    if told.low is None or told.high is None:
        return f"{signed(told.estimate)} (cannot tell)"
    return f"{signed(told.estimate)} ({signed(told.low)} to {signed(told.high)})"


def signed(value: float | None) -> str:
    """Three figures with a true minus sign."""
    return UNKNOWN if value is None else figures(value).replace("-", "−")


def spread(one: Spread) -> str:
    """``mean (most)``."""
    if one.mean is None or one.most is None:
        return UNKNOWN
    return f"{figures(one.mean)} ({figures(one.most)})"


def _two(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2f}"


def _p(told: Comparison) -> str:
    return UNKNOWN if told.p_value is None else f"{told.p_value:.3f}"
