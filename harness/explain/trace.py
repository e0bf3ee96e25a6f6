"""Traces: what the model did, state by state, with the lines of it that ran.

A trace is recorded by watching the model run: each line that changes the state ends a step, and
the comment above that line says why. Nothing here knows what the model's functions do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import FrameType
from typing import TYPE_CHECKING, Any

from harness.explain.changes import Change, between
from harness.explain.engine import Engine
from harness.explain.pool import BLOCK_SIZE, Event, Pool
from harness.explain.request import Request
from harness.explain.source import CODES, comment_above

if TYPE_CHECKING:
    from _typeshed import TraceFunction

State = dict[str, Any]
"""A state as the page reads it: plain values only."""


class EntryKind(StrEnum):
    """What a line of the log is."""

    LOG = "log"
    EVENT = "event"
    RETURN = "return"
    ERROR = "error"


Entry = tuple[EntryKind, str]
"""One line of the log."""


@dataclass(frozen=True)
class Scene:
    """One thing that happens in a story."""

    words: str
    """What is done, from outside: a call, a request, a step of the engine."""
    act: Callable[[Engine], object]
    why: str = ""
    """What to see in it; for a narrated scene, where the model has nothing to say."""
    watch: tuple[str, ...] = ()
    """Functions of the model to show first."""
    closely: bool = False
    """Make each commented line of those functions a step of its own; else the scene is one."""


@dataclass(frozen=True)
class Step:
    """One state, and how it came about."""

    state: State
    scene: int
    words: str
    why: str
    changes: tuple[Change, ...] = ()
    lines: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Functions that ran since the step before, the most telling first, with line numbers."""
    log: tuple[Entry, ...] = ()


def record(engine: Engine, scenes: list[Scene]) -> list[Step]:
    """Play scenes on an engine; the first scene's outcome is the opening state.

    An ``AssertionError`` or ``RuntimeError`` of the model is the death of the engine that the
    story is about: it ends the trace and is shown, not raised.
    """
    steps: list[Step] = []
    for index, scene in enumerate(scenes):
        watcher = _Watcher(engine, scene, index, steps)
        if not watcher.play():
            break
    return steps


@dataclass
class _Watcher:
    """Turns one scene into steps."""

    engine: Engine
    scene: Scene
    index: int
    steps: list[Step]
    ran: list[tuple[str, int]] = field(default_factory=list)
    logged: tuple[int, int, int] = (0, 0, 0)
    said: str = ""
    said_in: str = ""

    def play(self) -> bool:
        """Play the scene; tell whether the engine survived it."""
        self.logged = self._log_lengths()
        before = sys.gettrace()
        error, result = "", None
        sys.settrace(self._enter)
        try:
            result = self.scene.act(self.engine)
        except (AssertionError, RuntimeError) as raised:
            error = f"{type(raised).__name__}: {raised}".rstrip(": ")
        finally:
            sys.settrace(before)
        state = snapshot(self.engine, alive=not error)
        if self.index == 0:
            self.steps.append(Step(state, 0, self.scene.words, self.scene.why))
        elif error:
            self._merge(state, [(EntryKind.ERROR, error)])
        elif isinstance(result, bool):
            self._merge(state, [(EntryKind.RETURN, f"returns {result}")])
        elif self.ran:
            self._merge(state, [])
        return not error

    def _enter(self, frame: FrameType, *_: object) -> TraceFunction | None:
        return self._line if frame.f_code in CODES else None

    def _line(self, frame: FrameType, event: str, *_: object) -> TraceFunction:
        if event in ("line", "return") and self.scene.closely and self.ran:
            self._look()
        if event == "line":
            self.ran.append((CODES[frame.f_code], frame.f_lineno))
        return self._line

    def _look(self) -> None:
        """End a step after a line with a comment, unless that was the last thing said.

        What other lines change belongs to the step before.
        """
        if self._why() not in ("", self.said):
            self._add(snapshot(self.engine), [])
            return
        state = snapshot(self.engine)
        if state != self.steps[-1].state or self._log_lengths() != self.logged:
            self._merge(state, [])

    def _why(self) -> str:
        """What the model says about the line that ran last, if it is to narrate."""
        if not self.ran or not self.scene.closely or self.ran[-1][0] not in self.scene.watch:
            return ""
        return comment_above(*self.ran[-1])

    def _merge(self, state: State, extra: list[Entry]) -> None:
        """Let what happened belong to this scene's last step, or begin its first one."""
        last = self.steps[-1]
        if last.scene != self.index:
            self._add(state, extra)
            return
        ran = [(name, number) for name, numbers in last.lines for number in numbers] + self.ran
        self.steps[-1] = replace(
            last,
            state=state,
            changes=between(self.steps[-2].state, state),
            lines=self._grouped(ran),
            log=(*last.log, *self._new_log(), *extra),
        )
        self.ran = []

    def _add(self, state: State, extra: list[Entry]) -> None:
        self.said = self._why()
        self.said_in = self.ran[-1][0] if self.said else ""
        self.steps.append(
            Step(
                state=state,
                scene=self.index,
                words=self.scene.words,
                why=self.said or self.scene.why,
                changes=between(self.steps[-1].state, state),
                lines=self._grouped(self.ran),
                log=(*self._new_log(), *extra),
            )
        )
        self.ran = []

    def _grouped(self, ran: list[tuple[str, int]]) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Lines that ran, by function: those to watch first, then the last to run."""
        lines: dict[str, set[int]] = {}
        for name, number in ran:
            lines[name] = lines.pop(name, set()) | {number}
        watched = [name for name in self.scene.watch if name in lines]
        others = [name for name in reversed(lines) if name not in watched]
        if self.said_in in watched:
            watched.insert(0, watched.pop(watched.index(self.said_in)))
        return tuple((name, tuple(sorted(lines[name]))) for name in watched + others)

    def _log_lengths(self) -> tuple[int, int, int]:
        cpu = self.engine.cpu
        pool = self.engine.pool
        return len(pool.log), len(pool.events), len(cpu.events) if cpu else 0

    def _new_log(self) -> list[Entry]:
        log, events, cpu_events = self.logged
        pool, cpu = self.engine.pool, self.engine.cpu
        found: list[Entry] = [(EntryKind.LOG, text) for text in pool.log[log:]]
        found += [(EntryKind.EVENT, _event_words(event)) for event in pool.events[events:]]
        if cpu:
            found += [(EntryKind.EVENT, _event_words(event)) for event in cpu.events[cpu_events:]]
        self.logged = self._log_lengths()
        return found


def snapshot(engine: Engine, alive: bool = True) -> State:
    """The engine's state in plain values; hashes are cut to four characters."""
    state: State = {
        "alive": alive,
        **_pool_state(engine.pool, _fill(engine)),
        "requests": [_request_state(request) for request in engine.requests],
        "running": [request.name for request in engine.running],
        "waiting": [request.name for request in engine.waiting],
        "in_flight": len(engine.steps),
    }
    if engine.cpu:
        state["cpu"] = _pool_state(engine.cpu, {})
        state["stores"] = [
            [
                [block.id for block in store.gpu_blocks],
                [block.id for block in store.cpu_blocks],
            ]
            for store in engine.stores
        ]
    if engine.auxiliary:
        auxiliary = engine.auxiliary
        state["auxiliary"] = [
            auxiliary.generation,
            auxiliary.worker_generation,
            auxiliary.outputs_in_flight,
        ]
    return state


def _pool_state(pool: Pool, fill: dict[int, int]) -> State:
    return {
        "blocks": [
            [
                block.ref_cnt,
                block.hash[:4] if block.hash else "",
                BLOCK_SIZE if block.hash else fill.get(block.id, 0),
            ]
            for block in pool.blocks
        ],
        "free": [block.id for block in pool.free],
        "map": {name[:4]: list(ids) for name, ids in pool.map.items()},
    }


def _request_state(request: Request) -> State:
    return {
        "name": request.name,
        "state": request.state.value,
        "tokens": len(request.tokens),
        "computed": request.computed,
        "end": request.end,
        "hit": request.hit,
        "blocks": [block.id for block in request.blocks],
        "preemptions": request.preemptions,
        "in_flight": request.in_flight,
    }


def _fill(engine: Engine) -> dict[int, int]:
    """How many tokens of each held block are computed."""
    return {
        block.id: max(0, min(BLOCK_SIZE, request.computed - index * BLOCK_SIZE))
        for request in engine.running
        for index, block in enumerate(request.blocks)
    }


def _event_words(event: Event) -> str:
    words = event.kind.value
    if event.hashes:
        words += " " + ", ".join(name[:4] for name in event.hashes)
    return words + (f", after {event.parent[:4]}" if event.parent else "")
