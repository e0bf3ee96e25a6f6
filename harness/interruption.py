"""SIGINT and SIGTERM: received in one place, told to whoever is in charge at the time."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio
from anyio.abc import TaskStatus

Handler = Callable[[signal.Signals], None]


class Interruptions:
    """Tells each SIGINT and SIGTERM of this process to one handler; ``handler`` is the first.

    An event loop has one receiver for a signal: a second one, once closed, would leave none.
    """

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    @contextmanager
    def told_to(self, handler: Handler) -> Iterator[None]:
        """Tell ``handler`` meanwhile, and afterwards whom it was told before."""
        before, self._handler = self._handler, handler
        try:
            yield
        finally:
            self._handler = before

    async def receive(self, *, task_status: TaskStatus[None]) -> None:
        """Receive until cancelled; started once both signals are caught."""
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for caught in signals:
                self._handler(caught)
