"""What a run and the processes that send its load say to each other: JSON, one message a line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from harness.records import ClientSample, RequestRecord
from harness.scenario import Scenario

LONGEST: Final = 2**27
"""Bytes of a line at most; a record holds the instant of every token."""


class Orders(msgspec.Struct, frozen=True):
    """What a process is to send, and where. It holds keys: it is sent, and never written down."""

    scenario: Scenario
    share: int
    """Which share of the plan's arrivals: every ``of``-th, beginning with this one from 0."""
    of: int
    url: str
    headers: Mapping[str, str]
    ca: str | None
    model: str


class Go(msgspec.Struct, frozen=True, tag=True):
    """Begin; ``zero`` is the run's zero on the clock that all processes of a machine share."""

    zero: float


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Send no further arrival; let those in flight end."""


class Halt(msgspec.Struct, frozen=True, tag=True):
    """Abandon what is in flight."""


Command = Go | Stop | Halt


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The process can begin."""

    clock: float
    """Its ``time.perf_counter`` now."""
    digest: str
    """Of the plan that it made from the scenario."""


class Began(msgspec.Struct, frozen=True, tag=True):
    """A request is being sent."""


class Ended(msgspec.Struct, frozen=True, tag=True):
    """A request has its record."""

    record: RequestRecord


class Heard(msgspec.Struct, frozen=True, tag=True):
    """When a byte of a response last arrived, seconds since zero."""

    at: float


class Health(msgspec.Struct, frozen=True, tag=True):
    """A second of the process's own health."""

    sample: ClientSample


class Done(msgspec.Struct, frozen=True, tag=True):
    """Every request has its record; nothing follows."""


Message = Ready | Began | Ended | Heard | Health | Done

as_command = msgspec.json.Decoder(Command)
as_message = msgspec.json.Decoder(Message)


def line(message: Orders | Command | Message) -> bytes:
    """``message`` as it is sent."""
    return msgspec.json.encode(message) + b"\n"
