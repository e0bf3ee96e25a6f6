"""The folder of an experiment: its manifest, and which of its runs are there."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

import harness
from harness.design import Design
from harness.errors import JournalError, UsageError
from harness.experiment.plan import ExperimentSpec, PlannedRun, plan_runs, replayed
from harness.journals import SCHEMA_VERSION, RunStatus
from harness.scenario import identity
from harness.store import MANIFEST, read_manifest, read_run

EXPERIMENT = "experiment.json"


class ExperimentManifest(msgspec.Struct, frozen=True):
    """``experiment.json``."""

    schema_version: int
    harness_version: str
    spec: ExperimentSpec
    digest: str
    """SHA-256 of the specification: a folder is only gone on with by the one that began it."""
    runs: tuple[str, ...]
    """Names of the runs, in their order."""


def digest(spec: ExperimentSpec) -> str:
    """What tells one specification from another: SHA-256, in hexadecimal."""
    return hashlib.sha256(msgspec.json.encode(identity(spec))).hexdigest()


def claim(spec: ExperimentSpec, planned: tuple[PlannedRun, ...], out: Path) -> None:
    """Make ``out`` the folder of ``spec``, or check that it is."""
    own = digest(spec)
    file = out / EXPERIMENT
    if file.exists():
        found = read_experiment_manifest(out)
        if found.digest != own:
            raise UsageError(
                f"{out} was begun with other settings of {found.spec.name!r}; runs of two "
                "settings are not mixed. Give another --out, or restore the scenario."
            )
        return
    manifest = ExperimentManifest(
        SCHEMA_VERSION, harness.__version__, spec, own, tuple(run.name for run in planned)
    )
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise UsageError(f"{out} is not empty and is no experiment; give another --out.")
        file.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
    except OSError as error:
        raise JournalError(f"cannot write {out}: {error.strerror}. Give another --out.") from None


def read_experiment_manifest(out: Path) -> ExperimentManifest:
    """The manifest of the experiment in ``out``.

    Raises:
        JournalError: there is none, or it cannot be read.
    """
    file = out / EXPERIMENT
    try:
        return msgspec.json.decode(file.read_bytes(), type=ExperimentManifest)
    except OSError as error:
        raise JournalError(f"{file}: {error.strerror}. Give the folder of an experiment.") from None
    except msgspec.DecodeError as error:
        raise JournalError(f"{file} is not an experiment's manifest: {error}.") from None


def recorded_runs(out: Path) -> tuple[dict[str, Path], tuple[str, ...]]:
    """Folders of the runs of the experiment in ``out`` that began, and names of those to come.

    A replay of a default run that never cleared is neither: it has nothing to do.

    Raises:
        JournalError: ``out`` is no experiment.
    """
    manifest = read_experiment_manifest(out)
    begun = {name: out / name for name in manifest.runs if (out / name / MANIFEST).exists()}
    left = [name for name in manifest.runs if name not in begun]
    if left and manifest.spec.design is Design.AT_IDLE:
        idle = {run.name for run in plan_runs(manifest.spec) if nothing_to_replay(run, out)}
        left = [name for name in left if name not in idle]
    return begun, tuple(left)


def is_complete(path: Path) -> bool:
    """Whether ``path`` is the folder of a run that came to its end."""
    return (path / MANIFEST).exists() and read_manifest(path).status is RunStatus.COMPLETE


def free_name(path: Path) -> Path:
    """``path``, or the first of ``path-2``, ``path-3`` ... that does not exist."""
    candidate, number = path, 1
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate


def nothing_to_replay(planned: PlannedRun, out: Path) -> bool:
    """Whether the default run that ``planned`` is to replay is over and never cleared."""
    if planned.replays is None or not is_complete(out / planned.replays):
        return False
    return replayed(planned.plan, read_run(out / planned.replays)) is None
