from __future__ import annotations

import math

import numpy as np
import pytest

from harness import settling
from harness.settling import ProcessorSharing

LAW = ProcessorSharing(a=0.878, b=0.199)


def test_predictions_are_the_birth_death_chain() -> None:
    n = np.arange(400)
    for rate in (1.0, 3.0, 4.0):
        chain = np.cumprod(np.concatenate([[1.0], rate * (LAW.a + LAW.b * n[1:]) / n[1:]]))
        chain /= chain.sum()
        assert LAW.in_flight(rate) == pytest.approx(float(chain @ n))
        assert LAW.idle_probability(rate) == pytest.approx(chain[0])
    # The figures seen in the field: in flight at 3 and 4 a second, idle starts a minute.
    assert LAW.in_flight(3) == pytest.approx(8, abs=0.1)
    assert LAW.in_flight(4) == pytest.approx(21, abs=0.3)
    assert 60 * LAW.idle_starts(3) == pytest.approx(1.3, abs=0.05)
    assert 60 * LAW.idle_starts(4) == pytest.approx(0.05, abs=0.01)


def test_at_capacity_nothing_is_stationary() -> None:
    assert math.isinf(LAW.latency(LAW.capacity * 1.01))
    assert LAW.idle_starts(LAW.capacity * 1.01) == 0
    assert math.isinf(settling.warmup(2.0, 1.0))


def test_warmup_and_spacing_rules() -> None:
    assert settling.warmup(1.0, 0.5) == 60
    assert settling.warmup(5.0, 0.8) == pytest.approx(125)
    assert settling.spacing(5.0, 0.8) == pytest.approx(250)
    assert settling.spacing(0.5, 0.5) == 120
