from __future__ import annotations

import math

import pytest

from harness.analysis import counters
from harness.analysis.counters import Counter
from harness.records import ServerSample


def samples(name, **engines):
    """Samples of one metric; each engine is given as {instant: value}."""
    return tuple(
        ServerSample(t, engine, {name: float(value)})
        for engine, readings in engines.items()
        for t, value in readings.items()
    )


def test_growth_is_summed_over_engines():
    counter = Counter.read(
        samples("num_preemptions_total", a={0: 5, 1: 7, 2: 9}, b={0: 1, 1: 1, 2: 4}),
        "num_preemptions",
    )
    assert counter.growth(0.0, 2.0) == 7
    assert counter.growth(0.0, 1.0) == 2
    assert counter.growth(1.5, 2.5) == 5  # from the readings at 1 to those at 2


def test_a_restarted_engine_counts_from_zero_again():
    counter = Counter.read(samples("x_total", a={0: 10, 1: 12, 2: 3, 3: 4}), "x")
    assert counter.growth(0.0, 3.0) == 2 + 3 + 1


def test_an_engine_read_late_counts_from_its_first_reading():
    counter = Counter.read(samples("x", a={0: 0, 9: 1}, b={5: 100, 9: 103}), "x")
    assert counter.growth(0.0, 9.0) == 1 + 3


def test_read_after_waits_for_every_engine():
    counter = Counter.read(samples("x", a={0: 0, 4: 1}, b={1: 0, 5: 0}), "x")
    assert counter.read_after(2.0) == 5.0
    assert counter.read_after(4.5) is None
    assert counter.read_before(4.5) == 1.0
    assert counter.read_before(0.5) == -math.inf


def test_a_counter_nobody_carries_is_none():
    assert Counter.read(samples("y", a={0: 1}), "x") is None
    assert Counter.read((), "x") is None


def test_gauges_are_summed_over_names_and_engines_once_all_are_known():
    readings = (
        *samples("running", a={0: 1, 2: 3}, b={1: 10, 3: 20}),
        *samples("waiting", a={0: 5, 2: 5}, b={1: 0, 3: 0}),
    )
    found = counters.total(readings, ["running", "waiting"])
    assert found.times.tolist() == [1, 2, 3]
    assert found.values.tolist() == [16, 18, 28]


@pytest.mark.parametrize("names", [["running", "absent"], ["absent"]])
def test_a_sum_with_a_part_missing_is_none(names):
    assert counters.total(samples("running", a={0: 1}), names) is None
