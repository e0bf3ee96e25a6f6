"""Sessions: a turn holds all that was said, and comes when its user has thought."""

from __future__ import annotations

import msgspec
import pytest

from harness.load.prompts import Prefixes, Prompts, as_text
from harness.records import Arrival, Outcome, RequestRecord, Turn
from harness.scenario import PromptForm
from harness.sending.conversations import Conversations
from harness.wire.chunks import Answer
from harness.wire.completions import Message

PROMPTS = Prompts(Prefixes(4, 20, 5), seed=1, vocabulary=(1000, 4000), priming_tokens=5)
FIRST = Arrival(0, 1.0, 2, 8, later=(Turn(7, 0.5, 9), Turn(8, 2.0, 10)))
DONE = RequestRecord(0, 1.0, 1.0, 2, Outcome.OK, 4.0)


def answer(ids: list[int], *texts: str) -> Answer:
    made = Answer(keep=True)
    made.ids, made.texts = ids, list(texts)
    return made


def test_a_turn_of_token_ids_is_the_last_prompt_and_answer_and_new_words() -> None:
    talk = Conversations(PROMPTS, PromptForm.TOKEN_IDS)
    first = list(talk.prompt(FIRST))
    assert first == PROMPTS.token_ids(FIRST)
    talk.heard(FIRST, answer([1, 2, 3]))
    second = talk.follow(FIRST, DONE)
    said = list(talk.prompt(second))
    assert said[:28] == [*first, 1, 2, 3]
    assert len(said) == 33
    assert said[28:] == PROMPTS.tail(second) != first[20:]
    talk.heard(second, answer([4]))
    third = talk.follow(second, msgspec.structs.replace(DONE, id=7))
    assert list(talk.prompt(third))[:34] == [*said, 4]
    assert talk.follow(third, msgspec.structs.replace(DONE, id=8)) is None


def test_a_turn_comes_after_the_end_of_the_last_and_says_so() -> None:
    talk = Conversations(PROMPTS, PromptForm.TOKEN_IDS)
    talk.prompt(FIRST)
    talk.heard(FIRST, answer([1]))
    second = talk.follow(FIRST, DONE)
    assert second == Arrival(7, 4.5, 2, 9, later=FIRST.later[1:], closed_loop=True)


@pytest.mark.parametrize("form", [PromptForm.TEXT, PromptForm.CHAT])
def test_words_are_kept_as_they_came(form: PromptForm) -> None:
    talk = Conversations(PROMPTS, form)
    first = talk.prompt(FIRST)
    words = as_text(PROMPTS.token_ids(FIRST))
    assert first == (words if form is PromptForm.TEXT else [Message("user", words)])
    talk.heard(FIRST, answer([], " I", " see."))
    second = talk.follow(FIRST, DONE)
    new = as_text(PROMPTS.tail(second))
    if form is PromptForm.TEXT:
        assert talk.prompt(second) == f"{words} I see. {new}"
    else:
        assert talk.prompt(second) == [
            Message("user", words), Message("assistant", " I see."), Message("user", new),
        ]  # fmt: skip


def test_no_turn_follows_a_failure_or_an_answer_without_words() -> None:
    talk = Conversations(PROMPTS, PromptForm.TOKEN_IDS)
    talk.prompt(FIRST)
    talk.heard(FIRST, answer([], "text alone"))
    assert talk.follow(FIRST, DONE) is None
    talk.prompt(FIRST)
    assert talk.follow(FIRST, msgspec.structs.replace(DONE, outcome=Outcome.TIMEOUT)) is None


def test_sessions_do_not_hear_each_other() -> None:
    talk = Conversations(PROMPTS, PromptForm.TOKEN_IDS)
    other = msgspec.structs.replace(FIRST, id=1, later=(Turn(9, 0.1, 1),))
    first, theirs = list(talk.prompt(FIRST)), list(talk.prompt(other))
    talk.heard(other, answer([5]))
    talk.heard(FIRST, answer([1]))
    assert list(talk.prompt(talk.follow(FIRST, DONE)))[:26] == [*first, 1]
    assert list(talk.prompt(talk.follow(other, DONE)))[:26] == [*theirs, 5]
