"""The difference between two states, in words and as the names of what to point at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

State = dict[str, Any]


@dataclass(frozen=True)
class Change:
    """One thing that changed; its words are a sentence."""

    words: str
    keys: tuple[str, ...]
    """The parts of the picture that it concerns, such as ``block-3`` or ``map-a3f1``."""


def between(before: State, after: State) -> tuple[Change, ...]:
    """What changed from one state to the next, the most telling first."""
    found = [
        *_pool(before, after, ""),
        *_requests(before, after),
        *(_pool(before["cpu"], after["cpu"], "cpu-") if "cpu" in after else ()),
        *_stores(before, after),
        *_auxiliary(before, after),
    ]
    if before["alive"] and not after["alive"]:
        found.insert(0, Change("The engine dies.", ("engine",)))
    if after["in_flight"] > before["in_flight"]:
        found.append(Change("A step is in flight.", ("flight",)))
    elif after["in_flight"] < before["in_flight"]:
        found.append(Change("A step's output has come back.", ("flight",)))
    return tuple(Change(c.words[0].upper() + c.words[1:], c.keys) for c in found)


def _pool(before: State, after: State, place: str) -> list[Change]:
    return [
        *_map(before["map"], after["map"], place),
        *_hashes(before["blocks"], after["blocks"], place),
        *_references(before["blocks"], after["blocks"], place),
        *_queue(before["free"], after["free"], place),
    ]


def _map(before: dict[str, list[int]], after: dict[str, list[int]], place: str) -> list[Change]:
    of = "host map" if place else "map"
    found = []
    lost = [name for name in before if name not in after]
    if lost and not after:
        keys = (f"{place}map", *(f"{place}map-{name}" for name in lost))
        found.append(Change(f"The {of} is empty: {_list(lost)} can no longer be found.", keys))
    elif lost:
        keys = tuple(f"{place}map-{name}" for name in lost)
        found.append(Change(f"{_list(lost)} can no longer be found in the {of}.", keys))
    for name, ids in after.items():
        old = before.get(name, [])
        key = (f"{place}map-{name}",)
        if not old:
            found.append(Change(f"The {of} now leads from {name} to {_blocks(ids)}.", key))
        elif ids != old:
            found.append(Change(f"The {of} leads from {name} to {_blocks(ids)}.", key))
    return found


def _hashes(before: list[Any], after: list[Any], place: str) -> list[Change]:
    lost = [
        i for i, (old, new) in enumerate(zip(before, after, strict=True)) if old[1] > new[1] == ""
    ]
    gained = [
        i for i, (old, new) in enumerate(zip(before, after, strict=True)) if new[1] and not old[1]
    ]
    found = []
    if lost:
        verb = "loses its hash" if len(lost) == 1 else "lose their hash"
        found.append(Change(f"{_blocks(lost, place)} {verb}.", _keys(lost, place)))
    if gained:
        verb = "gets a hash" if len(gained) == 1 else "get a hash each"
        found.append(Change(f"{_blocks(gained, place)} {verb}.", _keys(gained, place)))
    return found


def _references(before: list[Any], after: list[Any], place: str) -> list[Change]:
    moves: dict[tuple[int, int], list[int]] = {}
    for i, (old, new) in enumerate(zip(before, after, strict=True)):
        if old[0] != new[0]:
            moves.setdefault((old[0], new[0]), []).append(i)
    return [
        Change(f"{_blocks(ids, place)}: references {old} → {new}.", _keys(ids, place))
        for (old, new), ids in moves.items()
    ]


def _queue(before: list[int], after: list[int], place: str) -> list[Change]:
    queue = "host free queue" if place else "free queue"
    found = []
    left = [i for i in before if i not in after]
    if left:
        verb = "leaves" if len(left) == 1 else "leave"
        keys = _keys(left, place)
        found.append(Change(f"{_blocks(left, place)} {verb} the {queue}.", keys))
    joined = [i for i in after if i not in before]
    stayed = [i for i in after if i in before]
    first = after.index(stayed[0]) if stayed else len(after)
    for ids, end in (
        ([i for i in joined if after.index(i) < first], "head"),
        ([i for i in joined if after.index(i) >= first], "tail"),
    ):
        if ids:
            verb = "joins" if len(ids) == 1 else "join"
            keys = tuple(f"{place}queue-{i}" for i in ids)
            found.append(Change(f"{_blocks(ids, place)} {verb} the {queue} at its {end}.", keys))
    return found


def _requests(before: State, after: State) -> list[Change]:
    old_by_name = {request["name"]: request for request in before["requests"]}
    found = []
    for new in after["requests"]:
        name, key = new["name"], (f"request-{new['name']}",)
        old = old_by_name.get(name)
        if old is None:
            found.append(Change(f"Request {name} arrives.", key))
            old = {**new, "state": "waiting", "computed": 0, "hit": 0, "tokens": new["tokens"]}
        if old["state"] != new["state"]:
            found.append(Change(f"{name} is {new['state']}.", key))
            if old["state"] != "running" and new["state"] != "preempted":
                hit = f"{new['hit']} tokens" if new["hit"] else "nothing"
                found.append(Change(f"{name} finds {hit} in the cache.", key))
        if old["computed"] != new["computed"] and new["state"] != "finished":
            words = f"{name}: computed tokens {old['computed']} → {new['computed']}."
            found.append(Change(words, key))
        if new["tokens"] > old["tokens"]:
            found.append(Change(f"{name} gets an output token and has {new['tokens']}.", key))
    return found


def _stores(before: State, after: State) -> list[Change]:
    old, new = before.get("stores", []), after.get("stores", [])
    if len(new) > len(old):
        return [Change("A copy to host memory is under way.", ("stores",))]
    if len(new) < len(old):
        return [Change("The copy is over.", ("stores",))]
    return []


def _auxiliary(before: State, after: State) -> list[Change]:
    old, new = before.get("auxiliary"), after.get("auxiliary")
    if old == new or old is None or new is None:
        return []
    labels = ("Scheduler's generation", "Worker's generation", "Outputs in flight")
    return [
        Change(f"{label} {a} → {b}.", (f"auxiliary-{index}",))
        for index, (label, a, b) in enumerate(zip(labels, old, new, strict=True))
        if a != b
    ]


def _keys(ids: list[int], place: str) -> tuple[str, ...]:
    return tuple(f"{place}block-{i}" for i in ids)


def _blocks(ids: list[int], place: str = "") -> str:
    what = "host block" if place else "block"
    return f"{what} {ids[0]}" if len(ids) == 1 else f"{what}s {_list(ids)}"


def _list(items: list[Any]) -> str:
    words = [str(item) for item in items]
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]
