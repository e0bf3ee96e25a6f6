"""What a scenario's requests are: prefix, sizes and prompt of each, and what its trace offers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from harness.errors import UsageError
from harness.load.arrivals import Stream, stream, zipf_choice
from harness.load.prompts import (
    Family,
    Prefixes,
    Prompts,
    Traced,
    Tree,
    Unique,
    best_hit_rate,
    best_text_hit_rate,
)
from harness.load.traces import Row, TraceFormat, named, read_trace
from harness.records import Arrival, Turn
from harness.scenario import LengthLaw, OutputSpec, Process, PromptFamily, PromptSpec, Scenario


def requests(scenario: Scenario, instants: Sequence[float]) -> Iterator[Arrival]:
    """The arrival at each of ``instants``.

    Raises:
        UsageError: the trace has fewer rows than there are instants.
    """
    if scenario.prompts.family is PromptFamily.TRACE:
        yield from _traced(scenario, instants)
        return
    count, spec = len(instants), scenario.prompts
    turns = spec.turns if spec.family is PromptFamily.SESSIONS else 1
    paths = _paths(spec, count, stream(scenario.seed, Stream.PREFIXES))
    lengths = _output_lengths(scenario.output, count * turns, stream(scenario.seed, Stream.LENGTHS))
    thinks = stream(scenario.seed, Stream.THINKING).exponential(spec.think, count * (turns - 1))
    later = [
        Turn(count + number, float(think), tokens)
        for number, (think, tokens) in enumerate(zip(thinks, lengths[count:], strict=True))
    ]
    is_tree = spec.family is PromptFamily.TREE
    for number, (at, path) in enumerate(zip(instants, paths, strict=True)):
        yield Arrival(
            number,
            at,
            path[0],
            lengths[number],
            path=path if is_tree else (),
            later=tuple(later[number * (turns - 1) : (number + 1) * (turns - 1)]),
        )


def _paths(spec: PromptSpec, count: int, rng: np.random.Generator) -> list[tuple[int, ...]]:
    """For each request its prefix, or its way down the tree."""
    match spec.family:
        case PromptFamily.ZIPF | PromptFamily.SESSIONS:
            levels = [spec.prefixes]
        case PromptFamily.TREE:
            levels = [children for children, _ in spec.tree]
        case _:
            return [(0,)] * count
    drawn = [zipf_choice(children, spec.zipf, count, rng).tolist() for children in levels]
    return list(zip(*drawn, strict=True))


def _output_lengths(spec: OutputSpec, count: int, rng: np.random.Generator) -> list[int]:
    match spec.law:
        case LengthLaw.FIXED:
            lengths = np.full(count, spec.tokens)
        case LengthLaw.UNIFORM:
            lengths = rng.integers(1, 2 * spec.tokens, size=count)
        case LengthLaw.GEOMETRIC:
            lengths = rng.geometric(1 / spec.tokens, size=count)
    return [int(length) for length in lengths]


def _traced(scenario: Scenario, instants: Sequence[float]) -> Iterator[Arrival]:
    """The rows of the trace, one an instant, in their order."""
    rows = read_trace(scenario.trace).rows
    if len(rows) < len(instants):
        raise UsageError(
            f"the load has {len(instants):,} requests and the trace {len(rows):,} rows. Shorten "
            "--duration, lower --rate, or widen trace.window."
        )
    first_blocks: dict[int, int] = {}
    for number, (at, row) in enumerate(zip(instants, rows, strict=False)):
        prefix = first_blocks.setdefault(row.blocks[0], len(first_blocks)) if row.blocks else 0
        text = None if row.text is None else number
        yield Arrival(number, at, prefix, _answer(row), row.blocks, row.prompt_tokens, text)


def _answer(row: Row) -> int:
    assert row.output_tokens is not None  # a trace of instants has no prompts: checked
    return row.output_tokens


def prompts_of(scenario: Scenario) -> Prompts:
    """The maker of this scenario's prompts, where they are not the texts of a trace."""
    spec = scenario.prompts
    return Prompts(
        _family(spec),
        seed=scenario.seed,
        vocabulary=spec.vocabulary,
        priming_tokens=spec.unique_tokens,
    )


def _family(spec: PromptSpec) -> Family:
    match spec.family:
        case PromptFamily.ZIPF | PromptFamily.SESSIONS:
            return Prefixes(spec.prefixes, spec.prefix_tokens, spec.unique_tokens)
        case PromptFamily.TREE:
            return Tree(spec.tree, spec.unique_tokens)
        case PromptFamily.UNIQUE:
            return Unique(spec.prefix_tokens, spec.unique_tokens)
        case PromptFamily.TRACE:
            return Traced(Unique(spec.prefix_tokens, spec.unique_tokens))


def texts_of(scenario: Scenario) -> tuple[str, ...]:
    """The prompts that a trace holds as text, by ``Arrival.row``; empty for any other scenario."""
    family, trace = scenario.prompts.family, scenario.trace
    if family is not PromptFamily.TRACE or trace.format is not TraceFormat.SHAREGPT:
        return ()
    return tuple(row.text for row in read_trace(trace).rows if row.text is not None)


def offers(
    scenario: Scenario, arrivals: Sequence[Arrival], context: int | None = None
) -> list[str]:
    """What to know of a trace before the run; nothing where there is none.

    ``context`` is the model's, in tokens, where the server tells it.
    """
    if scenario.trace.file is None:
        return []
    trace = read_trace(scenario.trace)
    lines = [f"trace {scenario.trace.file}: {len(trace.rows):,} rows in its window"]
    if scenario.load.process is Process.REPLAY:
        lines[0] += (
            f", {trace.rate:.3g} requests/s as recorded, "
            f"replayed {scenario.load.rate / trace.rate:.3g} times as fast"
        )
    if trace.bad:
        lines.append(f"left out, since they do not parse: {len(trace.bad):,} ({named(trace.bad)})")
    if trace.unanswered:
        lines.append(f"left out, since prompt or answer is empty: {trace.unanswered:,}")
    if scenario.prompts.family is PromptFamily.TRACE:
        if texts := texts_of(scenario):
            share = best_text_hit_rate(texts[one.row] for one in arrivals if one.row is not None)
            of = "characters"
        else:
            parts = prompts_of(scenario).family.parts
            share, of = best_hit_rate(parts(arrival) for arrival in arrivals), "prompt tokens"
        sizes = (one.output_tokens + (one.prompt_tokens or 0) for one in arrivals)
        if context is not None and (long := sum(size > context for size in sizes)):
            lines.append(
                f"{long:,} of {len(arrivals):,} requests exceed the model's context of "
                f"{context:,} tokens: the server will refuse them. Serve a longer context."
            )
        lines.append(f"best possible hit rate of its requests: {share:.1%} of their {of}")
    return lines
