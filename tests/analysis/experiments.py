"""Simulated experiments, in memory and on disk: input for tests of findings and reports."""

from __future__ import annotations

from pathlib import Path

import msgspec

from harness.analysis.experiment.findings import Findings, find
from harness.analysis.experiment.recorded import Recorded
from harness.design import Design
from harness.experiment.folder import ExperimentManifest
from harness.experiment.plan import ExperimentSpec, plan_runs
from harness.journals import SCHEMA_VERSION, Journals
from harness.records import ResetMode
from harness.scenario import Scenario
from harness.store import RunFolder
from tests.analysis.simulation import scenario, simulate

SHAM, PREEMPT, KEEP = ResetMode.SHAM, ResetMode.PREEMPT, ResetMode.KEEP


def spec(
    design: Design = Design.CROSSOVER,
    modes: tuple[ResetMode, ...] = (SHAM, PREEMPT, KEEP),
    rates: tuple[float, ...] = (4.0,),
    seeds: tuple[int, ...] = (1,),
    **settings: float,
) -> ExperimentSpec:
    timing = {"warmup": 60.0, "duration": 400.0, "every": 40.0} | settings
    of: Scenario = scenario(ResetMode.KEEP, **timing)
    resets = msgspec.structs.replace(of.resets, mode=ResetMode.NONE)
    return ExperimentSpec(
        "simulated", msgspec.structs.replace(of, resets=resets), design, modes, rates, seeds
    )


def simulated(of: ExperimentSpec) -> dict[str, Journals]:
    """Journals of every run of an experiment, by name."""
    return {run.name: simulate(run.plan.scenario) for run in plan_runs(of)}


def findings(of: ExperimentSpec) -> Findings:
    runs = [Recorded.of(name, journals) for name, journals in simulated(of).items()]
    return find(of.name, runs, of.design)


def write(of: ExperimentSpec, out: Path) -> Path:
    """The folder that the experiment would have left."""
    runs = simulated(of)
    out.mkdir(parents=True)
    manifest = ExperimentManifest(SCHEMA_VERSION, "0", of, "digest", tuple(runs))
    (out / "experiment.json").write_bytes(msgspec.json.encode(manifest))
    for name, journals in runs.items():
        write_run(journals, out / name)
    return out


def write_run(journals: Journals, path: Path) -> None:
    folder = RunFolder(path)
    table = journals.requests
    for row, values in enumerate(table.frame.to_dict("records")):
        stamps = table.token_times[table.token_offsets[row] : table.token_offsets[row + 1]]
        known = {key: None if value != value else value for key, value in values.items()}
        whole = ("prompt_tokens", "completion_tokens", "cached_tokens", "http_status")
        counts = {key: None if known[key] is None else int(known[key]) for key in whole}
        line = known | counts | {"token_times": tuple(stamps.tolist())}
        folder._append("requests.jsonl", line)
    for reset in journals.resets:
        folder.append_reset(reset)
    for sample in journals.server:
        folder.append_server(sample)
    for second in journals.client:
        folder.append_client(second)
    folder.flush()
    folder.write_manifest(journals.manifest)
    folder.close()
