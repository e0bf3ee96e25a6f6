"""What a KV-aware router is told about a keep reset."""

from __future__ import annotations

from typing import Any

import pytest

PROMPT = range(1, 51)
"""Three full blocks of 16 tokens and a tail."""


def _taken(replica: Any) -> list[Any]:
    return list(replica.manager.take_events())


def _kinds(events: list[Any]) -> list[str]:
    return [type(event).__name__ for event in events]


@pytest.fixture
def made(replica, monkeypatch) -> Any:
    """A replica whose events stay in the pool until a test takes them."""
    made = replica(events=True)
    taken: list[Any] = []
    monkeypatch.setattr(made.scheduler.kv_event_publisher, "publish", taken.append)
    made.published = taken
    return made


def _published(made: Any) -> list[Any]:
    events = [event for batch in made.published for event in batch.events]
    made.published.clear()
    return events


def test_one_event_says_that_everything_is_gone(made):
    made.add(PROMPT)
    made.step()
    assert _kinds(_published(made)) == ["BlockStored"]
    assert made.keep()
    assert _kinds(_taken(made)) == ["AllBlocksCleared"]
    made.drain()


def test_it_is_published_with_the_output_of_a_later_step(made):
    made.add(PROMPT)
    made.step()
    _published(made)
    assert made.keep()
    assert not made.published
    made.step()
    assert _kinds(_published(made)) == ["AllBlocksCleared"]
    made.drain()


def test_a_straddlers_next_block_names_a_parent_that_was_cleared(made):
    """A router that follows parents must take such a block for unreachable, as vLLM does."""
    request = made.add(PROMPT)
    made.step()
    (before,) = _published(made)
    assert made.keep()
    made.step(16)
    cleared, stored = _published(made)
    assert _kinds([cleared, stored]) == ["AllBlocksCleared", "BlockStored"]
    assert stored.parent_block_hash == before.block_hashes[-1]
    assert made.lookup(PROMPT) == made.lookup([*request.all_token_ids, 1]) == 0

    made.add(request.all_token_ids[:50])
    made.step()
    (again,) = _published(made)
    assert again.parent_block_hash is None
    assert again.block_hashes == before.block_hashes
    assert made.lookup([*request.all_token_ids, 1]) == 64
    made.drain()


def test_a_block_stored_by_a_step_in_flight_comes_before_the_clear(replica, monkeypatch):
    """vLLM names blocks when it schedules them, so the order of the events is the truth."""
    made = replica(events=True, asynchronous=True)
    monkeypatch.setattr(made.scheduler.kv_event_publisher, "publish", lambda _: None)
    made.add(PROMPT)
    made.schedule()
    assert made.keep()
    assert _kinds(_taken(made)) == ["BlockStored", "AllBlocksCleared"]
    made.drain()


def test_a_block_that_lost_its_hash_is_reused_without_being_reported_as_removed(made):
    prompts = [[(start + token) % 250 + 1 for token in range(200)] for start in (0, 50, 100)]
    for prompt in prompts[:2]:
        made.add(prompt, max_tokens=1)
        made.step()
    assert made.keep()
    _published(made)
    for prompt in prompts * 3:
        made.add([7, *prompt], max_tokens=1)
        made.step()
    events = _published(made)
    assert _kinds(events)[0] == "AllBlocksCleared"
    assert set(_kinds(events)) == {"AllBlocksCleared", "BlockStored"}
    made.drain()
