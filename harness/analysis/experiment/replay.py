"""The blocks of an at-idle experiment: default's clearings and the keep resets that replay them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from harness.analysis.experiment.at_idle import AtIdle, at_idle
from harness.analysis.experiment.pairs import Run
from harness.analysis.experiment.recorded import Recorded
from harness.records import ResetMode


def compare(recorded: Sequence[Recorded], horizon: float) -> AtIdle | None:
    """Default's price at idle beside keep's at the same instants; None without a default run.

    Resets followed by the next one within ``horizon`` seconds are left out in both.
    """
    blocks: dict[str, dict[ResetMode, Recorded]] = {}
    for run in recorded:
        if len(run.planned_modes) == 1 and run.summary.period.length > 0:
            (mode,) = run.planned_modes
            blocks.setdefault(run.summary.plan_digest, {})[mode] = run
    if not any(ResetMode.DEFAULT in block for block in blocks.values()):
        return None
    runs = []
    for block in blocks.values():
        seen = {
            mode: Run.of(run.journals, run.resets, run.name, horizon) for mode, run in block.items()
        }
        if ResetMode.DEFAULT in block and ResetMode.KEEP in block:
            seen[ResetMode.KEEP] = _with_ids_of(block[ResetMode.DEFAULT], seen[ResetMode.KEEP])
        runs += [run for mode, run in seen.items() if mode is ResetMode.NONE or len(run.resets)]
    return at_idle(runs, horizon)


def _with_ids_of(default: Recorded, keep: Run) -> Run:
    """``keep`` with its k-th planned reset called by the id of default's k-th clearing."""
    ids = np.array(cleared_ids(default), np.int64)
    table = keep.resets[keep.resets.index < len(ids)]
    return replace(keep, resets=table.set_index(ids[table.index.to_numpy(np.int64)]))


def cleared_ids(default: Recorded) -> list[int]:
    """Ids of the resets of a default run that cleared, in the order in which they did."""
    done = [reset.record for reset in default.resets if reset.record.cleared_at is not None]
    return [record.id for record in sorted(done, key=lambda one: one.attempts[-1].called)]
