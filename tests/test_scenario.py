"""Scenarios: where resets fall, and what digests are made from."""

from __future__ import annotations

import pytest

from harness.scenario import LoadSpec, Process, ResetSpec, Scenario, identity


@pytest.mark.parametrize(
    ("load", "resets", "instants"),
    [
        (LoadSpec(), ResetSpec(), (180, 300, 420, 540)),
        (LoadSpec(duration=480.0), ResetSpec(), (180, 300, 420)),
        (LoadSpec(duration=400.0), ResetSpec(), (160, 260, 360)),
        (LoadSpec(warmup=20.0, duration=100.0), ResetSpec(every=25.0), (45, 70, 95)),
        (LoadSpec(warmup=0.0, duration=99.0), ResetSpec(every=33.0), (33, 66)),
        (LoadSpec(warmup=10.0), ResetSpec(at=(30.0, 5.0)), (15, 40)),
        (LoadSpec(duration=100.0), ResetSpec(every=60.0), ()),
    ],
)  # fmt: skip
def test_every_reset_has_a_whole_window_behind_it_unless_its_instant_is_named(
    load: LoadSpec, resets: ResetSpec, instants: tuple[float, ...]
) -> None:
    assert Scenario(load=load, resets=resets).reset_instants == pytest.approx(instants)


def test_a_later_field_counts_where_it_is_used() -> None:
    assert "process" not in identity(Scenario())["load"]
    used = identity(Scenario(load=LoadSpec(process=Process.GAMMA, burstiness=2.0)))
    assert used["load"]["process"] == "gamma"
    assert used["load"]["burstiness"] == 2.0
