"""The event loop that stamps: uvloop, in a process that is made ready for it."""

from __future__ import annotations

import gc
import resource
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import anyio

DESCRIPTORS = 65_536
"""Open files asked for; many a login shell starts with 1,024."""

COLLECT_AFTER = 50_000
"""Objects that come to be, less those that go, between garbage collections."""

Result = TypeVar("Result")


def on_uvloop(work: Callable[[], Awaitable[Result]]) -> Result:
    """Run ``work`` on uvloop and return its result."""
    _allow_connections()
    with rare_collections():
        return anyio.run(work, backend="asyncio", backend_options={"use_uvloop": True})


@contextmanager
def rare_collections() -> Iterator[None]:
    """Keep the garbage collector from what runs meanwhile: in a pass nothing is sent or stamped.

    What exists now, imports above all, is passed over: a full collection would go through all of
    it for tens of milliseconds. And passes are few, since a request leaves no garbage to collect:
    by Python's own thresholds, the longest pass in 8 s of 600 streams took 10 to 19 ms.
    """
    gc.collect()
    gc.freeze()
    before = gc.get_threshold()
    gc.set_threshold(COLLECT_AFTER, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def _allow_connections() -> None:
    """Raise the limit on open files as far as it goes: each request in flight holds a socket."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, DESCRIPTORS)), hard))
