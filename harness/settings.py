"""Settings: scenario files and options -> Scenario, with what is allowed and what goes together."""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from harness.errors import UsageError
from harness.load.traces import TraceFormat, TraceSpec, read_trace
from harness.records import ResetMode
from harness.scenario import Process, PromptFamily, PromptForm, Scenario

LOOK: Mapping[str, Any] = {"load.warmup": 20.0, "load.duration": 100.0, "resets.every": 25.0}
"""The timing of a run that names none: a look, not a verdict, in two minutes of load."""
OPTIONS: Mapping[str, str] = {
    "seed": "--seed",
    "load.rate": "--rate",
    "load.duration": "--duration",
    "load.warmup": "--warmup",
    "load.max_in_flight": "--max-in-flight",
    "load.processes": "--processes",
    "load.process": "--arrivals",
    "load.burstiness": "--burstiness",
    "prompts.form": "--form",
    "prompts.family": "--family",
    "prompts.prefixes": "--prefixes",
    "prompts.prefix_tokens": "--prefix-tokens",
    "prompts.unique_tokens": "--unique-tokens",
    "prompts.zipf": "--zipf",
    "prompts.turns": "--turns",
    "prompts.think": "--think",
    "output.law": "--output-law",
    "output.tokens": "--output-tokens",
    "resets.mode": "--reset-mode",
    "resets.every": "--reset-every",
    "resets.at": "--reset-at",
    "resets.external": "--reset-external",
    "trace.file": "--trace",
    "trace.format": "--trace-format",
}
"""The scenario keys that have a flag."""

_LIMITS: Mapping[str, tuple[float, float, str]] = {
    "seed": (0, 2**63 - 1, ""),
    "load.rate": (0.001, 10_000, "requests/s"),
    "load.duration": (1, 604_800, "s"),
    "load.warmup": (0, 86_400, "s"),
    "load.max_in_flight": (1, 1_000_000, "requests"),
    "load.burstiness": (0.01, 1000, ""),
    "load.levels": (0, 1_000_000, ""),
    "load.processes": (1, 64, "processes"),
    "load.on": (0.1, 86_400, "s"),
    "load.off": (0.1, 86_400, "s"),
    "prompts.prefixes": (1, 100_000, "prefixes"),
    "prompts.zipf": (0, 10, ""),
    "prompts.prefix_tokens": (0, 10_000_000, "tokens"),
    "prompts.unique_tokens": (1, 10_000_000, "tokens"),
    "prompts.turns": (1, 1000, "turns"),
    "prompts.think": (0.001, 86_400, "s"),
    "output.tokens": (1, 10_000_000, "tokens"),
    "resets.every": (0.1, 604_800, "s"),
    "resets.at": (0, 604_800, "s"),
    "resets.retry_every": (0.001, 3600, "s"),
    "trace.window": (0, 1e9, "s"),
    "trace.bad_share": (0, 1, ""),
    "timeouts.connect": (0.01, 3600, "s"),
    "timeouts.idle": (0.01, 86_400, "s"),
    "timeouts.reset": (0.01, 3600, "s"),
    "timeouts.scrape": (0.01, 3600, "s"),
    "timeouts.drain": (0, 86_400, "s"),
    "timeouts.give_up": (0.1, 86_400, "s"),
}
"""Allowed range, ends included, and unit of every number a user can set."""

_MOST_ARRIVALS = 20_000_000


def read_scenario(file: Path | None, flags: Mapping[str, Any]) -> Scenario:
    """The scenario in ``file`` (TOML) with ``flags`` (dotted key -> value) on top.

    Without a file and without any timing flag the timing is ``LOOK``'s. Where a flag names a trace
    and the file has none, the trace also decides what ``_take_all`` says.

    Raises:
        UsageError: the file cannot be read, a key is unknown, or a value is out of its range.
    """
    settings: dict[str, Any] = {} if file is None else read_settings(file, "--scenario")
    where = "the options" if file is None else str(file)
    _check_keys(settings, Scenario, where)
    if file is not None:
        settings.setdefault("name", file.stem)
    elif flags.keys() & {*LOOK, "resets.at"}:
        settings["name"] = "run"
    else:
        flags = {**LOOK, **flags}
    takes_all = "trace.file" in flags and "file" not in settings.get("trace", {})
    if "resets.at" in flags:
        settings.setdefault("resets", {}).pop("every", None)
    if "resets.every" in flags:
        settings.setdefault("resets", {}).pop("at", None)
    for key, value in flags.items():
        _put(settings, key, value)
    if takes_all:
        _take_all(settings)
    scenario = convert(settings, Scenario, where)
    check(scenario)
    if scenario.load.process is Process.REPLAY and "rate" not in settings.get("load", {}):
        recorded = read_trace(scenario.trace).rate
        scenario = msgspec.structs.replace(
            scenario, load=msgspec.structs.replace(scenario.load, rate=recorded)
        )
        check(scenario)
    return scenario


def _take_all(settings: dict[str, Any]) -> None:
    """Let a trace decide arrivals and prompts, where its format has them and none are named.

    This is what ``--trace FILE`` means by itself. A scenario that has a trace of its own already
    says what is read from it: there the option only puts another file in its place.
    """
    kind = settings["trace"].get("format")
    if kind != TraceFormat.SHAREGPT:
        settings.setdefault("load", {}).setdefault("process", Process.REPLAY)
    if kind != TraceFormat.INSTANTS:
        settings.setdefault("prompts", {}).setdefault("family", PromptFamily.TRACE)


def read_settings(file: Path, option: str) -> dict[str, Any]:
    """The settings in ``file``, which ``option`` named; the path of a trace counts from here.

    Raises:
        UsageError: it cannot be read or is not TOML.
    """
    settings = read_toml(file, option)
    trace = settings.get("trace")
    if isinstance(trace, dict) and isinstance(trace.get("file"), str):
        trace["file"] = str(file.parent / trace["file"])
    return settings


def read_toml(file: Path, option: str) -> dict[str, Any]:
    """What is in ``file``, which ``option`` named.

    Raises:
        UsageError: it cannot be read or is not TOML.
    """
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"{option} {file}: {error.strerror}. Give the path of a TOML file."
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{option} {file} is not valid TOML: {error}.") from None


Settings = TypeVar("Settings", bound=msgspec.Struct)


def convert(settings: Mapping[str, Any], kind: type[Settings], where: str) -> Settings:
    """``settings`` as a ``kind``, by field names.

    Raises:
        UsageError: a key is unknown (the nearest known one is named), or a value of a wrong type;
            ``where`` says in which file.
    """
    _check_keys(settings, kind, where)
    try:
        return msgspec.convert(settings, kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {error}. Correct that value and run again.") from None


def check(scenario: Scenario) -> None:
    """Raise ``UsageError`` unless every value of ``scenario`` can be planned."""
    tree = msgspec.to_builtins(scenario)
    for key, (low, high, unit) in _LIMITS.items():
        value = _get(tree, key)
        for one in value if isinstance(value, tuple | list) else [value]:
            if one is not None and not (math.isfinite(one) and low <= one <= high):
                allowed = f"{low:,g} to {high:,g}{' ' + unit if unit else ''}"
                raise UsageError(f"{_option(key)} is {one}; allowed is {allowed}.")
    low_id, high_id = scenario.prompts.vocabulary
    if not 0 <= low_id < high_id:
        raise UsageError(
            f"prompts.vocabulary is [{low_id}, {high_id}]; it is a half-open range of token ids, "
            "so the first must be at least 0 and below the second."
        )
    if scenario.load.rate * (scenario.load.warmup + scenario.load.duration) > _MOST_ARRIVALS:
        raise UsageError(
            f"--rate × (--warmup + --duration) plans over {_MOST_ARRIVALS:,} requests; "
            "lower one of them."
        )
    if scenario.load.processes > 1 and scenario.load.max_in_flight is not None:
        raise UsageError(
            "--max-in-flight counts the requests of one process; leave it or --processes out."
        )
    _check_workload(scenario)
    _check_resets(scenario)


def _all_but(family: PromptFamily) -> tuple[PromptFamily, ...]:
    return tuple(one for one in PromptFamily if one is not family)


_PROCESS, _FAMILY = "load.process", "prompts.family"
_GOES_WITH: Mapping[str, tuple[str, tuple[StrEnum, ...]]] = {
    "load.burstiness": (_PROCESS, (Process.GAMMA,)),
    "load.levels": (_PROCESS, (Process.RAMP, Process.STEPS)),
    "load.on": (_PROCESS, (Process.ON_OFF,)),
    "load.off": (_PROCESS, (Process.ON_OFF,)),
    "prompts.prefixes": (_FAMILY, (PromptFamily.ZIPF, PromptFamily.SESSIONS)),
    "prompts.zipf": (_FAMILY, (PromptFamily.ZIPF, PromptFamily.TREE, PromptFamily.SESSIONS)),
    "prompts.turns": (_FAMILY, (PromptFamily.SESSIONS,)),
    "prompts.think": (_FAMILY, (PromptFamily.SESSIONS,)),
    "prompts.tree": (_FAMILY, (PromptFamily.TREE,)),
    "prompts.prefix_tokens": (_FAMILY, _all_but(PromptFamily.TREE)),
    "output.law": (_FAMILY, _all_but(PromptFamily.TRACE)),
    "output.tokens": (_FAMILY, _all_but(PromptFamily.TRACE)),
}
"""Knobs that only some choices read: elsewhere they would be accepted and ignored."""

_MOST_LEAVES = 100_000


def _check_workload(scenario: Scenario) -> None:
    """Raise unless process, family and trace go together."""
    mine, plain = msgspec.to_builtins(scenario), msgspec.to_builtins(Scenario())
    for key, (choice, having) in _GOES_WITH.items():
        chosen = _get(mine, choice)
        if _get(mine, key) != _get(plain, key) and chosen not in having:
            allowed = " or ".join(having)
            raise UsageError(f"{_option(key)} goes with {OPTIONS[choice]} {allowed}, not {chosen}.")
    load, tree = scenario.load, scenario.prompts.tree
    if load.process in (Process.RAMP, Process.STEPS) and (
        len(load.levels) < 2 or not any(load.levels)
    ):
        raise UsageError(
            f"load.levels is {list(load.levels)}; a {load.process} needs two or more, not all "
            "0; a scenario gives them."
        )
    if not tree or any(children < 1 or tokens < 1 for children, tokens in tree):
        raise UsageError("prompts.tree needs one level or more of [children, tokens], each over 0.")
    if math.prod(children for children, _ in tree) > _MOST_LEAVES:
        raise UsageError(f"prompts.tree has over {_MOST_LEAVES:,} leaves; take fewer children.")
    if scenario.prompts.family is PromptFamily.SESSIONS and load.process is Process.REPLAY:
        raise UsageError(
            "a replay says when every request comes, a session's later turns come after answers: "
            "take another --arrivals or --family."
        )
    _check_trace(scenario)


def _check_trace(scenario: Scenario) -> None:
    trace, file = scenario.trace, _option("trace.file")
    asked = scenario.prompts.family is PromptFamily.TRACE
    replayed = scenario.load.process is Process.REPLAY
    if trace.file is None and (asked or replayed or trace != TraceSpec()):
        raise UsageError(
            f"--arrivals replay, --family trace and whatever else describes a trace need {file}."
        )
    if trace.file is not None and not (asked or replayed):
        raise UsageError(
            f"{file} is read by --arrivals replay and by --family trace; take one of them, or "
            "leave the trace out."
        )
    if trace.window is not None and trace.window[0] >= trace.window[1]:
        raise UsageError(
            f"trace.window is {list(trace.window)}; its begin must lie before its end."
        )
    if trace.format is TraceFormat.SHAREGPT:
        if replayed or trace.window is not None:
            raise UsageError("ShareGPT has no instants: take another --arrivals, no trace.window.")
        if scenario.prompts.form is PromptForm.TOKEN_IDS:
            raise UsageError(f"ShareGPT is text: set {_option('prompts.form')} to chat or text.")
    if trace.format is TraceFormat.INSTANTS and asked:
        raise UsageError("a trace of instants has no prompts: take another --family.")


def _check_resets(scenario: Scenario) -> None:
    spec, duration = scenario.resets, scenario.load.duration
    if spec.at and spec.every is not None:
        raise UsageError("--reset-at and --reset-every exclude each other; give one of them.")
    late = [instant for instant in spec.at if instant >= duration]
    if late:
        raise UsageError(
            f"--reset-at {late[0]:g} lies past the measured period of {duration:g} s; "
            "give an earlier instant or a longer --duration."
        )
    if len(set(spec.at)) < len(spec.at):
        raise UsageError("--reset-at names the same instant twice; give each instant once.")
    if spec.modes:
        if len(spec.modes) < 2 or len(set(spec.modes)) < len(spec.modes):
            raise UsageError("resets.modes takes two or more different modes for a crossover.")
        if ResetMode.NONE in spec.modes or spec.mode is not ResetMode.NONE:
            raise UsageError("resets.modes excludes resets.mode and 'none'; a control is 'sham'.")
        if not 0 <= spec.turn < len(spec.modes):
            raise UsageError(f"resets.turn is {spec.turn}; a crossover has a turn for each mode.")
    if (spec.mode is not ResetMode.NONE or spec.modes) and not scenario.reset_instants:
        raise UsageError(
            f"--reset-every {spec.every or 0:g} leaves no room for a reset with a window of its "
            f"own in --duration {duration:g}; the duration must be at least twice the spacing."
        )


def _check_keys(settings: Mapping[str, Any], kind: type[msgspec.Struct], where: str) -> None:
    """Raise ``UsageError`` for the first key that ``kind`` does not have."""
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
    for key, value in settings.items():
        if key not in fields:
            near = difflib.get_close_matches(key, fields, n=1, cutoff=0.0)
            raise UsageError(f"{where}: unknown key {key!r}; the nearest known one is {near[0]!r}.")
        inner = fields[key]
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            if not isinstance(value, Mapping):
                raise UsageError(f"{where}: {key!r} is a table, not {value!r}; write [{key}].")
            _check_keys(value, inner, f"{where}: [{key}]")


def _put(settings: dict[str, Any], key: str, value: object) -> None:
    *tables, last = key.split(".")
    for table in tables:
        settings = settings.setdefault(table, {})
    settings[last] = value


def _get(tree: Mapping[str, Any], key: str) -> Any:  # noqa: ANN401 - a value of a parsed tree
    found: Any = tree
    for part in key.split("."):
        found = found[part]
    return found


def _option(key: str) -> str:
    flag = OPTIONS.get(key)
    return f"{flag} ({key} in a scenario)" if flag else key
