"""docs/invariants.md names every place in vLLM that reads a block's hash, and tests that exist."""

from __future__ import annotations

import ast
import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
PAGE = (HERE.parents[2] / "docs" / "invariants.md").read_text()
WORDS = {
    "AllBlocksCleared",
    "_block_hash",
    "_cache_partial_tail_block",
    "_insert_block_hash",
    "_maybe_evict_cached_block",
    "_remove_cached_block_hashes",
    "_reset_caches",
    "_reuse_watchers",
    "block_hash",
    "block_hash_num_tokens",
    "cache_blocks",
    "cache_full_blocks",
    "cache_partial_block",
    "cached_block_hash_to_block",
    "cached_block_hashes_by_block",
    "cached_blocks_this_step",
    "deferred_loads",
    "estimate_cached_tokens",
    "evict_blocks",
    "get_cached_block",
    "get_unhashed_block_ids",
    "get_unhashed_block_ids_all_groups",
    "is_block_writable",
    "move_block_hashes",
    "num_cached_block",
    "publish_blocks",
    "reset_cache",
    "reset_connector_cache",
    "reset_hash",
    "reset_prefix_cache",
    "set_block_hash",
    "unpin_blocks",
}
"""Attributes of blocks, pools, managers and connectors by which a place depends on a hash."""


def _uses(node: ast.AST, scope: tuple[str, ...]) -> Iterator[str]:
    """The qualified names under a node that use one of the words."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _uses(child, (*scope, child.name))
            continue
        if isinstance(child, ast.Attribute) and child.attr in WORDS:
            yield ".".join(scope)
        if isinstance(child, ast.Name) and child.id == "AllBlocksCleared":
            yield ".".join(scope)
        yield from _uses(child, scope)


def _places() -> set[str]:
    spec = find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent
    sources = [*(root / "v1").rglob("*.py"), *(root / "distributed").rglob("*.py")]
    assert len(sources) > 100
    return {place for source in sources for place in _uses(ast.parse(source.read_text()), ())}


def _named(page: str) -> set[str]:
    return set(re.findall(r"`([A-Za-z_][\w.]*)`", page))


def test_every_place_that_uses_a_blocks_hash_is_on_the_page():
    places = _places()
    assert len(places) > 80
    assert places - _named(PAGE) == set()


def test_every_test_on_the_page_exists():
    sources = [path.read_text() for path in HERE.glob("test_*.py")]
    defined = set(re.findall(r"^def (test_\w+)", "\n".join(sources), re.MULTILINE))
    modules = {path.stem for path in HERE.glob("test_*.py")}
    named = {name for name in _named(PAGE) if name.startswith("test_")}
    assert len(named) > 50
    assert named <= defined | modules
    assert modules <= named


def test_the_search_sees_uses_in_any_scope_and_nothing_else():
    source = """
block.block_hash
block_hash = 1
class Pool:
    mark: AllBlocksCleared
    def free(self, block_hash):
        def inner(): return self.num_cached_block[1]
        return block_hash
    async def cache(self): await self.pool.cache_blocks()
"""
    assert set(_uses(ast.parse(source), ())) == {"", "Pool", "Pool.free.inner", "Pool.cache"}
