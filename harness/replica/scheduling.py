"""Who runs first when the client and its replica share the cores of one machine.

A client that wakes for an arrival beside a busy replica was seen runnable but not run for up to
410 ms on two cores: lag p99 150–350 ms. Real-time scheduling of the client cures it (p99 1.3 ms)
and needs root, CAP_SYS_NICE or an rtprio limit; the replica under ``SCHED_BATCH`` needs nothing
and helps (p99 52–58 ms). See ``man 7 sched``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

import msgspec

REAL_TIME_PRIORITY = 10
"""Above every ordinary process, below what kernels and audio servers ask for."""


class Policy(StrEnum):
    """A Linux scheduling policy."""

    NORMAL = "SCHED_OTHER"
    BATCH = "SCHED_BATCH"
    """A fair share of the processor, but never preempts a process that wakes up."""
    REAL_TIME = "SCHED_RR"
    """Runs before every ordinary process, here with priority 10."""


class Scheduling(msgspec.Struct, frozen=True):
    """How the client runs, and how a replica beside it should; kept in the manifest."""

    client: Policy
    replica: Policy
    reason: str | None = None
    """Why the client is not real-time."""

    def words(self) -> str:
        """One sentence for the user, naming the remedy where the machine permits too little."""
        if self.client is Policy.REAL_TIME:
            return "the client runs under SCHED_RR (priority 10), before its replica"
        return (
            f"the client runs under {self.client} since it may not be real-time ({self.reason}), "
            f"a replica of its own under {self.replica}; for steadier times run as root, or grant "
            "CAP_SYS_NICE or an rtprio limit of 10 (ulimit -r)"
        )


@contextmanager
def client_first() -> Iterator[Scheduling]:
    """Put the calling thread before every ordinary process, as far as the machine permits.

    Only the calling thread is raised, so call it in the event loop's thread. What it starts
    meanwhile, threads and processes, does not inherit (``SCHED_RESET_ON_FORK``). The policy it had
    is restored at the end.
    """
    before, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(
            0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(REAL_TIME_PRIORITY)
        )
    except OSError as refusal:
        yield Scheduling(Policy.NORMAL, Policy.BATCH, refusal.strerror)
        return
    try:
        yield Scheduling(Policy.REAL_TIME, Policy.NORMAL)
    finally:
        os.sched_setscheduler(0, before, parameters)
