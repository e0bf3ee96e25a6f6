"""What a run leaves behind, in memory: the manifest and the journals as tables.

``store`` reads and writes them; ``analysis`` computes from them and never touches a disk.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from harness.plan import Plan
from harness.records import ClientSample, RequestRecord, ResetRecord, ServerSample

if TYPE_CHECKING:
    import pandas as pd

SCHEMA_VERSION = 1
"""Raised when a field is renamed or changes meaning; adding one does not raise it."""


class RunStatus(StrEnum):
    """How far a run got. ``running`` on disk with no process behind it is a killed run."""

    RUNNING = "running"
    COMPLETE = "complete"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


class Manifest(msgspec.Struct, frozen=True):
    """``run.json``: what was to be done, on what, and how it ended."""

    schema_version: int
    status: RunStatus
    plan: Plan
    harness_version: str
    started_utc: str
    """Wall clock at the run's zero, ISO 8601: the only wall-clock reading."""
    server: dict[str, Any]
    """What the server said of itself: version, model, engines, cache configuration, reset modes."""
    host: dict[str, Any]
    """This machine and this client: platform, cores, scheduling of client and replica."""
    preparation: dict[str, Any]
    """How the cache was brought to its starting state, and what verified it."""
    reason: str | None = None
    """Why the status is not ``complete``."""
    warnings: tuple[str, ...] = ()
    """Doubts raised while running; analysis adds its own."""


REQUESTS_AT_ONCE = 10_000
"""Requests whose chunk stamps are put in order together."""

_COLUMNS = tuple(name for name in RequestRecord.__struct_fields__ if name != "token_times")
_DTYPES = dict.fromkeys(_COLUMNS, "float64") | {
    "id": "int64",
    "prefix": "int64",
    "outcome": "str",
    "error": "object",
    "closed_loop": "bool",
}


@dataclass(frozen=True)
class RequestTable:
    """Requests as columns, in order of their ids.

    ``frame`` has one row a request and the columns of ``RequestRecord`` except ``token_times``;
    absent numbers are NaN. Chunk stamps of row ``i`` are
    ``token_times[token_offsets[i]:token_offsets[i + 1]]``, in seconds since the run's zero.
    """

    frame: pd.DataFrame
    token_times: NDArray[np.float64]
    token_offsets: NDArray[np.int64]

    @classmethod
    def from_records(cls, records: Iterable[RequestRecord]) -> RequestTable:
        """Table of ``records``, which may come in any order; each is let go once it is read."""
        import pandas as pd  # noqa: PLC0415 - it takes a second, and a run in progress needs none

        columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
        stamps, lengths = bytearray(), []
        for record in records:
            for name, values in columns.items():
                values.append(getattr(record, name))
            times = record.token_times
            # Packed, since array.extend takes three times as long and this is done 10⁸ times.
            stamps += struct.pack(f"{len(times)}d", *times)
            lengths.append(len(times))
        frame = pd.DataFrame(columns).astype(_DTYPES)
        return cls._in_order(frame, np.frombuffer(stamps), np.asarray(lengths, np.int64))

    @classmethod
    def _in_order(
        cls, frame: pd.DataFrame, stamps: NDArray[np.float64], lengths: NDArray[np.int64]
    ) -> RequestTable:
        order = np.argsort(frame["id"].to_numpy(np.int64), kind="stable")
        begins = np.cumsum(lengths) - lengths
        lengths = lengths[order]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        moved = np.empty_like(stamps)
        # In parts: the places of a hundred million stamps would take thrice the stamps' memory.
        for first in range(0, len(order), REQUESTS_AT_ONCE):
            rows = slice(first, first + REQUESTS_AT_ONCE)
            here = offsets[first : first + REQUESTS_AT_ONCE + 1]
            shift = np.repeat(begins[order[rows]] - here[:-1], lengths[rows])
            moved[here[0] : here[-1]] = stamps[np.arange(here[0], here[-1]) + shift]
        return cls(frame.iloc[order].reset_index(drop=True), moved, offsets)

    def __len__(self) -> int:
        return len(self.frame)


@dataclass(frozen=True)
class Journals:
    """One run, read back. ``torn`` names journals whose last line was cut short."""

    manifest: Manifest
    requests: RequestTable
    resets: tuple[ResetRecord, ...]
    server: tuple[ServerSample, ...]
    client: tuple[ClientSample, ...]
    torn: tuple[str, ...] = ()
