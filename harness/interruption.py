"""SIGINT and SIGTERM: received in one place, told to whoever is in charge at the time."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

Handler = Callable[[signal.Signals], None]
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruptions:
    """Tells each SIGINT and SIGTERM of this process to one handler, in the event loop's time."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handler: Handler | None = None
        self._waiting: list[signal.Signals] = []
        self._ignored = False

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Catch both signals, around an event loop and for longer than that.

        What comes while nobody is told waits for somebody, so what comes after the loop does
        nothing: a loop's own receiver ends with the loop, and Python then ends by the signal in the
        midst of its exit.
        """
        before = {each: signal.signal(each, self._catch) for each in SIGNALS}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, signal.SIG_IGN if self._ignored else handler)

    def ignore(self) -> None:
        """Ignore both signals once they are not caught any more."""
        self._ignored = True

    @contextmanager
    def told_to(self, handler: Handler) -> Iterator[None]:
        """Tell ``handler`` meanwhile, and afterwards whom it was told before; within the loop."""
        before = self._loop, self._handler
        self._loop, self._handler = asyncio.get_running_loop(), handler
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            self._tell(each)
        try:
            yield
        finally:
            self._loop, self._handler = before

    def _catch(self, number: int, _: FrameType | None) -> None:
        # Between any two instructions of the loop: what is told may only be put down for later.
        if self._loop is None:
            self._waiting.append(signal.Signals(number))
        else:
            self._loop.call_soon_threadsafe(self._tell, signal.Signals(number))

    def _tell(self, caught: signal.Signals) -> None:
        if self._handler is not None:
            self._handler(caught)
