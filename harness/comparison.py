"""Which runs may be compared: those of equal plans on one kind of server.

Reset modes may differ, that is what is compared. Everything else that decides what a server is
asked, when, and how it answers must be equal; the first field that differs is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from harness.errors import UsageError
from harness.experiment.folder import EXPERIMENT, recorded_runs
from harness.journals import Journals, Manifest
from harness.store import read_run

ABSENT = "absent"


class Allowed(StrEnum):
    """Differences that may be compared on purpose, by their flags."""

    VERSION = "--allow-version"
    """Of vLLM or of this harness."""
    CONFIG = "--allow-config"
    """Of the server's cache."""


@dataclass(frozen=True)
class Member:
    """One run of a comparison; ``source`` is the experiment that it came from, if any."""

    source: str
    name: str
    journals: Journals


class NotComparable(UsageError):
    """Two runs differ in something that must be equal."""


def read_members(folders: Sequence[Path], allowed: Sequence[Allowed] = ()) -> list[Member]:
    """The runs in ``folders``, each of a run or of an experiment, found to be comparable.

    Raises:
        NotComparable: two of them differ; the message names the field, and its flag if it has one.
        UsageError: fewer than two folders, or one given twice.
        JournalError: a folder cannot be read.
    """
    if len(folders) < 2 or len({folder.resolve() for folder in folders}) < len(folders):
        raise UsageError("compare takes two or more different folders of runs or experiments.")
    groups = [list(_members(folder)) for folder in folders]
    for folder, group in zip(folders, groups, strict=True):
        if not group:
            raise UsageError(f"{folder} holds no run that began; there is nothing to compare.")
    members = [member for group in groups for member in group]
    for member in members[1:]:
        _check_server(members[0], member, allowed)
    _check_plans(groups)
    return members


def _members(folder: Path) -> Iterator[Member]:
    if not (folder / EXPERIMENT).exists():
        yield Member("", folder.name, read_run(folder))
        return
    for name, path in recorded_runs(folder)[0].items():
        yield Member(folder.name, f"{folder.name}/{name}", read_run(path))


def _check_plans(groups: Sequence[Sequence[Member]]) -> None:
    """Every argument holds the same plans: equal rates and seeds, each with an equal digest."""
    first = _by_load(groups[0])
    for group in groups[1:]:
        other = _by_load(group)
        for load in first.keys() | other.keys():
            if load not in first or load not in other:
                here, there = (sorted(each)[0] for each in (first, other))
                names = groups[0][0].name, group[0].name
                which = 0 if here[0] != there[0] else 1
                field = ("load.rate", "seed")[which]
                raise _different(names, field, here[which], there[which])
        for load, member in other.items():
            _check_plan(first[load], member)


def _by_load(group: Sequence[Member]) -> dict[tuple[float, int], Member]:
    found: dict[tuple[float, int], Member] = {}
    for member in group:
        scenario = member.journals.manifest.plan.scenario
        key = (scenario.load.rate, scenario.seed)
        if key in found:
            _check_plan(found[key], member)
        found.setdefault(key, member)
    return found


def _check_plan(one: Member, other: Member) -> None:
    """Raise unless both send the same requests at the same instants and reset at the same ones."""
    left, right = (_plan(member.journals.manifest) for member in (one, other))
    for field, value in left.items():
        if value != right[field]:
            raise _different((one.name, other.name), field, value, right[field])
    plans = one.journals.manifest.plan, other.journals.manifest.plan
    if plans[0].digest != plans[1].digest:
        raise _different(
            (one.name, other.name), "plan digest", plans[0].digest[:12], plans[1].digest[:12]
        )
    instants = [[reset.scheduled for reset in plan.resets] for plan in plans]
    if instants[0] and instants[1] and instants[0] != instants[1]:
        raise _different(
            (one.name, other.name), "reset instants", _short(instants[0]), _short(instants[1])
        )


def _short(instants: Sequence[float]) -> str:
    head = ", ".join(f"{at:g}" for at in instants[:3])
    return f"{head}{' …' if len(instants) > 3 else ''} ({len(instants)})"


def _plan(manifest: Manifest) -> dict[str, Any]:
    """What fixes the requests of a plan, flat, by scenario keys."""
    tree = msgspec.to_builtins(manifest.plan.scenario)
    tables = {name: tree[name] for name in ("load", "prompts", "output")}
    flat = {f"{table}.{key}": v for table, values in tables.items() for key, v in values.items()}
    return {"seed": tree["seed"], **flat}


def _check_server(one: Member, other: Member, allowed: Sequence[Allowed]) -> None:
    names = one.name, other.name
    left, right = one.journals.manifest, other.journals.manifest
    if left.schema_version != right.schema_version:
        raise _different(names, "schema_version", left.schema_version, right.schema_version)
    for field, flag in (
        ("model", None),
        ("max_model_len", None),
        ("version", Allowed.VERSION),
    ):
        values = left.server.get(field), right.server.get(field)
        if values[0] != values[1] and flag not in allowed:
            raise _different(names, f"server.{field}", *values, flag)
    if left.harness_version != right.harness_version and Allowed.VERSION not in allowed:
        raise _different(
            names,
            "harness_version",
            left.harness_version,
            right.harness_version,
            Allowed.VERSION,
        )
    if Allowed.CONFIG not in allowed:
        _check_config(names, left.server, right.server)


def _check_config(names: tuple[str, str], left: dict[str, Any], right: dict[str, Any]) -> None:
    """Raise for the first key that both caches tell and that differs."""
    ours, theirs = left.get("cache_config") or {}, right.get("cache_config") or {}
    for engine in ours.keys() & theirs.keys():
        for key in sorted(ours[engine].keys() & theirs[engine].keys()):
            values = ours[engine][key], theirs[engine][key]
            if values[0] != values[1]:
                field = f"server.cache_config.{engine}.{key}"
                raise _different(names, field, *values, Allowed.CONFIG)


def _different(
    names: tuple[str, str], field: str, left: object, right: object, flag: Allowed | None = None
) -> NotComparable:
    left, right = (ABSENT if value is None else value for value in (left, right))
    mend = (
        f"{flag} compares them all the same."
        if flag
        else "Compare runs in which it is equal; no flag overrides this."
    )
    return NotComparable(
        f"{names[0]} and {names[1]} are not comparable: {field} is {left} and {right}. {mend}"
    )
