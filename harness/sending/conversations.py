"""Sessions in progress: what was said so far, and when the next turn comes."""

from __future__ import annotations

import msgspec

from harness.load.prompts import Prompts, as_text
from harness.records import Arrival, Outcome, RequestRecord
from harness.scenario import PromptForm
from harness.wire.chunks import Answer
from harness.wire.completions import Message, Prompt


class Conversations:
    """Makes the prompts of sessions: each turn holds all that both sides said before.

    Token ids are sent as they were and came, so a turn begins with exactly what the server has
    computed. Text is joined as it came, and what its tokens are then is the tokenizer's business;
    a chat's messages are joined by the server's template.
    """

    def __init__(self, prompts: Prompts, form: PromptForm) -> None:
        self._prompts = prompts
        self._form = form
        self._ids: dict[int, list[int]] = {}
        self._messages: dict[int, list[Message]] = {}

    def prompt(self, arrival: Arrival) -> Prompt:
        """All that was said before this turn, and what its user says now."""
        first = not arrival.closed_loop
        new = self._prompts.token_ids(arrival) if first else self._prompts.tail(arrival)
        if self._form is PromptForm.TOKEN_IDS:
            said = self._ids.setdefault(arrival.id, [])
            said += new
            return said
        messages = self._messages.setdefault(arrival.id, [])
        words = as_text(new)
        if arrival.closed_loop and self._form is PromptForm.TEXT:
            words = f" {words}"
        messages.append(Message("user", words))
        if self._form is PromptForm.CHAT:
            return messages
        return "".join(message.content for message in messages)

    def heard(self, arrival: Arrival, answer: Answer) -> None:
        """Keep what was said for the next turn; of an answer without words there is none."""
        if not arrival.later:
            return
        following = arrival.later[0].id
        if self._form is PromptForm.TOKEN_IDS:
            if answer.ids:
                self._ids[following] = [*self._ids[arrival.id], *answer.ids]
        elif answer.texts:
            said = Message("assistant", "".join(answer.texts))
            self._messages[following] = [*self._messages[arrival.id], said]

    def follow(self, arrival: Arrival, record: RequestRecord) -> Arrival | None:
        """The session's next turn; None after its last one, and after one that failed.

        Its planned instant is the end of this one plus the time its user was drawn to think.
        """
        self._ids.pop(arrival.id, None)
        self._messages.pop(arrival.id, None)
        if record.outcome is not Outcome.OK or not arrival.later:
            return None
        turn, *later = arrival.later
        if turn.id not in self._ids and turn.id not in self._messages:
            return None
        return msgspec.structs.replace(
            arrival,
            id=turn.id,
            scheduled=record.finished + turn.think,
            output_tokens=turn.output_tokens,
            later=tuple(later),
            closed_loop=True,
        )
