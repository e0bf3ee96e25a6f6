"""What the garbage collector may do during a run."""

from __future__ import annotations

import gc

import pytest

from harness.eventloop import rare_collections


def test_collections_are_rare_within_and_as_before_afterwards() -> None:
    before = gc.get_threshold(), gc.get_freeze_count()
    passes: list[str] = []
    with pytest.raises(LookupError), rare_collections():  # noqa: PT012 - what is within is tested
        gc.callbacks.append(lambda phase, info: passes.append(phase))
        kept = [[index] for index in range(20_000)]
        gc.callbacks.pop()
        raise LookupError(len(kept))
    assert passes == []
    assert (gc.get_threshold(), gc.get_freeze_count()) == before
