"""How the tests are dealt to worker processes (pytest-xdist): a file at a time, long ones first.

What tests share (a replica, a browser, a simulated experiment) is made once a file, so a file stays
in one process. The files that share the real replica stay together, since two of them at once would
fight for the cores.
"""

from __future__ import annotations

import pytest

LONGEST = ("test_other_release", "replica", "test_truth", "test_run")
"""Groups that take minutes; what is begun last must be short."""


def group(item: pytest.Item) -> str:
    folder = item.path.parent.name
    return folder if folder == "replica" else item.path.stem


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.xdist_group(group(item)))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        name = group(item)
        return LONGEST.index(name) if name in LONGEST else len(LONGEST)

    items.sort(key=place)
