from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console

from harness.analysis.summary import summarize
from harness.records import (
    AttemptOutcome,
    Outcome,
    PreemptionSource,
    ResetAttempt,
    ResetMode,
    ResetRecord,
)
from harness.report.text import duration, print_summary
from tests.analysis.simulation import journals, request, scenario, simulate, wipe
from tests.analysis.test_summary import EDGES


def printed(run, width=80, *, terminal=False):
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, color_system=None)
    print_summary(console, summarize(run))
    return out.getvalue()


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("terminal", [True, False])
def test_every_edge_prints(edge, terminal):
    run = EDGES[edge]()
    text = printed(run, terminal=terminal)
    assert run.manifest.plan.scenario.name in text
    assert "nan" not in text.lower()
    assert "None" not in text


@pytest.mark.parametrize("mode", [ResetMode.KEEP, ResetMode.PREEMPT, ResetMode.DEFAULT])
@pytest.mark.parametrize("width", [80, 120])
def test_tables_fit_a_terminal_without_losing_a_character(mode, width):
    lines = printed(simulate(scenario(mode)), width, terminal=True).splitlines()
    assert all(len(line) <= width for line in lines)
    assert not any("…" in line for line in lines)


def test_off_a_terminal_a_sentence_stays_one_line():
    lines = printed(simulate(scenario(ResetMode.KEEP))).splitlines()
    doubts = [line for line in lines if line.startswith("Doubt:")]
    assert len(doubts) == 3
    assert all(line.endswith(".") for line in doubts)
    assert max(map(len, doubts)) > 80


def row(text, number):
    return next(line.split() for line in text.splitlines() if line.startswith(f"{number} "))


def test_a_row_tells_what_a_reset_did():
    run = simulate(scenario(ResetMode.PREEMPT))
    record = run.resets[0]
    cells = row(printed(run), 0)
    assert cells[:3] == ["0", "60", "s"]
    assert cells[3] == "cleared"
    assert cells[7:9] == [str(record.in_flight), str(record.in_flight)]


def test_bounds_and_unknowns_are_shown_as_such():
    victims = [request(0, 9.0, 9.5, 11.0, 12.0)]
    unsure = wipe(0, 10.0, mode=ResetMode.PREEMPT)
    assert row(printed(journals(*victims, resets=(unsure,))), 0)[8] == "–"
    assert "cleared?" in printed(journals(*victims, resets=(unsure,)))


def test_a_partial_reset_names_its_tier():
    hits = [request(k, 1.0 + k, 2.0 + k, cached=1984) for k in range(20)]
    assert "partial (" in printed(journals(*hits, resets=(wipe(0, 10.0),)))


def test_a_crossover_names_each_resets_mode():
    resets = (wipe(0, 30.0), wipe(1, 60.0, mode=ResetMode.PREEMPT))
    text = printed(journals(resets=resets))
    assert "keep" in text
    assert row(text, 1)[3] == "preempt"


def test_a_table_of_long_ttfts_is_in_seconds():
    quick = [request(k, float(k), k + 0.01, k + 0.5) for k in range(40)]
    slow = [request(k, float(k), k + 20.0, k + 20.5) for k in range(40, 80)]
    assert "TTFT, ms" in printed(journals(*quick, resets=(wipe(0, 20.0),)))
    assert "TTFT, s" in printed(journals(*quick, *slow, resets=(wipe(0, 40.0),)))


def test_failures_are_named_and_counted():
    text = printed(
        journals(
            request(0, 1.0, finished=2.0, outcome=Outcome.HTTP_ERROR),
            request(1, 1.0, 2.0),
        )
    )
    assert "1 failed (1 http_error)" in text
    assert "50.0% of the requests failed" in text


def test_brackets_in_a_reason_are_not_markup():
    run = journals()
    manifest = msgspec.structs.replace(
        run.manifest, reason="[bold]disk[/bold] full", warnings=("[red]near[/red] the limit",)
    )
    text = printed(type(run)(manifest, run.requests, run.resets, run.server, run.client))
    assert "([bold]disk[/bold] full)" in text
    assert "Noted: [red]near[/red] the limit" in text


def test_refused_attempts_are_counted():
    attempts = tuple(ResetAttempt(30 + t, 30 + t, AttemptOutcome.REFUSED) for t in range(17))
    reset = ResetRecord(
        0,
        ResetMode.DEFAULT,
        30.0,
        AttemptOutcome.REFUSED,
        4,
        preemptions_source=PreemptionSource.COUNTER,
        attempts=attempts,
    )
    cells = row(printed(journals(resets=(reset,))), 0)
    assert cells[3:5] == ["refused", "17"]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "–"),
        (0.0, "0 ms"),
        (0.0123, "12.3 ms"),
        (0.00123, "1.23 ms"),
        (0.123, "123 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.00 s"),
        (12.345, "12.3 s"),
        (123.45, "123 s"),
        (12345.6, "12,346 s"),
        (-0.002, "-2.00 ms"),
    ],
)
def test_durations_have_three_figures_and_a_fitting_unit(seconds, shown):
    assert duration(seconds) == shown
