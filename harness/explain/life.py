"""One real reset, out of a run's journals, as a story that the page can replay."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from harness.errors import JournalError, UsageError
from harness.explain.changes import Change
from harness.explain.lives import Life, lives_of
from harness.explain.trace import EntryKind
from harness.journals import Journals
from harness.records import AttemptOutcome, Outcome, ResetAttempt, ResetMode, ResetRecord

LATER_REQUESTS = 6
"""How many requests that were sent after the reset the story follows."""
MOST_REQUESTS = 40
"""How many requests in flight the picture has room for."""
TICKS = 60
"""How many chunk stamps of a request the picture shows."""

AFTERMATH = {
    AttemptOutcome.CLEARED: "The server said that it cleared its cache.",
    AttemptOutcome.REFUSED: "The server refused: some block was held.",
    AttemptOutcome.PARTIAL: "The server said that it cleared its cache, yet something from before "
    "was still found.",
    AttemptOutcome.IGNORED: "The server did not understand the mode and did something else.",
    AttemptOutcome.REJECTED: "The server answered with an error.",
    AttemptOutcome.FAILED: "There was no answer that could be read.",
    AttemptOutcome.MARKED: "A sham: nothing was called, only the moment was marked.",
}


@dataclass(frozen=True)
class Moment:
    """Something that happened, at an instant of the run."""

    at: float
    scene: int
    words: str
    why: str
    changes: tuple[Change, ...] = ()
    log: tuple[tuple[EntryKind, str], ...] = ()
    reply: str | None = None


def recorded_story(journals: Journals, reset_id: int | None = None) -> dict[str, Any]:
    """The story of one reset, as the page reads it.

    Raises:
        UsageError: there is no such reset in this run.
        JournalError: the run has no resets, or no requests.
    """
    reset = _choose(journals, reset_id)
    instant = _instant(reset)
    if len(journals.requests) == 0:
        raise JournalError(
            "requests.jsonl of this run is empty, and the story of a reset needs the requests "
            "around it. Was the run stopped before anything finished?"
        )
    lives = lives_of(journals)
    victims = [life for life in lives if life.sent <= instant < life.finished]
    later = [life for life in lives if life.sent > instant][:LATER_REQUESTS]
    moments = [
        _opening(reset, instant, victims),
        *_calls(reset),
        *_aftermath(reset, instant, victims, later),
    ]
    return {
        "id": "recorded",
        "title": f"Reset {reset.id}, mode {reset.mode.value}, {instant:.2f} s into the run",
        "lead": _summary(reset, instant, victims, later),
        "lanes": [
            {
                "id": reset.mode.value,
                "label": reset.mode.value,
                "life": _picture(instant, victims, later),
                "steps": _fold(moments, victims),
            }
        ],
        "frames": [[n] for n in range(len(moments))],
    }


def _choose(journals: Journals, reset_id: int | None) -> ResetRecord:
    if not journals.resets:
        raise JournalError(
            "resets.jsonl of this run is empty: there is no reset to explain. "
            "Run with --reset-mode keep, preempt, default or sham."
        )
    if reset_id is None:
        return max(journals.resets, key=lambda reset: reset.in_flight)
    for reset in journals.resets:
        if reset.id == reset_id:
            return reset
    known = ", ".join(str(reset.id) for reset in journals.resets)
    raise UsageError(f"This run has no reset {reset_id}. It has: {known}.")


def _instant(reset: ResetRecord) -> float:
    """When the reset took effect, or else when its last call was made."""
    if reset.cleared_at is not None:
        return reset.cleared_at
    return reset.attempts[-1].called if reset.attempts else reset.scheduled


def _opening(reset: ResetRecord, instant: float, victims: list[Life]) -> Moment:
    streaming = sum(life.first is not None and life.first <= instant for life in victims)
    if not victims:
        why = "Nothing of this client was in flight: the replica was idle, as far as it could see."
    else:
        why = (
            f"{_requests(len(victims))} in flight: {streaming} streaming, "
            f"{len(victims) - streaming} still waiting for a first token."
        )
    at = reset.attempts[0].called if reset.attempts else instant
    return Moment(at, 0, "Just before the reset", why)


def _calls(reset: ResetRecord) -> list[Moment]:
    if reset.mode is ResetMode.SHAM or not reset.attempts:
        at = _instant(reset)
        why = AFTERMATH[reset.outcome]
        return [Moment(at, 1, "The planned instant", why, log=((EntryKind.LOG, "marked"),))]
    moments = []
    for number, attempt in enumerate(reset.attempts, 1):
        which = f"Attempt {number}" if len(reset.attempts) > 1 else "The reset"
        moments.append(
            Moment(
                attempt.called,
                1,
                f"{which} is called",
                f"Mode {reset.mode.value}, {attempt.called - reset.scheduled:+.3f} s from plan.",
                log=((EntryKind.LOG, f"{attempt.called:.3f} s  called"),),
            )
        )
        moments.append(_reply(attempt, which))
    return moments


def _reply(attempt: ResetAttempt, which: str) -> Moment:
    if attempt.replied is None:
        error = attempt.error or "no reason recorded"
        log = ((EntryKind.ERROR, f"no reply: {error}"),)
        return Moment(
            attempt.called, 1, f"{which} gets no reply", AFTERMATH[attempt.outcome], log=log
        )
    took = (attempt.replied - attempt.called) * 1e3
    words = f"{which} is answered after {took:.1f} ms"
    log = ((EntryKind.RETURN, f"{attempt.replied:.3f} s  HTTP {attempt.http_status}"),)
    reply = json.dumps(attempt.reply, indent=1) if attempt.reply is not None else attempt.error
    return Moment(
        attempt.replied, 1, words, AFTERMATH[attempt.outcome], log=log, reply=reply or "nothing"
    )


def _aftermath(
    reset: ResetRecord, instant: float, victims: list[Life], later: list[Life]
) -> list[Moment]:
    """What happened to each request, in the order in which it showed."""
    replied = [a.replied for a in reset.attempts if a.replied is not None]
    start = max([instant, *replied])
    moments = []
    for life in victims:
        shown = next((t for t in life.times if t > instant), None)
        if shown is not None:
            moments.append(_first_sign(life, instant, shown))
        moments.append(_end(life, 3))
    for life in later:
        if life.first is not None:
            moments.append(_arrival(life, instant))
        else:
            moments.append(_end(life, 4))
    return sorted(moments, key=lambda moment: max(moment.at, start))


def _first_sign(life: Life, instant: float, shown: float) -> Moment:
    gap = life.gap_over(instant)
    if gap is None:
        words = f"#{life.id} gets its first token, {shown - instant:.3f} s after the reset"
        why = "It was waiting when the reset came."
    else:
        words = f"#{life.id} gets its next token, {shown - instant:.3f} s after the reset"
        usual = _usual_gap(life, instant)
        why = f"No token for {gap * 1e3:.0f} ms around the reset" + (
            f"; before it, {usual * 1e3:.0f} ms was usual." if usual is not None else "."
        )
    return Moment(shown, 2, words, why, (_change(life, f"#{life.id} goes on."),))


def _usual_gap(life: Life, instant: float) -> float | None:
    before = [t for t in life.times if t <= instant]
    gaps = sorted(b - a for a, b in pairwise(before))
    return gaps[len(gaps) // 2] if gaps else None


def _end(life: Life, scene: int) -> Moment:
    ended = "finishes" if life.outcome is Outcome.OK else f"fails: {life.outcome.value}"
    why = f"It took {life.finished - life.sent:.2f} s and {len(life.times)} chunks."
    changes = (_change(life, f"#{life.id} {ended}."),)
    return Moment(life.finished, scene, f"#{life.id} {ended}", why, changes)


def _arrival(life: Life, instant: float) -> Moment:
    first = life.first if life.first is not None else life.finished
    words = f"#{life.id}, sent {life.sent - instant:.2f} s after the reset, gets its first token"
    if life.cached is None:
        why = "The server did not say how many of its prompt tokens were cached."
    else:
        total = f" of {life.prompt}" if life.prompt is not None else ""
        why = f"{life.cached}{total} prompt tokens came from the cache."
    why += f" First token {(first - life.sent) * 1e3:.0f} ms after it was sent."
    return Moment(first, 4, words, why, (_change(life, f"#{life.id} gets its first token."),))


def _change(life: Life, words: str) -> Change:
    return Change(words, (f"request-{life.id}",))


def _summary(reset: ResetRecord, instant: float, victims: list[Life], later: list[Life]) -> str:
    across = [gap for life in victims if (gap := life.gap_over(instant)) is not None]
    after = [gap for life in victims if (gap := life.gap_after(instant)) is not None]
    parts = [AFTERMATH[reset.outcome], f"{_requests(len(victims))} in flight."]
    if reset.preemptions is not None:
        parts.append(f"{reset.preemptions} preempted by it.")
    if across:
        pause = f"Their longest pause: {max(across) * 1e3:.0f} ms across the reset"
        parts.append(pause + (f", {max(after) * 1e3:.0f} ms later." if after else "."))
    known = [life.cached for life in later if life.cached is not None]
    if known:
        cold = sum(cached == 0 for cached in known)
        parts.append(f"Nothing in the cache for {cold} of the {len(known)} sent next.")
    return " ".join(parts)


def _requests(count: int) -> str:
    return "1 request was" if count == 1 else f"{count} requests were"


def _picture(instant: float, victims: list[Life], later: list[Life]) -> dict[str, Any]:
    shown = [*victims[-MOST_REQUESTS:], *later]
    ends = sorted(life.finished for life in shown)
    end = max([instant + 0.5, *ends])
    start = min([instant - 0.1, *(life.sent for life in shown)])
    return {
        "from": start,
        "to": end,
        "reset": instant,
        "requests": [
            {
                "id": life.id,
                "sent": life.sent,
                "first": life.first,
                "finished": life.finished,
                "ok": life.outcome is Outcome.OK,
                "ticks": [round(t, 4) for t in _thinned(life.times)],
            }
            for life in shown
        ],
    }


def _thinned(times: tuple[float, ...]) -> tuple[float, ...]:
    """At most ``TICKS`` of the stamps, evenly chosen."""
    step = -(-len(times) // TICKS) or 1
    return times[::step]


def _fold(moments: list[Moment], victims: list[Life]) -> list[dict[str, Any]]:
    folded = []
    reply = ""
    for moment in moments:
        reply = moment.reply if moment.reply is not None else reply
        done = sum(life.finished <= moment.at for life in victims)
        folded.append(
            {
                "d": {
                    "now": moment.at,
                    "in_flight": len(victims),
                    "done": done,
                    "reply": reply,
                },
                "s": moment.scene,
                "w": moment.words,
                "y": moment.why,
                "c": [[change.words, change.keys] for change in moment.changes],
                "l": [],
                "g": moment.log,
            }
        )
    return folded
