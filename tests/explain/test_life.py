"""A recorded reset: what the story says is what the journals say, and what lacks is named."""

from __future__ import annotations

import pytest

from harness.errors import JournalError, UsageError
from harness.explain.life import recorded_story
from harness.explain.page import write_recorded


def steps_of(story):
    return story["lanes"][0]["steps"]


def said(story):
    return [(step["w"], step["y"]) for step in steps_of(story)]


def test_tells_who_was_in_flight_and_what_became_of_them(journals):
    story = recorded_story(journals(), 7)
    words = said(story)
    assert words[0] == (
        "Just before the reset",
        "3 requests were in flight: 2 streaming, 1 still waiting for a first token.",
    )
    assert words[1] == ("The reset is called", "Mode keep, +0.001 s from plan.")
    assert words[2][0] == "The reset is answered after 3.0 ms"
    assert words[3:] == [
        (
            "#0 gets its next token, 0.018 s after the reset",
            "No token for 20 ms around the reset; before it, 20 ms was usual.",
        ),
        ("#2 fails: stream_error", "It took 0.30 s and 2 chunks."),
        ("#1 gets its first token, 0.398 s after the reset", "It was waiting when the reset came."),
        ("#1 finishes", "It took 0.45 s and 3 chunks."),
        ("#0 finishes", "It took 1.70 s and 60 chunks."),
        (
            "#3, sent 0.60 s after the reset, gets its first token",
            "0 of 2060 prompt tokens came from the cache. First token 300 ms after it was sent.",
        ),
    ]


def test_shows_the_servers_own_words_from_the_reply_on(journals):
    replies = [step["d"]["reply"] for step in steps_of(recorded_story(journals(), 7))]
    assert replies[:2] == ["", ""]
    assert '"success": true' in replies[2]
    assert set(replies[2:]) == {replies[2]}


def test_counts_only_what_had_finished_by_then(journals):
    steps = steps_of(recorded_story(journals(), 7))
    assert [step["d"]["done"] for step in steps] == [0, 0, 0, 0, 1, 1, 2, 3, 3]


def test_summarises_the_reset(journals):
    assert recorded_story(journals(), 7)["lead"] == (
        "The server said that it cleared its cache. 3 requests were in flight. 0 preempted by it. "
        "Their longest pause: 20 ms across the reset, 20 ms later. "
        "Nothing in the cache for 1 of the 1 sent next."
    )


def test_without_a_choice_it_takes_the_busiest_reset(journals):
    assert recorded_story(journals())["title"].startswith("Reset 7, mode keep")


def test_every_attempt_is_told(journals):
    words = said(recorded_story(journals(), 8))
    assert [step[0] for step in words[:5]] == [
        "Just before the reset",
        "Attempt 1 is called",
        "Attempt 1 is answered after 100.0 ms",
        "Attempt 2 is called",
        "Attempt 2 gets no reply",
    ]
    assert words[0][1].startswith("Nothing of this client was in flight")
    assert words[2][1] == "The server refused: some block was held."


def test_a_sham_calls_nothing(journals):
    assert said(recorded_story(journals(), 9))[1] == (
        "The planned instant",
        "A sham: nothing was called, only the moment was marked.",
    )


def test_says_that_there_is_no_such_reset(journals):
    with pytest.raises(UsageError, match=r"no reset 3\. It has: 7, 8, 9"):
        recorded_story(journals(), 3)


def test_says_that_there_are_no_resets(journals):
    with pytest.raises(JournalError, match=r"resets\.jsonl .* is empty"):
        recorded_story(journals(resets=()))


def test_says_that_there_are_no_requests(journals):
    with pytest.raises(JournalError, match=r"requests\.jsonl .* is empty"):
        recorded_story(journals(requests=()))


def test_a_reply_cannot_break_out_of_the_page(journals, tmp_path):
    write_recorded(tmp_path / "life.html", journals(), 7)
    text = (tmp_path / "life.html").read_text(encoding="utf-8")
    assert "not markup" in text
    assert "</script><b>" not in text


def test_says_where_it_could_not_write(journals, tmp_path):
    with pytest.raises(JournalError, match=r"Cannot write the page to .*missing"):
        write_recorded(tmp_path / "missing" / "life.html", journals(), 7)
