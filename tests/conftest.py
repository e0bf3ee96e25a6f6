"""What holds for all tests: drawn ones have no deadline, and how they are dealt to processes.

Hypothesis by itself fails an example that takes 200 ms of wall-clock time. On a shared machine, or
where the first example imports pandas, that says nothing; what must be fast has its own test.

Tests are dealt to worker processes (pytest-xdist) a file at a time, long ones first. What tests
share (a replica, a browser, a simulated experiment) is made once a file, so a file stays in one
process. The files that share the real replica stay together, since two of them at once would fight
for the cores.
"""

from __future__ import annotations

import signal
from pathlib import PurePosixPath

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

# Whatever a shell starts in its background ignores SIGINT, and so does what that starts: the runs
# of ``bench`` that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("project", deadline=None)
settings.load_profile("project")

LONGEST = (
    "plugin/test_other_release",
    "replica",
    "run/test_run",
    "run/test_faults",
    "run/test_signals",
    "explain/test_truth",
)
"""Groups that take minutes; what is begun last must be short."""


def group(nodeid: str) -> str:
    file = PurePosixPath(nodeid.partition("::")[0])
    folder = file.parent.name
    return folder if folder == "replica" else f"{folder}/{file.stem}"


class ByGroup(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByGroup:
    return ByGroup(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        name = group(item.nodeid)
        return LONGEST.index(name) if name in LONGEST else len(LONGEST)

    items.sort(key=place)
