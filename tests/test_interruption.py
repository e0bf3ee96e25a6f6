"""Signals around an event loop: none is lost before it, none is heard after it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import anyio
import pytest

from harness.interruption import SIGNALS, Interruptions
from harness.journals import RunStatus
from harness.measurement import Ending
from harness.run import until_signalled


@pytest.fixture(autouse=True)
def before() -> Iterator[list[object]]:
    """What the signals do outside; they do it again after the test."""
    handlers = [signal.getsignal(each) for each in SIGNALS]
    yield handlers
    for each, handler in zip(SIGNALS, handlers, strict=True):
        signal.signal(each, handler)


def handlers() -> list[object]:
    return [signal.getsignal(each) for each in SIGNALS]


@pytest.mark.parametrize("caught", SIGNALS)
def test_once_interrupted_with_nothing_to_report_further_signals_are_ignored(
    caught: signal.Signals,
) -> None:
    async def work(interruptions: Interruptions) -> Ending:
        os.kill(os.getpid(), caught)
        await anyio.sleep(30)
        return Ending(RunStatus.COMPLETE)

    ending = until_signalled(work)
    assert (ending.status, ending.reason) == (
        RunStatus.INTERRUPTED, f"interrupted by {caught.name}",
    )  # fmt: skip
    assert handlers() == [signal.SIG_IGN, signal.SIG_IGN]


@pytest.mark.parametrize("status", [RunStatus.COMPLETE, RunStatus.INTERRUPTED])
def test_a_report_can_be_interrupted_again(before: list[object], status: RunStatus) -> None:
    async def work(interruptions: Interruptions) -> Ending:
        return Ending(status, measured=True)

    assert until_signalled(work).status is status
    assert handlers() == before


def test_a_signal_before_the_loop_waits_for_whoever_is_told_first() -> None:
    told = []

    async def listen(interruptions: Interruptions) -> None:
        with interruptions.told_to(told.append):
            pass

    interruptions = Interruptions()
    with interruptions.caught():
        os.kill(os.getpid(), signal.SIGTERM)
        assert told == []
        anyio.run(listen, interruptions)
        os.kill(os.getpid(), signal.SIGINT)  # nobody is told any more
    assert told == [signal.SIGTERM]
