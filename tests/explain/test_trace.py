"""Traces: what ran, what it changed, and in which words."""

from __future__ import annotations

import inspect
import sys

import pytest

from harness.explain import engine as engine_module
from harness.explain import pool as pool_module
from harness.explain.changes import between
from harness.explain.engine import Auxiliary, Engine
from harness.explain.page import fold, frames, highlight, pool_story
from harness.explain.pool import EventKind, Pool
from harness.explain.request import State, next_token
from harness.explain.source import Source, sources
from harness.explain.stories import PROMPT, STORIES
from harness.explain.trace import EntryKind, Scene, record, snapshot
from harness.records import ResetMode

LANES = [
    pytest.param(lane, id=f"{story.id}-{lane.id}") for story in STORIES for lane in story.lanes
]


def lane_of(story: str, lane: str):
    found = next(s for s in STORIES if s.id == story)
    return next(candidate for candidate in found.lanes if candidate.id == lane)


def trace_of(story: str, lane: str):
    found = lane_of(story, lane)
    return record(found.make(), found.scenes)


def test_the_opening_state_is_the_one_that_was_asked_for():
    for lane in ("default", "preempt", "keep"):
        state = trace_of("reset", lane)[0].state
        assert len(state["blocks"]) == 10
        running = [r for r in state["requests"] if r["state"] == "running"]
        assert [(r["name"], len(r["blocks"])) for r in running] == [("B", 3)]
        cached_and_free = [i for i in state["free"] if state["blocks"][i][1]]
        assert len(cached_and_free) == 1
        assert 0 not in state["free"]


def test_default_refuses_and_changes_nothing():
    trace = trace_of("reset", "default")
    refused = next(step for step in trace if step.log)
    assert refused.state == trace[0].state
    assert refused.log[-1] == (EntryKind.RETURN, "returns False")


def test_preempt_takes_the_blocks_first():
    trace = trace_of("reset", "preempt")
    wiped = next(step for step in trace if not step.state["map"])
    victim = wiped.state["requests"][-1]
    assert (victim["state"], victim["computed"], victim["blocks"]) == ("preempted", 0, [])
    assert len(wiped.state["free"]) == 9


def test_keep_touches_only_the_map_and_the_hashes():
    trace = trace_of("reset", "keep")
    before, after = trace[0].state, [step for step in trace if step.scene == 1][-1].state
    assert after["map"] == {}
    assert all(not name for _, name, _ in after["blocks"])
    assert [block[0] for block in after["blocks"]] == [block[0] for block in before["blocks"]]
    for same in ("free", "requests", "running", "waiting"):
        assert after[same] == before[same]


def hits(story: str, lane: str) -> dict[str, int]:
    last = trace_of(story, lane)[-1].state
    return {r["name"]: r["hit"] for r in last["requests"]}


def test_who_hits_after_a_keep_reset():
    assert hits("hits", "keep") == {"B": 0, "C": 0, "D": 12}
    trace = trace_of("hits", "keep")
    request = next(r for r in trace[-1].state["requests"] if r["name"] == "D")
    state = trace[-1].state
    owners = {r["name"]: r["blocks"] for r in trace[2].state["requests"]}
    assert request["blocks"][2] in owners["B"], "the third block is the one B filled"
    assert not set(request["blocks"][:2]) & set(owners["B"]), "the first two are C's copies"
    assert [state["blocks"][i][1] for i in owners["B"][:2]] == ["", ""]


def test_who_hits_after_a_preempting_reset():
    assert hits("hits", "preempt") == {"B": 0, "C": 8, "D": 12}


def test_without_its_mend_the_offload_kills_the_engine():
    last = trace_of("offload", "unmended")[-1]
    assert not last.state["alive"]
    assert last.log == ((EntryKind.ERROR, "AssertionError"),)


def test_with_its_mend_the_offload_registers_nothing_and_releases_both_ends():
    trace = trace_of("offload", "mended")
    copied = [step for step in trace if step.scene == 3][-1].state
    assert copied["cpu"]["map"] == {}
    assert all(refs == 0 for refs, _, _ in copied["cpu"]["blocks"])
    assert [refs for refs, _, _ in copied["blocks"]][1:4] == [1, 1, 1]


@pytest.mark.parametrize("lane", ["unmended", "preempt"])
def test_a_new_generation_with_output_in_flight_kills_the_engine(lane):
    last = trace_of("auxiliary", lane)[-1]
    assert not last.state["alive"]
    assert "generation changed with output in flight" in last.log[-1][1]


def test_with_its_mend_no_auxiliary_output_is_lost():
    last = trace_of("auxiliary", "mended")[-1].state
    assert last["alive"]
    assert last["auxiliary"] == [0, 0, 1]


def test_preempt_computes_the_prompt_again_and_keep_does_not():
    preempt = [step.state["requests"][0] for step in trace_of("prefill", "preempt")][1:]
    keep = [step.state["requests"][0] for step in trace_of("prefill", "keep")][1:]
    assert [r["computed"] for r in preempt] == list(range(14))
    assert [r["tokens"] for r in preempt] == [11] * 11 + [12, 13, 14]
    assert [r["computed"] for r in keep] == list(range(10, 24))
    assert [r["tokens"] for r in keep] == list(range(11, 25))


@pytest.mark.parametrize("lane", LANES)
def test_every_step_has_words(lane):
    for step in record(lane.make(), lane.scenes):
        assert step.words
        assert step.why
        assert all(change.words.endswith(".") for change in step.changes)


@pytest.mark.parametrize("lane", LANES)
def test_short_hashes_are_told_apart(lane):
    engine = lane.make()
    record(engine, lane.scenes)
    names = {name for request in engine.requests for name in request.hashes}
    assert len({name[:4] for name in names}) == len(names)


@pytest.mark.parametrize("lane", LANES)
def test_lines_lie_in_the_functions_that_they_name(lane):
    known = sources()
    for step in record(lane.make(), lane.scenes):
        for name, lines in step.lines:
            source = known[name]
            last = source.first_line + len(source.text.splitlines())
            assert all(source.first_line < line < last for line in lines)


def test_the_lit_line_is_the_one_that_made_the_change():
    trace = trace_of("reset", "keep")
    step = next(step for step in trace if "The map is empty" in str(step.changes))
    name, lines = step.lines[0]
    text = inspect.getsource(pool_module).splitlines()
    assert name == "Pool.reset"
    assert text[lines[-1] - 1].strip() == "self.map = {}"
    assert step.why in " ".join(part.strip(" #") for part in text)


def test_recording_leaves_another_tracer_alone():
    def tracer(*_):
        return None

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        record(Engine(), lane_of("reset", "keep").scenes)
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)


def test_a_fault_of_another_kind_is_raised():
    def broken(engine: Engine) -> None:
        raise KeyError("no such thing")

    with pytest.raises(KeyError):
        record(Engine(), [Scene("Broken", broken)])


@pytest.mark.parametrize("lane", LANES)
def test_folded_steps_unfold_to_the_states(lane):
    trace = record(lane.make(), lane.scenes)
    state: dict = {}
    for step, folded in zip(trace, fold(trace), strict=True):
        state = {**state, **folded["d"]}
        assert state == step.state


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.id)
def test_frames_show_every_step_in_order(story):
    traces = [record(lane.make(), lane.scenes) for lane in story.lanes]
    moments = frames(traces)
    for lane, trace in enumerate(traces):
        seen = [moment[lane] for moment in moments]
        assert seen == sorted(seen)
        assert set(seen) == set(range(len(trace)))


def test_stories_and_lanes_have_unique_names():
    assert len({story.id for story in STORIES}) == len(STORIES)
    for story in STORIES:
        lanes = [lane["id"] for lane in pool_story(story)["lanes"]]
        assert len(set(lanes)) == len(lanes)
        assert len({len(lane.scenes) for lane in story.lanes}) == 1


def test_code_is_escaped_and_every_line_numbered():
    text = 'def f(a):\n    """<b>"""\n    return a < 1 and "&"\n'
    shown = highlight(Source("f", 10, text))
    assert "<b>&quot" not in shown
    assert "&lt;b&gt;" in shown
    assert 'a &lt; <b class="k">' not in shown
    assert "a &lt; 1" in shown
    assert [f'data-line="{n}"' in shown for n in (9, 10, 11, 12, 13)] == [
        False, True, True, True, False,
    ]  # fmt: skip


def test_the_model_gives_the_null_block_to_nobody():
    pool = Pool(4)
    assert [block.id for block in pool.get_new_blocks(3)] == [1, 2, 3]
    assert not pool.free


def test_an_idle_pool_resets_by_default():
    engine = Engine()
    engine.add("A", PROMPT, 1)
    engine.step()
    assert engine.requests[0].state is State.FINISHED
    assert engine.pool.map
    assert engine.reset(ResetMode.DEFAULT)
    assert not engine.pool.map
    assert engine.pool.events[-1].kind is EventKind.CLEARED


def test_a_preempting_reset_raises_when_something_else_holds_a_block():
    engine = Engine(cpu_blocks=4)
    engine.add("B", PROMPT, 9)
    engine.step()
    engine.start_store("B")
    with pytest.raises(RuntimeError, match="Failed to reset"):
        engine.reset(ResetMode.PREEMPT)
    assert engine.requests[0].state is State.PREEMPTED
    assert engine.pool.map, "the requests were preempted, the map was not cleared"


def test_no_change_has_no_words():
    engine = Engine(auxiliary=Auxiliary(), cpu_blocks=3)
    assert between(snapshot(engine), snapshot(engine)) == ()


def test_the_model_answers_the_same_to_the_same():
    assert next_token([1, 2]) == next_token([1, 2]) != next_token([2, 1])


def test_sources_cover_the_whole_model():
    assert {"Pool.reset", "Engine.schedule", "Auxiliary.begin_step"} <= set(sources())
    for source in sources().values():
        module = pool_module if source.name.startswith("Pool.") else engine_module
        text = inspect.getsource(module).splitlines()
        assert text[source.first_line - 1].strip() == source.text.splitlines()[0].strip()
