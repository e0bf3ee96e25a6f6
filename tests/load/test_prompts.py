"""Prompts: exact sizes, what each family shares, unique tails."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.load.prompts import (
    Family,
    Prefixes,
    Prompts,
    Traced,
    Tree,
    Unique,
    as_text,
    best_hit_rate,
    best_text_hit_rate,
)
from harness.load.traces import BLOCK
from harness.records import Arrival

ZIPF = Prefixes(9, 50, 7)
TREE = Tree(((2, 30), (3, 20), (4, 10)), 7)
TRACED = Traced(Unique(50, 7))


def prompts(family: Family = ZIPF, seed: int = 1) -> Prompts:
    return Prompts(family, seed=seed, vocabulary=(1000, 4000), priming_tokens=7)


def arrival(number: int, prefix: int = 0, **more: object) -> Arrival:
    return Arrival(number, 0.0, prefix, 1, **more)


def test_a_prompt_is_its_prefix_and_a_tail_of_its_own() -> None:
    one, same, other = (prompts().token_ids(arrival(*each)) for each in ((10, 3), (11, 3), (10, 4)))
    assert len(one) == 57
    assert one[:50] == same[:50] != other[:50]
    assert one[50:] != same[50:]
    assert all(1000 <= token < 4000 for token in one)


def test_prompts_depend_on_the_seed_and_on_nothing_else() -> None:
    first, second = prompts(), prompts()
    second.token_ids(arrival(9, 9))
    assert first.token_ids(arrival(10, 3)) == second.token_ids(arrival(10, 3))
    assert first.token_ids(arrival(10, 3)) != prompts(seed=2).token_ids(arrival(10, 3))


def test_the_tokens_of_a_prefix_are_those_they_always_were() -> None:
    """What a seed means is fixed: a change here makes every recorded plan another one."""
    ids = prompts().token_ids(arrival(10, 3))
    assert ids[:3] == [2075, 1098, 3239]
    assert ids[50:53] == [2927, 2856, 1414]


@pytest.mark.parametrize("family", [ZIPF, TREE])
def test_priming_shares_the_beginning_and_no_tail(family: Family) -> None:
    made = prompts(family)
    path = {"path": (0, 0, 3)} if family is TREE else {}
    length = 60 if family is TREE else 50
    primed = [made.priming(3, visit) for visit in (0, 1)]
    asked = [made.token_ids(arrival(number, 3, **path)) for number in (0, 1)]
    assert len({tuple(ids[:length]) for ids in (*primed, *asked)}) == 1
    assert len({tuple(ids[length:]) for ids in (*primed, *asked)}) == 4


def test_leaves_share_exactly_the_way_they_have_in_common() -> None:
    made = prompts(TREE)
    leaves = [made.priming(leaf, 0)[:60] for leaf in range(TREE.primed)]
    assert (len(leaves), TREE.branches) == (24, 12)
    assert leaves[0][:50] == leaves[3][:50]
    assert leaves[0][50:] != leaves[3][50:]
    assert leaves[0][:30] == leaves[4][:30]
    assert leaves[0][30:50] != leaves[4][30:50]
    assert leaves[11][:30] == leaves[0][:30] != leaves[12][:30]
    assert len({tuple(leaf) for leaf in leaves}) == 24


def test_unique_prompts_share_no_token_of_their_own() -> None:
    made = prompts(Unique(50, 7))
    one, other = made.token_ids(arrival(1)), made.token_ids(arrival(2))
    assert len(one) == 57
    assert sum(a == b for a, b in zip(one, other, strict=True)) < 5
    assert made.priming(0, 0)[:20] not in (one[:20], other[:20])


def test_equal_ids_of_a_trace_are_equal_blocks() -> None:
    made = prompts(TRACED)
    one = made.token_ids(arrival(0, path=(5, 6, 7), prompt_tokens=2 * BLOCK + 100))
    other = made.token_ids(arrival(1, path=(5, 8, 7), prompt_tokens=3 * BLOCK))
    assert (len(one), len(other)) == (2 * BLOCK + 100, 3 * BLOCK)
    assert one[:BLOCK] == other[:BLOCK]
    assert one[BLOCK : 2 * BLOCK] != other[BLOCK : 2 * BLOCK]
    assert one[2 * BLOCK :] == other[2 * BLOCK : 2 * BLOCK + 100]


def test_a_trace_without_blocks_shares_nothing_and_has_its_sizes() -> None:
    made = prompts(TRACED)
    one, other = (made.token_ids(arrival(n, prompt_tokens=300 + n)) for n in (0, 1))
    assert (len(one), len(other)) == (300, 301)
    assert one[:20] != other[:20]


def rate_of(*requests: tuple[tuple[int, ...], int]) -> float:
    made = [arrival(n, path=path, prompt_tokens=size) for n, (path, size) in enumerate(requests)]
    return best_hit_rate(TRACED.parts(one) for one in made)


def test_the_best_hit_rate_counts_what_an_endless_cache_would_hold() -> None:
    assert rate_of(((1, 2), 2 * BLOCK), ((1, 2), 2 * BLOCK)) == 0.5
    assert rate_of(((1, 2), 2 * BLOCK), ((1, 3), 2 * BLOCK)) == 0.25
    # A block is only found behind the blocks it was computed behind.
    assert rate_of(((1, 2), 2 * BLOCK), ((3, 2), 2 * BLOCK)) == 0.0
    assert rate_of(((1, 2), 2 * BLOCK), ((3, 4), 2 * BLOCK), ((1, 4), 2 * BLOCK)) == 1 / 6
    assert rate_of(((1,), 100), ((1,), 300)) == 0.25
    assert rate_of() == 0.0


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), max_size=12))
def test_the_best_hit_rate_is_that_of_the_longest_common_beginnings(paths) -> None:
    asked = found = 0
    for number, path in enumerate(paths):
        common = [
            next((n for n, (a, b) in enumerate(zip(path, other, strict=False)) if a != b),
                 min(len(path), len(other)))
            for other in paths[:number]
        ]  # fmt: skip
        asked, found = asked + len(path), found + max(common, default=0)
    requests = [(tuple(path), BLOCK * len(path)) for path in paths]
    assert rate_of(*requests) == pytest.approx(found / asked if asked else 0.0)


@settings(deadline=None)
@given(st.lists(st.text("ab", max_size=6), max_size=10))
def test_the_best_hit_rate_of_texts_is_that_of_their_common_beginnings(texts) -> None:
    found = sum(
        max((n for other in texts[:place] for n in range(len(text) + 1)
             if text[:n] == other[:n] and n <= len(other)), default=0)
        for place, text in enumerate(texts)
    )  # fmt: skip
    asked = sum(map(len, texts))
    assert best_text_hit_rate(texts) == pytest.approx(found / asked if asked else 0.0)


def test_text_has_one_word_a_token_and_tells_tokens_apart() -> None:
    words = as_text(list(range(1000, 4000))).split(" ")
    assert len(words) == len(set(words)) == 3000
