"""Arrival -> RequestRecord, over ``/v1/completions`` or ``/v1/chat/completions``.

The stream is parsed after it has ended, from stamped reads, a slice at a time, so that streams
which finish together do not hold up the stamps of those still running.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Final

import httpx
import msgspec

from harness.records import Arrival, Outcome, RequestRecord
from harness.scenario import PromptForm
from harness.wire.chunks import Answer
from harness.wire.client import endpoint
from harness.wire.connection import Exchange
from harness.wire.outcome import judge

ERROR_CHARACTERS: Final = 500
"""How much of a reason a record keeps."""

_PUBLIC_HEADERS: Final = frozenset(
    {"accept", "accept-encoding", "connection", "content-type", "host", "user-agent"}
)

_ABANDONED: Final = (Outcome.ABANDONED, "the run was stopped")


class _Body(msgspec.Struct, omit_defaults=True):
    model: str
    max_tokens: int
    temperature: float
    stream: bool
    stream_options: dict[str, bool]
    prompt: Sequence[int] | str | None = None
    messages: list[dict[str, str]] | None = None
    ignore_eos: bool = False
    return_token_ids: bool = False


@dataclass
class _Flight:
    """A request that has no record yet; ``started`` in seconds since zero."""

    arrival: Arrival
    started: float
    exchange: Exchange = field(default_factory=Exchange)


class Completions:
    """Sends arrivals to one server and makes records of what came back.

    Args:
        client: An httpx client over ``StampedTransport``; its headers and timeouts apply.
        url: The server's address, with or without a path and a trailing ``/v1``.
        model: Model name as the server knows it.
        form: How prompts are put.
        ignore_eos: Ask for exactly ``output_tokens`` tokens and not for up to that many.
        zero: The run's zero on ``time.perf_counter``, from which records count.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        url: str,
        *,
        model: str,
        form: PromptForm,
        ignore_eos: bool,
        zero: float,
    ) -> None:
        self._client = client
        self._model = model
        self._form = form
        self._ignore_eos = ignore_eos
        self._zero = zero
        route = "chat/completions" if form is PromptForm.CHAT else "completions"
        self._template = client.build_request(
            "POST",
            endpoint(url, route),
            headers={"Accept-Encoding": "identity", "Content-Type": "application/json"},
        )
        del self._template.headers["Content-Length"]
        self._headers = self._template.headers.raw
        self._secrets = _secrets(self._template)
        self._flights: dict[int, _Flight] = {}
        self._heard = 0.0
        self._parsing = asyncio.Lock()

    @property
    def in_flight(self) -> int:
        """Requests whose response has not ended."""
        return sum(flight.exchange.ended is None for flight in self._flights.values())

    @property
    def last_heard(self) -> float:
        """When a byte of a response's body last arrived, seconds since zero; 0.0 if none has."""
        stamps = [flight.exchange.stamps for flight in self._flights.values()]
        return max([self._heard, *(read[-1] - self._zero for read in stamps if read)])

    async def send(
        self, arrival: Arrival, prompt: Sequence[int] | str, started: float | None = None
    ) -> RequestRecord:
        """Send one request now and return its record, whatever the server does.

        ``started`` is when its task began, in seconds since zero, if that was before now. Raises
        nothing but cancellation, after which ``abandon`` has the record.
        """
        if started is None:
            started = perf_counter() - self._zero
        flight = _Flight(arrival, started)
        self._flights[arrival.id] = flight
        exchange = flight.exchange
        body = self._body(arrival, prompt)
        request = httpx.Request(
            "POST",
            self._template.url,
            headers=[*self._headers, (b"Content-Length", b"%d" % len(body))],
            stream=httpx.ByteStream(body),
            extensions={**self._template.extensions, "exchange": exchange},
        )
        failure: httpx.TransportError | None = None
        try:
            response = await self._client.send(request, stream=True)
            await response.aclose()
            del response.stream  # holds the response: a cycle, left to the collector
        except httpx.TransportError as error:
            failure = error
        answer = Answer()
        if exchange.status == 200:
            async with self._parsing:
                for _ in answer.read(exchange.reads()):
                    await asyncio.sleep(0)
        outcome, reason = judge(exchange, answer, failure)
        record = self._record(flight, answer, outcome, reason)
        del self._flights[arrival.id]
        exchange.clear()  # a failure's traceback is a cycle: the bytes would wait for the collector
        return record

    def abandon(self) -> list[RequestRecord]:
        """Records of the requests that have none yet; forgets them.

        Their outcome is ``abandoned``, unless the response is whole and only waits to be read. For
        when a run stops: call it after (or just before) cancelling what awaits ``send``.
        """
        records = []
        for flight in self._flights.values():
            exchange, answer = flight.exchange, Answer()
            if exchange.ended is None:
                exchange.ended = perf_counter()
            if exchange.status == 200:
                for _ in answer.read(exchange.reads()):
                    pass
            ending = judge(exchange, answer, None) if exchange.whole else _ABANDONED
            records.append(self._record(flight, answer, *ending))
        self._flights.clear()
        return records

    def _body(self, arrival: Arrival, prompt: Sequence[int] | str) -> bytes:
        chat = self._form is PromptForm.CHAT
        return msgspec.json.encode(
            _Body(
                model=self._model,
                max_tokens=arrival.output_tokens,
                temperature=0.0,
                stream=True,
                stream_options={"include_usage": True},
                prompt=None if chat else prompt,
                messages=[{"role": "user", "content": str(prompt)}] if chat else None,
                ignore_eos=self._ignore_eos,
                return_token_ids=self._form is PromptForm.TOKEN_IDS,
            )
        )

    def _record(
        self, flight: _Flight, answer: Answer, outcome: Outcome, reason: str | None
    ) -> RequestRecord:
        exchange, usage, zero = flight.exchange, answer.usage, self._zero
        ended = perf_counter() if exchange.ended is None else exchange.ended
        if exchange.stamps:
            self._heard = max(self._heard, exchange.stamps[-1] - zero)
        details = usage.prompt_tokens_details if usage else None
        times = tuple([stamp - zero for stamp in answer.token_times])
        return RequestRecord(
            id=flight.arrival.id,
            scheduled=flight.arrival.scheduled,
            started=flight.started,
            prefix=flight.arrival.prefix,
            outcome=outcome,
            finished=ended - zero,
            sent=None if exchange.sent is None else exchange.sent - zero,
            first_token=times[0] if times else None,
            token_times=times,
            prompt_tokens=usage.prompt_tokens if usage else None,
            completion_tokens=_completion_tokens(answer),
            cached_tokens=details.cached_tokens if details else None,
            http_status=exchange.status,
            error=None if reason is None else self._scrub(reason)[:ERROR_CHARACTERS],
        )

    def _scrub(self, text: str) -> str:
        """``text`` without the keys we sent, which some servers echo."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


def _completion_tokens(answer: Answer) -> int | None:
    """The server's count; failing that, the token ids seen. Chunks are not tokens."""
    if answer.usage is not None and answer.usage.completion_tokens is not None:
        return answer.usage.completion_tokens
    return answer.tokens or None


def _secrets(template: httpx.Request) -> list[str]:
    """What a server must not be quoted with: the values of headers that are not everybody's."""
    words = [
        word
        for name, value in template.headers.items()
        if name not in _PUBLIC_HEADERS
        for word in (value, *value.split())
    ]
    return sorted({*words, template.url.password} - {""}, key=len, reverse=True)
