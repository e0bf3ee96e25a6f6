"""A run as an experiment's report takes it: its journals beside what one run says by itself."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from harness.analysis.in_flight import InFlight
from harness.analysis.resets import SettledReset
from harness.analysis.summary import RunSummary, summarize
from harness.journals import Journals
from harness.records import ResetMode


@dataclass(frozen=True)
class Recorded:
    """One run of an experiment, read back."""

    name: str
    journals: Journals
    summary: RunSummary
    source: str = ""
    """The experiment it belongs to, where several are compared."""

    @classmethod
    def of(cls, name: str, journals: Journals, source: str = "") -> Recorded:
        """The run ``name`` with its summary computed."""
        return cls(name, journals, summarize(journals), source)

    @property
    def rate(self) -> float:
        """Planned arrivals a second."""
        return self.summary.rate

    @property
    def planned_modes(self) -> frozenset[ResetMode]:
        """Modes of its planned resets; NONE alone for a control."""
        planned = {reset.mode for reset in self.journals.manifest.plan.resets}
        return frozenset(planned or {ResetMode.NONE})

    @property
    def resets(self) -> tuple[SettledReset, ...]:
        """Its resets with their final outcomes, in order."""
        return tuple(row.reset for row in self.summary.resets)

    @cached_property
    def in_flight(self) -> InFlight:
        """The number in flight, N(t)."""
        frame = self.journals.requests.frame
        return InFlight.from_stamps(frame["sent"], frame["finished"])
