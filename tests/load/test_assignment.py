from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.load.assignment import assign
from harness.records import ResetMode

MODES = [ResetMode.KEEP, ResetMode.PREEMPT, ResetMode.SHAM, ResetMode.DEFAULT]


@settings(deadline=None)
@given(st.integers(2, 4), st.integers(1, 40), st.integers(0, 2**32))
def test_every_reset_gets_every_mode_once_and_every_run_all_equally(
    modes: int, resets: int, seed: int
) -> None:
    chosen = MODES[:modes]
    runs = assign(chosen, resets, np.random.default_rng(seed))
    assert len(runs) == modes
    assert all(set(column) == set(chosen) for column in zip(*runs, strict=True))
    for run in runs:
        counts = Counter(run)
        assert max(counts.values()) - min(counts[mode] for mode in chosen) <= 1


def test_every_balanced_draw_of_two_modes_is_equally_likely() -> None:
    rng = np.random.default_rng(1)
    seen = Counter(assign(MODES[:2], 4, rng)[0] for _ in range(6000))
    assert len(seen) == 6
    assert all(850 < count < 1150 for count in seen.values())


def test_three_modes_leave_the_order_of_two_to_chance() -> None:
    """Given where the sham fell, keep and preempt must still be drawn; mere rotations fix them."""
    columns = set(zip(*assign(MODES[:3], 12, np.random.default_rng(2)), strict=True))
    assert len(columns) == 6


@pytest.mark.parametrize(
    ("modes", "resets"), [([ResetMode.KEEP], 4), ([ResetMode.KEEP] * 2, 4), (MODES[:2], 0)]
)
def test_what_is_no_crossover_is_refused(modes: list[ResetMode], resets: int) -> None:
    with pytest.raises(ValueError, match="crossover needs"):
        assign(modes, resets, np.random.default_rng(0))
