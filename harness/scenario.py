"""Scenarios: every knob with its unit, default and range, read from a file and from options."""

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

WARMUP_RULE = 60.0
"""Seconds of warm-up at least; near capacity 5 × mean latency/(1 − ρ) may be more."""
SPACING_RULE = 120.0
"""Seconds between resets at least; near capacity 10 × mean latency/(1 − ρ) may be more."""
LOOK: Mapping[str, Any] = {"load.warmup": 20.0, "load.duration": 100.0, "resets.every": 25.0}
"""The timing of a run that names none: a look, not a verdict, in two minutes of load."""


class PromptForm(StrEnum):
    """How a prompt is put on the wire."""

    TOKEN_IDS = "token_ids"
    """``/v1/completions`` with token ids: exact sizes, no tokenizer needed."""
    TEXT = "text"
    """``/v1/completions`` with text: sizes are what the server's tokenizer makes of it."""
    CHAT = "chat"
    """``/v1/chat/completions`` with one user message."""


class LengthLaw(StrEnum):
    """How output lengths are chosen."""

    FIXED = "fixed"
    """Every request generates exactly ``tokens`` (sent with ``ignore_eos``)."""
    UNIFORM = "uniform"
    """Uniform on 1 .. 2 ``tokens`` − 1, so that the mean is ``tokens``."""
    GEOMETRIC = "geometric"
    """Geometric with mean ``tokens``."""


class Process(StrEnum):
    """How arrivals lie in time (``load.processes``); ``rate`` is the mean of each."""

    POISSON = "poisson"
    GAMMA = "gamma"
    """Gamma gaps, as bursty as ``burstiness`` says."""
    CONSTANT = "constant"
    RAMP = "ramp"
    """Poisson with a rate that goes through ``levels`` in the measured period."""
    STEPS = "steps"
    """Poisson with a rate that holds each of ``levels`` equally long."""
    ON_OFF = "on_off"
    """Poisson for ``on`` seconds, silent for ``off``, in turn."""
    REPLAY = "replay"
    """The instants of the trace, stretched to ``rate``; without a rate, as recorded."""


class PromptFamily(StrEnum):
    """What prompts have in common (``load.prompts``)."""

    ZIPF = "zipf"
    """One of ``prefixes`` shared prefixes, drawn by a Zipf law, then a unique tail."""
    TREE = "tree"
    """A path down a tree of shared blocks, then a unique tail."""
    SESSIONS = "sessions"
    """Conversations of ``turns`` turns: each holds all that was said before, answers included."""
    UNIQUE = "unique"
    """Nothing: ``prefix_tokens + unique_tokens`` of their own, the cold reference."""
    TRACE = "trace"
    """What the trace says; it decides sizes and output lengths too."""


class LoadSpec(msgspec.Struct, frozen=True):
    """When requests are sent. ``duration`` is measured time; load lasts ``warmup + duration``."""

    rate: float = 4.0
    """Mean arrivals a second."""
    duration: float = 600.0
    warmup: float = WARMUP_RULE
    max_in_flight: int | None = None
    """Cap on requests in flight; None is an open loop. A cap that bites shows as queueing."""
    process: Process = Process.POISSON
    burstiness: float = 1.0
    """Shape of gamma gaps, as in vLLM: below 1 burstier than Poisson, above 1 more even."""
    levels: tuple[float, ...] = ()
    """Relative rates of a ramp or of steps; scaled so that their mean is ``rate``."""
    on: float = 10.0
    off: float = 10.0
    processes: int = 1
    """Processes of this machine that send the load; if several, the run itself sends none."""


class PromptSpec(msgspec.Struct, frozen=True):
    """What requests ask; by default a shared prefix drawn by a Zipf law, then a unique tail."""

    form: PromptForm = PromptForm.TOKEN_IDS
    prefixes: int = 24
    zipf: float = 1.0
    """Exponent s of the Zipf law: prefix k (from 1) is drawn with weight k**−s.

    In a tree each node's children are drawn so.
    """
    prefix_tokens: int = 2000
    unique_tokens: int = 60
    vocabulary: tuple[int, int] = (1000, 4000)
    """Token ids are drawn from this half-open range; below it lie special tokens of most models."""
    family: PromptFamily = PromptFamily.ZIPF
    tree: tuple[tuple[int, int], ...] = ((1, 1000), (4, 600), (8, 400))
    """Levels from the root down: children of each node and tokens of each child.

    By default one system prompt, four tool blocks after it, eight sessions after each.
    """
    turns: int = 4
    """Requests of a session. Its user says ``unique_tokens`` in each."""
    think: float = 5.0
    """Mean seconds, exponentially drawn, from the end of an answer to the next turn."""

    @property
    def shared_share(self) -> float:
        """Share of a prompt's tokens that it has in common with every other of its prefix."""
        match self.family:
            case PromptFamily.ZIPF:
                return self.prefix_tokens / (self.prefix_tokens + self.unique_tokens)
            case PromptFamily.TREE:
                whole = sum(tokens for _, tokens in self.tree) + self.unique_tokens
                return self.tree[0][1] / whole
            case PromptFamily.SESSIONS:
                whole = self.prefix_tokens + self.turns * self.unique_tokens
                return self.prefix_tokens / whole
            case _:
                return 1.0


class OutputSpec(msgspec.Struct, frozen=True):
    """How much each request generates."""

    law: LengthLaw = LengthLaw.FIXED
    tokens: int = 100


class ResetSpec(msgspec.Struct, frozen=True):
    """When the prefix cache is reset, and how. Instants count from the end of the warm-up."""

    mode: ResetMode = ResetMode.NONE
    every: float | None = None
    """Seconds between resets. None: 120 s, or a quarter of a measured period under 480 s."""
    at: tuple[float, ...] = ()
    """Instants of the resets instead of ``every``."""
    retry_every: float = 0.05
    """How soon a refused ``default`` reset is tried again, until the next planned reset."""
    external: bool = False
    """Also reset the external (connector) cache: ``reset_external=true``."""
    modes: tuple[ResetMode, ...] = ()
    """A crossover's modes, instead of ``mode``: each reset gets one by a balanced draw."""
    turn: int = 0
    """Which run of the crossover's block this is, from 0: as many runs as modes mirror one draw."""


class TimeoutSpec(msgspec.Struct, frozen=True):
    """How long to wait, in seconds."""

    connect: float = 10.0
    idle: float = 120.0
    """Longest silence on a response before the request is a ``timeout``."""
    reset: float = 60.0
    """Longest wait for a reset's answer (a reset waits for the running step)."""
    scrape: float = 5.0
    drain: float = 120.0
    """Longest wait for requests in flight after the last arrival."""
    give_up: float = 30.0
    """Stop sending when the server has answered nothing, or only failures, for this long."""


class Scenario(msgspec.Struct, frozen=True):
    """Everything that fixes a run's plan."""

    name: str = "look"
    seed: int = 1
    load: LoadSpec = LoadSpec()
    prompts: PromptSpec = PromptSpec()
    output: OutputSpec = OutputSpec()
    resets: ResetSpec = ResetSpec()
    timeouts: TimeoutSpec = TimeoutSpec()
    trace: TraceSpec = TraceSpec()

    @property
    def poisson_rate(self) -> float | None:
        """The load's rate if requests see time averages: if they are Poisson at a constant rate."""
        open_loop = self.prompts.family is not PromptFamily.SESSIONS
        return self.load.rate if open_loop and self.load.process is Process.POISSON else None


_LATER: Mapping[type[msgspec.Struct], frozenset[str]] = {
    LoadSpec: frozenset({"process", "burstiness", "levels", "on", "off", "processes"}),
    PromptSpec: frozenset({"family", "tree", "turns", "think"}),
    Scenario: frozenset({"trace"}),
}
"""Fields that came after digests were first written down."""


def identity(spec: msgspec.Struct) -> dict[str, Any]:
    """``spec`` as plain data, without later fields that are at their default.

    Digests are over this, so what does not use a later field keeps the digest it had before.
    """
    later = _LATER.get(type(spec), frozenset())
    plain: dict[str, Any] = {}
    for field in msgspec.structs.fields(spec):
        value = getattr(spec, field.name)
        if field.name in later and value == field.default:
            continue
        is_table = isinstance(value, msgspec.Struct)
        plain[field.name] = identity(value) if is_table else msgspec.to_builtins(value)
    return plain


OPTIONS: Mapping[str, str] = {
    "seed": "--seed",
    "load.rate": "--rate",
    "load.duration": "--duration",
    "load.warmup": "--warmup",
    "load.max_in_flight": "--max-in-flight",
    "load.processes": "--processes",
    "prompts.form": "--form",
    "prompts.prefixes": "--prefixes",
    "prompts.prefix_tokens": "--prefix-tokens",
    "prompts.unique_tokens": "--unique-tokens",
    "prompts.zipf": "--zipf",
    "output.law": "--output-law",
    "output.tokens": "--output-tokens",
    "resets.mode": "--reset-mode",
    "resets.every": "--reset-every",
    "resets.at": "--reset-at",
    "resets.external": "--reset-external",
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

    Without a file and without any timing flag the timing is ``LOOK``'s.

    Raises:
        UsageError: the file cannot be read, a key is unknown, or a value is out of its range.
    """
    settings: dict[str, Any] = {} if file is None else locate(read_toml(file), file)
    where = "the options" if file is None else str(file)
    if file is None and not flags.keys() & {*LOOK, "resets.at"}:
        flags = {**LOOK, **flags}
    elif file is not None:
        settings.setdefault("name", file.stem)
    elif "name" not in settings:
        settings["name"] = "run"
    if "resets.at" in flags:
        settings.setdefault("resets", {}).pop("every", None)
    if "resets.every" in flags:
        settings.setdefault("resets", {}).pop("at", None)
    for key, value in flags.items():
        _put(settings, key, value)
    scenario = convert(settings, Scenario, where)
    check(scenario)
    if scenario.load.process is Process.REPLAY and "rate" not in settings.get("load", {}):
        recorded = read_trace(scenario.trace).rate
        scenario = msgspec.structs.replace(
            scenario, load=msgspec.structs.replace(scenario.load, rate=recorded)
        )
        check(scenario)
    return scenario


def locate(settings: dict[str, Any], file: Path) -> dict[str, Any]:
    """``settings`` of ``file`` with the path of a trace made to count from here."""
    trace = settings.get("trace")
    if isinstance(trace, dict) and isinstance(trace.get("file"), str):
        trace["file"] = str(file.parent / trace["file"])
    return settings


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


_GOES_WITH: Mapping[str, tuple[str, tuple[StrEnum, ...]]] = {
    "load.burstiness": ("load.process", (Process.GAMMA,)),
    "load.levels": ("load.process", (Process.RAMP, Process.STEPS)),
    "load.on": ("load.process", (Process.ON_OFF,)),
    "load.off": ("load.process", (Process.ON_OFF,)),
    "prompts.prefixes": ("prompts.family", (PromptFamily.ZIPF, PromptFamily.SESSIONS)),
    "prompts.zipf": (
        "prompts.family",
        (PromptFamily.ZIPF, PromptFamily.TREE, PromptFamily.SESSIONS),
    ),
    "prompts.turns": ("prompts.family", (PromptFamily.SESSIONS,)),
    "prompts.think": ("prompts.family", (PromptFamily.SESSIONS,)),
    "prompts.tree": ("prompts.family", (PromptFamily.TREE,)),
    "prompts.prefix_tokens": (
        "prompts.family",
        tuple(family for family in PromptFamily if family is not PromptFamily.TREE),
    ),
    "output.law": (
        "prompts.family",
        tuple(family for family in PromptFamily if family is not PromptFamily.TRACE),
    ),
    "output.tokens": (
        "prompts.family",
        tuple(family for family in PromptFamily if family is not PromptFamily.TRACE),
    ),
}
"""Knobs that only some choices read: elsewhere they would be accepted and ignored."""

_MOST_LEAVES = 100_000


def _check_workload(scenario: Scenario) -> None:
    """Raise unless process, family and trace go together."""
    mine, plain = msgspec.to_builtins(scenario), msgspec.to_builtins(Scenario())
    for key, (choice, having) in _GOES_WITH.items():
        chosen = _get(mine, choice)
        if _get(mine, key) != _get(plain, key) and chosen not in having:
            allowed = " or ".join(f'"{one}"' for one in having)
            raise UsageError(f'{_option(key)} goes with {choice} = {allowed}, not "{chosen}".')
    load, tree = scenario.load, scenario.prompts.tree
    if load.process in (Process.RAMP, Process.STEPS) and (
        len(load.levels) < 2 or not any(load.levels)
    ):
        raise UsageError(
            f"load.levels is {list(load.levels)}; a {load.process} needs two or more, not all 0."
        )
    if not tree or any(children < 1 or tokens < 1 for children, tokens in tree):
        raise UsageError("prompts.tree needs one level or more of [children, tokens], each over 0.")
    if math.prod(children for children, _ in tree) > _MOST_LEAVES:
        raise UsageError(f"prompts.tree has over {_MOST_LEAVES:,} leaves; take fewer children.")
    if scenario.prompts.family is PromptFamily.SESSIONS and load.process is Process.REPLAY:
        raise UsageError(
            "a replay says when every request comes, a session's later turns come after answers: "
            "take another load.process or prompts.family."
        )
    _check_trace(scenario)


def _check_trace(scenario: Scenario) -> None:
    trace = scenario.trace
    asked = scenario.prompts.family is PromptFamily.TRACE
    replayed = scenario.load.process is Process.REPLAY
    if (asked or replayed) and trace.file is None:
        raise UsageError('load.process = "replay" and prompts.family = "trace" need trace.file.')
    if trace != TraceSpec() and not (asked or replayed):
        raise UsageError(
            '[trace] is read by load.process = "replay" and prompts.family = "trace"; '
            "set one of them."
        )
    if trace.window is not None and trace.window[0] >= trace.window[1]:
        raise UsageError(
            f"trace.window is {list(trace.window)}; its begin must lie before its end."
        )
    if trace.format is TraceFormat.SHAREGPT:
        if replayed or trace.window is not None:
            raise UsageError(
                "ShareGPT has no instants: take another load.process, no trace.window."
            )
        if scenario.prompts.form is PromptForm.TOKEN_IDS:
            raise UsageError('ShareGPT is text: set prompts.form to "chat" or "text".')
    if trace.format is TraceFormat.INSTANTS and asked:
        raise UsageError("a trace of instants has no prompts: take another prompts.family.")


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
    if (spec.mode is not ResetMode.NONE or spec.modes) and not reset_instants(scenario):
        raise UsageError(
            f"--reset-every {spec.every or 0:g} leaves no room for a reset with a window of its "
            f"own in --duration {duration:g}; the duration must be at least twice the spacing."
        )


def reset_instants(scenario: Scenario) -> tuple[float, ...]:
    """Planned reset instants in seconds since the run's zero.

    With ``every`` the first comes one interval after the warm-up and each has a whole interval
    behind it, so that all windows (and the one before the first reset) are equally long.
    """
    spec, load = scenario.resets, scenario.load
    if spec.at:
        return tuple(load.warmup + instant for instant in sorted(spec.at))
    every = spec.every
    if every is None:
        every = SPACING_RULE if load.duration >= 4 * SPACING_RULE else load.duration / 4
    count = math.floor(load.duration / every + 1e-9) - 1
    return tuple(load.warmup + every * k for k in range(1, count + 1))


def read_toml(file: Path) -> dict[str, Any]:
    """The settings in ``file``.

    Raises:
        UsageError: it cannot be read or is not TOML.
    """
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"--scenario {file}: {error.strerror}. Give the path of a TOML file."
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"--scenario {file} is not valid TOML: {error}.") from None


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
