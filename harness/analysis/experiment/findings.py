"""What an experiment found: everything its report shows, computed from the journals of its runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from harness.analysis.doubt import Doubt, DoubtCode, Severity
from harness.analysis.experiment import capacity, rate, verdict
from harness.analysis.experiment.capacity import Capacity
from harness.analysis.experiment.rate import RateFindings
from harness.analysis.experiment.recorded import Recorded
from harness.design import Design


class RunDoubt(msgspec.Struct, frozen=True):
    """A doubt, in the words of the first run that has it, and all runs that have it."""

    doubt: Doubt
    runs: tuple[str, ...]


class Findings(msgspec.Struct, frozen=True):
    """Everything an experiment's report shows. Times in seconds; None was not observed."""

    name: str
    design: Design
    question: str
    verdict: str
    """In a sentence a rate, or a mode over the rates."""
    rates: tuple[RateFindings, ...]
    capacity: Capacity | None
    """Of a capacity experiment."""
    doubts: tuple[RunDoubt, ...]
    """Why not to believe the figures, those that void some first."""
    warnings: tuple[str, ...]
    """What was noted while running."""
    missing: tuple[str, ...]
    """Planned runs that left no folder."""
    server: dict[str, str]
    """What the first run's server said of itself."""


def find(
    name: str, recorded: Sequence[Recorded], design: Design, missing: Sequence[str] = ()
) -> Findings:
    """Everything that the runs of one experiment say.

    Args:
        name: of the experiment.
        recorded: its runs; any may be cut short.
        design: how modes were dealt.
        missing: names of planned runs without a folder.
    """
    rates = tuple(
        rate.measure(design, [run for run in recorded if run.rate == each])
        for each in sorted({run.rate for run in recorded})
    )
    found = capacity.measure(recorded) if design is Design.CAPACITY else None
    expected = _MEANT if design is Design.CAPACITY else frozenset()
    doubts = tuple(_doubts(recorded, expected | {DoubtCode.FEW_RESETS}))
    notes = dict.fromkeys(note for run in recorded for note in run.summary.warnings)
    return Findings(
        name=name,
        design=design,
        question=verdict.question(design, rates),
        verdict=verdict.sentence(design, rates, found, _voided(doubts)),
        rates=rates,
        capacity=found,
        doubts=doubts,
        warnings=tuple(notes),
        missing=tuple(missing),
        server=_server(recorded),
    )


def design_of(recorded: Sequence[Recorded]) -> Design:
    """The design that runs without an experiment's manifest have."""
    crossed = any(len(run.planned_modes) > 1 for run in recorded)
    return Design.CROSSOVER if crossed else Design.ARMS


_MEANT = frozenset(
    {
        DoubtCode.BACKLOG,
        DoubtCode.OVERLOADED,
        DoubtCode.SPACING_SHORT,
        DoubtCode.WARMUP_SHORT,
        DoubtCode.WARMUP_UNSETTLED,
    }
)
"""Doubts about what a capacity experiment does on purpose."""


def _doubts(recorded: Sequence[Recorded], without: frozenset[DoubtCode]) -> Iterable[RunDoubt]:
    """Doubts of all runs, one a kind; how many resets are enough is said of all runs together."""
    found: dict[DoubtCode, list[tuple[Doubt, str]]] = {}
    for run in recorded:
        for one in run.summary.doubts:
            if one.code not in without:
                found.setdefault(one.code, []).append((one, run.name))
    for severity in (Severity.VOID, Severity.DOUBT):
        for each in found.values():
            if each[0][0].severity is severity:
                yield RunDoubt(each[0][0], tuple(name for _, name in each))


def _voided(doubts: Iterable[RunDoubt]) -> list[str]:
    return [one.doubt.text for one in doubts if one.doubt.severity is Severity.VOID]


def _server(recorded: Sequence[Recorded]) -> dict[str, str]:
    for run in recorded:
        server = run.journals.manifest.server
        told = {key: server[key] for key in ("version", "model") if server.get(key)}
        if told:
            return {key: str(value) for key, value in told.items()}
    return {}
