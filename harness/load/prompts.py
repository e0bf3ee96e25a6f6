"""Prompts: a shared prefix and a unique tail, made from the seed when they are needed.

A prompt is a pure function of (seed, settings, prefix, arrival id), so a plan need not carry it.
"""

from __future__ import annotations

from functools import cache
from itertools import product

from harness.load.arrivals import Stream, stream


class Prompts:
    """Makes the prompts of one plan; keeps each prefix it has made.

    Sizes are in tokens; ``vocabulary`` is a half-open range of token ids.
    """

    def __init__(
        self, *, seed: int, prefix_tokens: int, unique_tokens: int, vocabulary: tuple[int, int]
    ) -> None:
        self._seed = seed
        self._prefix_tokens = prefix_tokens
        self._unique_tokens = unique_tokens
        self._vocabulary = vocabulary
        self._prefixes: dict[int, list[int]] = {}

    def token_ids(self, prefix: int, arrival: int) -> list[int]:
        """Token ids of the prompt of one arrival."""
        tail = self._draw(self._unique_tokens, Stream.UNIQUE_TOKENS, arrival)
        return self._prefix(prefix) + tail

    def priming(self, prefix: int, visit: int) -> list[int]:
        """Token ids of a prompt that caches ``prefix``; no two visits share their tail."""
        tail = self._draw(self._unique_tokens, Stream.PRIMING_TOKENS, prefix, visit)
        return self._prefix(prefix) + tail

    def _prefix(self, prefix: int) -> list[int]:
        if prefix not in self._prefixes:
            self._prefixes[prefix] = self._draw(self._prefix_tokens, Stream.PREFIX_TOKENS, prefix)
        return self._prefixes[prefix]

    def _draw(self, count: int, which: Stream, *path: int) -> list[int]:
        ids: list[int] = (
            stream(self._seed, which, *path).integers(*self._vocabulary, size=count).tolist()
        )
        return ids


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
