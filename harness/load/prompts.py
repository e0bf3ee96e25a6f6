"""Prompts: parts that share tokens or do not, made from the seed when they are needed.

A prompt is a pure function of (seed, settings, arrival), so a plan need not carry it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import product
from typing import NamedTuple, Protocol

from harness.load.arrivals import Stream, stream
from harness.load.traces import BLOCK
from harness.records import Arrival


class Part(NamedTuple):
    """A stretch of a prompt. Parts of equal stream and path begin with equal tokens."""

    of: Stream
    path: tuple[int, ...]
    tokens: int


class Family(Protocol):
    """Which parts prompts are made of.

    Prompts of arrivals with different ``Arrival.prefix`` share no part.
    """

    @property
    def primed(self) -> int:
        """How many shared beginnings are sent before the load."""

    @property
    def branches(self) -> int:
        """How many shared beginnings in turn begin alike; the first of them finds none cached."""

    def shared(self, number: int) -> tuple[Part, ...]:
        """The shared beginning of that number."""

    def parts(self, arrival: Arrival) -> tuple[Part, ...]:
        """The whole prompt of an arrival."""


class Prefixes(NamedTuple):
    """A shared prefix, then a unique tail."""

    primed: int
    prefix_tokens: int
    unique_tokens: int
    branches: int = 1

    def shared(self, number: int) -> tuple[Part, ...]:
        """The prefix of that number."""
        return (Part(Stream.PREFIX_TOKENS, (number,), self.prefix_tokens),)

    def parts(self, arrival: Arrival) -> tuple[Part, ...]:
        """Its prefix and a tail of its own."""
        return (*self.shared(arrival.prefix), _tail(arrival, self.unique_tokens))


class Tree(NamedTuple):
    """A path from the root of a tree of shared blocks to a leaf, then a unique tail.

    ``levels`` holds, from the root down, how many children each node has and their tokens.
    """

    levels: tuple[tuple[int, int], ...]
    unique_tokens: int

    @property
    def primed(self) -> int:
        """Every leaf."""
        return math.prod(children for children, _ in self.levels)

    @property
    def branches(self) -> int:
        """The leaves below one node of the first level."""
        return self.primed // self.levels[0][0]

    def shared(self, number: int) -> tuple[Part, ...]:
        """The path to the leaf of that number, all leaves counted from left to right."""
        path: list[int] = []
        for children, _ in reversed(self.levels):
            number, child = divmod(number, children)
            path.insert(0, child)
        return self._down(tuple(path))

    def parts(self, arrival: Arrival) -> tuple[Part, ...]:
        """The path in ``arrival.path`` and a tail of its own."""
        return (*self._down(arrival.path), _tail(arrival, self.unique_tokens))

    def _down(self, path: tuple[int, ...]) -> tuple[Part, ...]:
        return tuple(
            Part(Stream.TREE_TOKENS, path[: level + 1], tokens)
            for level, (_, tokens) in enumerate(self.levels)
        )


class Unique(NamedTuple):
    """Nothing shared; what is primed is only a probe of the server."""

    prefix_tokens: int
    unique_tokens: int
    primed: int = 1
    branches: int = 1

    def shared(self, number: int) -> tuple[Part, ...]:
        """The probe, which no arrival sends."""
        return (Part(Stream.PREFIX_TOKENS, (number,), self.prefix_tokens),)

    def parts(self, arrival: Arrival) -> tuple[Part, ...]:
        """As many tokens of its own as the arrival says, else as of a prefix and its tail."""
        own = self.prefix_tokens + self.unique_tokens
        return (_tail(arrival, own if arrival.prompt_tokens is None else arrival.prompt_tokens),)


class Traced(NamedTuple):
    """The blocks that a trace names, equal ids equal tokens; without any, nothing shared."""

    alone: Unique
    primed: int = 1
    branches: int = 1

    def shared(self, number: int) -> tuple[Part, ...]:
        """The probe, which no arrival sends."""
        return self.alone.shared(number)

    def parts(self, arrival: Arrival) -> tuple[Part, ...]:
        """Its blocks, the last one as long as is left."""
        if not arrival.path or arrival.prompt_tokens is None:
            return self.alone.parts(arrival)
        last = arrival.prompt_tokens - BLOCK * (len(arrival.path) - 1)
        return tuple(
            Part(Stream.BLOCK_TOKENS, (block,), BLOCK if place < len(arrival.path) else last)
            for place, block in enumerate(arrival.path, 1)
        )


def _tail(arrival: Arrival, tokens: int) -> Part:
    return Part(Stream.UNIQUE_TOKENS, (arrival.id,), tokens)


class Prompts:
    """Makes the prompts of one plan; keeps each shared beginning it has made.

    ``vocabulary`` is a half-open range of token ids; ``priming_tokens`` end a priming prompt.
    """

    def __init__(
        self, family: Family, *, seed: int, vocabulary: tuple[int, int], priming_tokens: int
    ) -> None:
        self.family = family
        self._seed = seed
        self._vocabulary = vocabulary
        self._priming_tokens = priming_tokens
        self._kept: dict[Part, list[int]] = {}

    def token_ids(self, arrival: Arrival) -> list[int]:
        """Token ids of the prompt of one arrival."""
        return self._made(self.family.parts(arrival))

    def tail(self, arrival: Arrival) -> list[int]:
        """Token ids of an arrival's own, behind whatever it shares."""
        return self._made(self.family.parts(arrival)[-1:])

    def priming(self, number: int, visit: int) -> list[int]:
        """Token ids of a prompt that caches a shared beginning; no two visits share their tail."""
        tail = Part(Stream.PRIMING_TOKENS, (number, visit), self._priming_tokens)
        return self._made((*self.family.shared(number), tail))

    def _made(self, parts: Iterable[Part]) -> list[int]:
        made: list[int] = []
        for part in parts:
            made += self._tokens(part)
        return made

    def _tokens(self, part: Part) -> list[int]:
        match part.of:
            case Stream.PREFIX_TOKENS | Stream.TREE_TOKENS:
                if part not in self._kept:
                    self._kept[part] = self._draw(part)
                return self._kept[part]
            case Stream.BLOCK_TOKENS:
                # Drawn whole, so that a short last block begins like the same block elsewhere.
                # Not kept: a trace has hundreds of thousands.
                return self._draw(part._replace(tokens=BLOCK))[: part.tokens]
            case _:
                return self._draw(part)

    def _draw(self, part: Part) -> list[int]:
        rng = stream(self._seed, part.of, *part.path)
        ids: list[int] = rng.integers(*self._vocabulary, size=part.tokens).tolist()
        return ids


def best_hit_rate(prompts: Iterable[Sequence[Part]]) -> float:
    """Share of prompt tokens that a cache without bound would hold when each prompt comes.

    Counts the beginning that a prompt shares with an earlier one, in whole tokens, although a
    server hashes whole blocks and computes at least the last token: the bound from above.
    """
    nodes: dict[tuple[int, Stream, tuple[int, ...]], tuple[int, int]] = {}
    asked = found = 0
    for parts in prompts:
        above, known = 0, True
        for part in parts:
            key = (above, part.of, part.path)
            above, seen = nodes.get(key, (len(nodes) + 1, 0))
            nodes[key] = (above, max(seen, part.tokens))
            asked += part.tokens
            found += min(seen, part.tokens) if known else 0
            known = known and seen >= part.tokens
    return found / asked if asked else 0.0


def best_text_hit_rate(texts: Iterable[str]) -> float:
    """The same for texts, in characters."""
    earlier: list[str] = []
    asked = found = 0
    for text in texts:
        place = bisect_left(earlier, text)
        # The longest beginning shared with any lies with a neighbour in the order.
        near = earlier[max(0, place - 1) : place + 1]
        found += max((_alike(text, one) for one in near), default=0)
        asked += len(text)
        earlier.insert(place, text)
    return found / asked if asked else 0.0


def _alike(one: str, other: str) -> int:
    """Characters at their beginnings that are equal."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def as_text(token_ids: list[int]) -> str:
    """The same prompt as text: one short word an id, equal ids equal words.

    How many tokens that makes is the server's tokenizer's business; ``usage`` tells.
    """
    words = _words()
    return " ".join(words[token % len(words)] for token in token_ids)


@cache
def _words() -> tuple[str, ...]:
    """Four thousand pronounceable words of four letters, enough to tell prompts apart."""
    syllables = ["".join(pair) for pair in product("bdfgklmnprstv", "aeiou")]
    return tuple("".join(pair) for pair in product(syllables, syllables))[:4000]
