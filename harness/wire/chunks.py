"""The JSON of a stream's events -> what the server generated, and how it said it ended.

Pure. Knows the chunks of ``/v1/completions`` and ``/v1/chat/completions`` as OpenAI defines them
and vLLM extends them (``token_ids``, ``reasoning``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

import msgspec

from harness.wire.sse import Event, Read, events

SLICE: Final = 64
"""Events read at a stretch: a fraction of a millisecond, so that stamps are not held up."""


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct, gc=False):
    function: _Function | None = None


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct, gc=False):
    text: str | None = None
    token_ids: list[int] | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class Usage(msgspec.Struct, gc=False):
    """The server's own count of tokens."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: Usage | None = None
    error: Any = None
    object: str | None = None
    message: str | None = None


_decode: Final = msgspec.json.Decoder(_Chunk).decode
_decode_all: Final = msgspec.json.Decoder(list[_Chunk]).decode
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Answer:
    """What a stream of chunks said, read so far.

    Attributes:
        token_times: The stamp of each chunk with generated content.
        tokens: Token ids generated, where the chunks list them.
        usage: The last ``usage``, or None.
        finish_reason: Why generation ended, or None if the stream never said.
        ids: Token ids generated, if ``keep``.
        texts: Pieces of text generated, if ``keep``; reasoning is not among them.
        events: Events read, ``[DONE]`` included.
        fault: The error object's text, if the stream carried one.
        nonsense: What could not be read, if anything; reading stops there.
    """

    def __init__(self, *, keep: bool = False) -> None:
        self._keep = keep
        self.ids: list[int] = []
        self.texts: list[str] = []
        self.token_times: list[float] = []
        self.tokens = 0
        self.usage: Usage | None = None
        self.finish_reason: str | None = None
        self.events = 0
        self.fault: str | None = None
        self.nonsense: str | None = None

    def read(self, reads: Iterable[Read]) -> Iterator[None]:
        """Read the whole stream, pausing (``yield``) after every ``SLICE`` events."""
        left = events(reads)
        while batch := list(islice(left, SLICE)):
            if not self._read_batch(batch):
                return
            if len(batch) == SLICE:
                yield

    def _read_batch(self, batch: list[Event]) -> bool:
        """Read some events; False if one of them cannot be read."""
        # Decoding them as one list costs less than decoding each.
        try:
            chunks = _decode_all(b"[%b]" % b",".join([data for _, data in batch]))
        except _UNREADABLE:
            chunks = []
        if len(chunks) == len(batch):
            self.events += len(batch)
            for (stamp, _), chunk in zip(batch, chunks, strict=True):
                self._note(stamp, chunk)
            return True
        return all(self._read_one(stamp, data) for stamp, data in batch)

    def _read_one(self, stamp: float, data: bytes) -> bool:
        self.events += 1
        if data and data != b"[DONE]":
            try:
                self._note(stamp, _decode(data))
            except _UNREADABLE as error:
                self.nonsense = f"{error}: {data[:2000].decode(errors='replace')}"
                return False
        return True

    def _note(self, stamp: float, chunk: _Chunk) -> None:
        for choice in chunk.choices or ():
            if self._keep:
                self._keep_words(choice)
            if choice.token_ids:
                self.tokens += len(choice.token_ids)
                self.token_times.append(stamp)
            elif choice.text or (choice.delta is not None and _has_content(choice.delta)):
                self.token_times.append(stamp)
            if choice.finish_reason is not None:
                self.finish_reason = choice.finish_reason
        if chunk.usage is not None:
            self.usage = chunk.usage
        if chunk.error is not None or chunk.object == "error":
            self.fault = error_text(chunk.message if chunk.error is None else chunk.error)

    def _keep_words(self, choice: _Choice) -> None:
        self.ids += choice.token_ids or ()
        said = choice.text if choice.delta is None else choice.delta.content
        if said:
            self.texts.append(said)


def _has_content(delta: _Delta) -> bool:
    """Whether a chat delta carries something generated: text, reasoning or a part of a call."""
    if delta.content or delta.reasoning or delta.reasoning_content:
        return True
    calls = [call.function for call in delta.tool_calls or () if call.function is not None]
    return any(function.name or function.arguments for function in calls)


def error_text(error: object) -> str:
    """The readable part of an error object as vLLM, OpenAI or FastAPI write it."""
    if isinstance(error, dict):
        for key in ("error", "message", "detail"):
            if error.get(key):
                return error_text(error[key])
    return error if isinstance(error, str) else msgspec.json.encode(error).decode()
