"""Prompts: exact sizes, shared prefixes, unique tails."""

from __future__ import annotations

from harness.load.prompts import Prompts, as_text

SIZES = {"prefix_tokens": 50, "unique_tokens": 7, "vocabulary": (1000, 4000)}


def test_a_prompt_is_its_prefix_and_a_tail_of_its_own() -> None:
    prompts = Prompts(seed=1, **SIZES)
    one, same, other = prompts.token_ids(3, 10), prompts.token_ids(3, 11), prompts.token_ids(4, 10)
    assert len(one) == 57
    assert one[:50] == same[:50] != other[:50]
    assert one[50:] != same[50:]
    assert all(1000 <= token < 4000 for token in one)


def test_prompts_depend_on_the_seed_and_on_nothing_else() -> None:
    first, second = Prompts(seed=1, **SIZES), Prompts(seed=1, **SIZES)
    second.token_ids(9, 9)
    assert first.token_ids(3, 10) == second.token_ids(3, 10)
    assert first.token_ids(3, 10) != Prompts(seed=2, **SIZES).token_ids(3, 10)


def test_priming_shares_the_prefix_and_no_tail() -> None:
    prompts = Prompts(seed=1, **SIZES)
    primed = [prompts.priming(3, visit) for visit in (0, 1)]
    assert primed[0][:50] == primed[1][:50] == prompts.token_ids(3, 0)[:50]
    tails = {tuple(ids[50:]) for ids in [*primed, prompts.token_ids(3, 0), prompts.token_ids(3, 1)]}
    assert len(tails) == 4


def test_text_has_one_word_a_token_and_tells_tokens_apart() -> None:
    words = as_text(list(range(1000, 4000))).split(" ")
    assert len(words) == len(set(words)) == 3000
