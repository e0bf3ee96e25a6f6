"""The server a run drives: one that somebody else runs, or a replica started for the purpose."""

from __future__ import annotations

import os
import platform
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from harness.errors import HarnessError
from harness.replica.process import ReplicaSpec, managed_replica
from harness.replica.scheduling import client_first
from harness.target import Endpoint, Target


@dataclass(frozen=True)
class Server:
    """A server that is up."""

    target: Target
    host: dict[str, Any]
    """This machine, the scheduling of client and replica, how the replica was started."""
    ended: Callable[[], Awaitable[HarnessError]] | None = None
    """Returns when a replica of our own dies; None for somebody else's server."""


@asynccontextmanager
async def open_server(
    where: Target | ReplicaSpec, log: Path, say: Callable[[str], None]
) -> AsyncIterator[Server]:
    """The server at ``where``, started first (with its output in ``log``) if it is our own.

    Meanwhile this thread runs before every other process, as far as the machine permits.

    Raises:
        ReplicaError, DependencyMissing, UsageError: the replica cannot be started.
    """
    with client_first() as scheduling:
        say(scheduling.words())
        host = {
            "platform": platform.platform(),
            "python": platform.python_version(),
            "cores": len(os.sched_getaffinity(0)),
            "boot": _boot(),
            "scheduling": msgspec.to_builtins(scheduling),
        }
        if isinstance(where, Target):
            yield Server(where, host)
            return
        spec = msgspec.structs.replace(where, policy=scheduling.replica)
        async with managed_replica(spec, log, say) as replica:
            say(f"vLLM answers after {replica.started_in:.0f} s")
            host |= {
                "replica_command": list(replica.command),
                "replica_device": replica.device,
                "replica_started_in": replica.started_in,
            }
            endpoint = Endpoint(replica.url)
            target = Target(endpoint, (endpoint,), (endpoint,), replica.model)
            yield Server(target, host, replica.ended)


def _boot() -> str | None:
    """Linux's random name of this boot: equal in two runs only if one machine made both."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None
