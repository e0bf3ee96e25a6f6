"""What a run leaves behind, in memory: the manifest and the journals as tables.

``store`` reads and writes them; ``analysis`` computes from them and never touches a disk.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from harness.plan import Plan
from harness.records import ClientSample, RequestRecord, ResetRecord, ServerSample

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
        """Table of ``records``, which may come in any order."""
        ordered = sorted(records, key=lambda record: record.id)
        columns = [name for name in RequestRecord.__struct_fields__ if name != "token_times"]
        floats = {"scheduled", "started", "sent", "first_token", "finished"}
        counts = {"prompt_tokens", "completion_tokens", "cached_tokens", "http_status"}
        frame = pd.DataFrame(
            {name: [getattr(record, name) for record in ordered] for name in columns}
        ).astype(dict.fromkeys(floats | counts, "float64"))
        lengths = np.fromiter((len(r.token_times) for r in ordered), np.int64, len(ordered))
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
        stamps = np.fromiter(
            (stamp for record in ordered for stamp in record.token_times),
            np.float64,
            int(offsets[-1]),
        )
        return cls(frame, stamps, offsets)

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
