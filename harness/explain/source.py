"""The text of the model's functions, and what their comments say about a line."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cache
from types import CodeType, FunctionType

from harness.explain import engine as engine_module
from harness.explain import pool as pool_module
from harness.explain.engine import Auxiliary, Engine
from harness.explain.pool import Pool


@dataclass(frozen=True)
class Source:
    """The text of one function of the model."""

    name: str
    first_line: int
    text: str


def sources() -> dict[str, Source]:
    """Every function that a step can show, by its qualified name."""
    return {
        name: Source(name, function.__code__.co_firstlineno, inspect.getsource(function))
        for name, function in _functions().items()
    }


@cache
def comment_above(name: str, number: int) -> str:
    """The comment right above a line, or above the lines of the same statement before it."""
    source = sources()[name]
    text = source.text.splitlines()
    index = number - source.first_line - 1
    while index >= 0 and not text[index].strip().startswith("#"):
        if text[index].strip() == "" or _ends_statement(text[index]):
            return ""
        index -= 1
    words: list[str] = []
    while index >= 0 and text[index].strip().startswith("#"):
        words.insert(0, text[index].strip().lstrip("# "))
        index -= 1
    return " ".join(words)


def _ends_statement(text: str) -> bool:
    return not text.rstrip().endswith(("(", ",", "[", "{", ":"))


def _functions() -> dict[str, FunctionType]:
    found: dict[str, FunctionType] = {}
    for module, owner in (
        (pool_module, Pool),
        (engine_module, Engine),
        (engine_module, Auxiliary),
    ):
        for name, value in vars(owner).items():
            if inspect.isfunction(value) and inspect.getmodule(value) is module and name[0] != "_":
                found[value.__qualname__] = value
    return found


CODES: dict[CodeType, str] = {function.__code__: name for name, function in _functions().items()}
