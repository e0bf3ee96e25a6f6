"""Sending the arrivals of a plan, or a share of them, from this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import anyio
import httpx

from harness.load.dispatch import dispatch
from harness.load.prompts import Prompts, as_text
from harness.records import Arrival, ClientSample, RequestRecord
from harness.scenario import LengthLaw, PromptFamily, PromptForm, Scenario
from harness.sending.conversations import Conversations
from harness.wire.completions import Completions
from harness.workload import texts_of


@dataclass(frozen=True)
class Ledger:
    """Who is told what becomes of a load."""

    began: Callable[[], None]
    """A request is being sent."""
    ended: Callable[[RequestRecord], None]
    """One that was begun has its record."""
    sampled: Callable[[ClientSample], None]
    """The health of another process that sends a part of the load."""


class Sender:
    """Sends arrivals at their instants, each with its own prompt; the turns of sessions too.

    Args:
        scenario: The plan's.
        prompts: The maker of its prompts.
        arrivals: The plan's, or the share of them that is sent here.
        client: Of ``wire.client.open_client``; it stays the caller's to close.
        url: The server's address.
        model: Model name as the server knows it.
        zero: The run's zero on ``time.perf_counter``.
    """

    def __init__(
        self,
        scenario: Scenario,
        prompts: Prompts,
        arrivals: Sequence[Arrival],
        client: httpx.AsyncClient,
        url: str,
        *,
        model: str,
        zero: float,
    ) -> None:
        self._arrivals = arrivals
        self._zero = zero
        self._end = scenario.load.warmup + scenario.load.duration
        self._max_in_flight = scenario.load.max_in_flight
        self._form = scenario.prompts.form
        self._in_sessions = scenario.prompts.family is PromptFamily.SESSIONS
        self._prompts = prompts
        self._texts = texts_of(scenario)
        self._conversations = Conversations(self._prompts, self._form)
        self._completions = Completions(
            client,
            url,
            model=model,
            form=self._form,
            ignore_eos=scenario.output.law is LengthLaw.FIXED,
            zero=zero,
        )

    @property
    def last_heard(self) -> float:
        """When a byte of a response last arrived, seconds since zero; 0.0 if none has."""
        return self._completions.last_heard

    async def prime(self, arrival: Arrival, visit: int) -> RequestRecord:
        """Send the prompt that caches an arrival's shared beginning."""
        ids = self._prompts.priming(arrival.prefix, visit)
        return await self._completions.send(arrival, self._put(ids))

    async def carry_out(self, ledger: Ledger, sending: anyio.CancelScope) -> None:
        """Send every arrival; return when each has ended.

        Cancelling ``sending`` stops further arrivals and lets those in flight end. After a
        cancellation of the whole those in flight are in the ledger too, as ``abandoned``.
        """

        async def one(arrival: Arrival, started: float) -> Arrival | None:
            ledger.began()
            record = await self._send(arrival, started)
            ledger.ended(record)
            following = self._conversations.follow(arrival, record)
            in_time = following is not None and following.scheduled < self._end
            return following if in_time else None

        try:
            await dispatch(
                self._arrivals, one, self._zero, sending=sending, max_in_flight=self._max_in_flight
            )
        finally:
            for record in self._completions.abandon():
                ledger.ended(record)

    async def _send(self, arrival: Arrival, started: float) -> RequestRecord:
        if self._in_sessions:
            said = self._conversations.prompt(arrival)
            heard = partial(self._conversations.heard, arrival)
            return await self._completions.send(arrival, said, started, heard)
        if arrival.row is not None:
            return await self._completions.send(arrival, self._texts[arrival.row], started)
        prompt = self._put(self._prompts.token_ids(arrival))
        return await self._completions.send(arrival, prompt, started)

    def _put(self, token_ids: list[int]) -> list[int] | str:
        return token_ids if self._form is PromptForm.TOKEN_IDS else as_text(token_ids)
