"""The requests of a run, as the story of a recorded reset sees them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from harness.journals import Journals
from harness.records import Outcome


@dataclass(frozen=True)
class Life:
    """A request as the picture shows it; instants in seconds since the run's zero."""

    id: int
    sent: float
    first: float | None
    finished: float
    outcome: Outcome
    cached: int | None
    prompt: int | None
    times: tuple[float, ...]

    def gap_over(self, instant: float) -> float | None:
        """Seconds without a chunk around ``instant``, or ``None`` outside its stream."""
        before = [t for t in self.times if t <= instant]
        after = [t for t in self.times if t > instant]
        return after[0] - before[-1] if before and after else None

    def gap_after(self, instant: float) -> float | None:
        """Longest time between two chunks after ``instant``, or ``None`` with fewer than two."""
        after = [t for t in self.times if t > instant]
        return max((b - a for a, b in pairwise(after)), default=None)


def lives_of(journals: Journals) -> list[Life]:
    """Every request whose headers were sent, in the order of sending."""
    table = journals.requests
    lives = []
    for row, request in enumerate(table.frame.to_dict("records")):
        if _number(request["sent"]) is None:
            continue
        first, last = table.token_offsets[row], table.token_offsets[row + 1]
        lives.append(
            Life(
                id=int(request["id"]),
                sent=float(request["sent"]),
                first=_number(request["first_token"]),
                finished=float(request["finished"]),
                outcome=Outcome(request["outcome"]),
                cached=_count(request["cached_tokens"]),
                prompt=_count(request["prompt_tokens"]),
                times=tuple(float(t) for t in table.token_times[first:last]),
            )
        )
    return sorted(lives, key=lambda life: life.sent)


def _number(value: float) -> float | None:
    return None if value != value else float(value)  # noqa: PLR0124 - NaN is not itself


def _count(value: float) -> int | None:
    number = _number(value)
    return None if number is None else int(number)
