"""How many more resets (or runs) the wanted precision would take, from these runs' own noise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from harness.analysis.experiment.contrast import SHORT_HORIZON, Contrast, Price
from harness.analysis.experiment.service import Queue
from harness.analysis.experiment.stats import Comparison, further_units
from harness.records import ResetMode

WANTED = 0.1
"""Half-width of the interval that is wanted, as a share of what is in flight undisturbed over the
same horizon."""


class Need(msgspec.Struct, frozen=True):
    """What one comparison would take to be told to ± ``wanted``."""

    first: ResetMode
    second: ResetMode
    figure: str
    wanted: float
    """Half of the interval's length, request-seconds."""
    half_width: float | None
    """As it is now; None where there is no interval."""
    further: int | None
    """Further units; 0 if it is precise enough, None if these runs cannot tell."""
    unit: str
    """What a unit is: planned resets seen in both modes, or whole runs."""


def needs(contrasts: Sequence[Contrast], prices: Sequence[Price], queue: Queue) -> tuple[Need, ...]:
    """Of every comparison declared in advance; empty where the undisturbed level is unknown."""
    level = queue.in_flight
    return tuple(_needs(contrasts, prices, level)) if level else ()


def _needs(contrasts: Sequence[Contrast], prices: Sequence[Price], level: float) -> Iterable[Need]:
    for one in contrasts:
        wanted = WANTED * level * SHORT_HORIZON
        for figure, told in (("victims", one.victims), (f"{SHORT_HORIZON:g} s", one.short)):
            yield _need(one.first, one.second, figure, told, wanted)
    for price in prices:
        wanted = WANTED * level * price.horizon
        yield _need(price.mode, price.control, f"{price.horizon:g} s", price.total, wanted)


def _need(
    first: ResetMode, second: ResetMode, figure: str, told: Comparison, wanted: float
) -> Need:
    return Need(
        first,
        second,
        figure,
        wanted,
        told.half_width,
        further_units(told, wanted),
        "runs" if second is ResetMode.NONE else "resets",
    )
