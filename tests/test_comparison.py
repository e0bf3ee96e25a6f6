"""Which runs may be compared, and how a difference is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from harness.comparison import Allowed, NotComparable, read_members
from harness.errors import JournalError, UsageError
from harness.journals import Journals
from harness.records import ResetMode
from harness.scenario import PromptSpec, Scenario
from tests.analysis.experiments import spec, write, write_run
from tests.analysis.simulation import scenario, simulate

KEEP, NONE = ResetMode.KEEP, ResetMode.NONE
TIMING = {"warmup": 5.0, "duration": 30.0, "every": 10.0}
SERVER = {"version": "0.32.0", "model": "m", "cache_config": {"0": {"block_size": "32"}}}
BASE: Scenario = scenario(KEEP, **TIMING)
RUN: Journals = simulate(BASE)


def on(server: dict[str, object], journals: Journals = RUN, **changes: object) -> Journals:
    manifest = msgspec.structs.replace(journals.manifest, server=server, **changes)
    return replace(journals, manifest=manifest)


def asking(**prompts: object) -> Journals:
    return simulate(msgspec.structs.replace(BASE, prompts=PromptSpec(**prompts)))


def pair(folder: Path, left: Journals, right: Journals) -> list[Path]:
    for name, journals in (("a", left), ("b", right)):
        write_run(journals, folder / name)
    return [folder / "a", folder / "b"]


DIFFERENCES: dict[str, tuple[Callable[[], Journals], str, Allowed | None]] = {
    "rate": (
        lambda: simulate(scenario(KEEP, rate=5.0, **TIMING)),
        "load.rate is 4.0 and 5.0",
        None,
    ),
    "seed": (lambda: simulate(scenario(KEEP, seed=2, **TIMING)), "seed is 1 and 2", None),
    "duration": (
        lambda: simulate(scenario(KEEP, **TIMING | {"duration": 40.0})),
        "load.duration is 30.0 and 40.0",
        None,
    ),
    "resets": (
        lambda: simulate(scenario(KEEP, **TIMING | {"every": 7.0})),
        "reset instants",
        None,
    ),
    "prompts": (lambda: asking(prefix_tokens=500), "prompts.prefix_tokens is 2000 and 500", None),
    "model": (lambda: on(SERVER | {"model": "n"}), "server.model is m and n", None),
    "no model": (lambda: on({"version": "0.32.0"}), "server.model is m and absent", None),
    "version": (
        lambda: on(SERVER | {"version": "0.33.0"}),
        "server.version is 0.32.0 and 0.33.0",
        Allowed.VERSION,
    ),
    "harness": (
        lambda: on(SERVER, harness_version="9"),
        "harness_version is 0 and 9",
        Allowed.VERSION,
    ),
    "cache": (
        lambda: on(SERVER | {"cache_config": {"0": {"block_size": "16"}}}),
        "server.cache_config.0.block_size is 32 and 16",
        Allowed.CONFIG,
    ),
    "schema": (lambda: on(SERVER, schema_version=0), "schema_version is 1 and 0", None),
}


@pytest.mark.parametrize("what", DIFFERENCES)
def test_a_difference_is_named_with_the_flag_that_overrides_it(what: str, tmp_path: Path) -> None:
    make, message, flag = DIFFERENCES[what]
    other = make()
    left = on(SERVER)
    right = other if other.manifest.server else on(SERVER, other)
    folders = pair(tmp_path, left, right)
    with pytest.raises(NotComparable, match=f"a and b are not comparable: {message}") as caught:
        read_members(folders)
    assert caught.value.exit_code == 2
    if flag is None:
        assert "no flag overrides this" in str(caught.value)
        with pytest.raises(NotComparable):
            read_members(folders, list(Allowed))
    else:
        assert flag.value in str(caught.value)
        assert len(read_members(folders, [flag])) == 2


def test_modes_may_differ(tmp_path: Path) -> None:
    control = simulate(scenario(NONE, **TIMING))
    members = read_members(pair(tmp_path, RUN, control))
    assert [member.name for member in members] == ["a", "b"]
    assert {member.source for member in members} == {""}


def test_experiments_compare_load_by_load(tmp_path: Path) -> None:
    one = write(spec(seeds=(1, 2), **TIMING), tmp_path / "one")
    same = write(spec(seeds=(1, 2), **TIMING), tmp_path / "same")
    fewer = write(spec(seeds=(1,), **TIMING), tmp_path / "fewer")
    members = read_members([one, same])
    assert len(members) == 12
    assert {member.source for member in members} == {"one", "same"}
    with pytest.raises(NotComparable, match="seed"):
        read_members([one, fewer])


def test_two_different_folders_of_runs_are_needed(tmp_path: Path) -> None:
    write_run(RUN, tmp_path / "a")
    with pytest.raises(UsageError, match="two or more different"):
        read_members([tmp_path / "a"])
    with pytest.raises(UsageError, match="two or more different"):
        read_members([tmp_path / "a", tmp_path / "a"])
    with pytest.raises(JournalError, match="not a run folder"):
        read_members([tmp_path / "a", tmp_path / "absent"])
