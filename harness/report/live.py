"""What a run shows while it runs: one updating line on a terminal, plain lines elsewhere."""

from __future__ import annotations

from contextlib import AbstractContextManager
from time import perf_counter
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from harness.records import Phase, Progress

PLAIN_EVERY = 10.0
"""Seconds between lines where the output is not a terminal."""


def describe(progress: Progress) -> str:
    """The figures of ``progress`` in one line of under 100 characters."""
    if progress.phase is Phase.PREPARING:
        return f"{progress.sent} priming requests"
    parts = [
        f"in flight {progress.in_flight}",
        f"sent {progress.sent}",
        f"done {progress.done}",
        f"failed {progress.failed}",
    ]
    if progress.ttft is not None:
        parts.append(f"TTFT {progress.ttft * 1e3:.0f} ms")
    if progress.resets_planned:
        last = progress.last_reset
        outcome = f" ({last.outcome})" if last else ""
        parts.append(f"resets {progress.resets_done}/{progress.resets_planned}{outcome}")
    return ", ".join(parts)


class Display(AbstractContextManager["Display"]):
    """Shows lines and progress on ``console`` while it is entered."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Bar | None = None
        self._phase: Phase | None = None
        self._next_line = 0.0
        if console.is_terminal:
            self._bar = Bar(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=16),
                TextColumn("{task.fields[figures]}", markup=False),
                console=console,
                transient=True,
                auto_refresh=False,
            )
            self._task = self._bar.add_task("", total=1.0, visible=False, figures="")

    def __enter__(self) -> Self:
        """Start the display."""
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take the updating line away."""
        if self._bar is not None:
            self._bar.stop()

    def say(self, line: str) -> None:
        """Print one line that stays."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def show(self, progress: Progress) -> None:
        """Show where the run stands."""
        if self._bar is not None:
            self._bar.update(
                self._task,
                description=f"{progress.phase} {_clock(progress)}",
                completed=min(max(progress.t / progress.end, 0.0), 1.0),
                figures=describe(progress),
                visible=True,
                refresh=True,
            )
            return
        now = perf_counter()
        if progress.phase is not self._phase or now >= self._next_line:
            self._phase, self._next_line = progress.phase, now + PLAIN_EVERY
            self.say(f"{progress.phase} {_clock(progress)}: {describe(progress)}")


def _clock(progress: Progress) -> str:
    if progress.phase is Phase.PREPARING:
        return f"{progress.t:.0%}"
    return f"{max(progress.t, 0.0):.0f}/{progress.end:.0f} s"
