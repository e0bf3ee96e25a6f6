"""What the gate reads and writes: candidates, baselines, policies <-> disk."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from pathlib import Path

import msgspec

import harness
from harness.analysis.experiment.recorded import Recorded
from harness.analysis.gate import baseline as baselines
from harness.analysis.gate.baseline import SCHEMA_VERSION, Baseline
from harness.analysis.gate.policy import Policy
from harness.analysis.gate.policy_text import policy
from harness.analysis.gate.readings import Candidate
from harness.errors import JournalError
from harness.experiment.folder import EXPERIMENT, read_experiment_manifest
from harness.settings import read_toml
from harness.store import MANIFEST, read_run, write

DEFAULT_POLICY = "default_policy.toml"


def read_candidate(path: Path) -> Candidate:
    """The run or experiment in the folder ``path``.

    Raises:
        JournalError: it is neither, or cannot be read, or the experiment has no run yet.
    """
    name = path.resolve().name
    if (path / MANIFEST).exists():
        return Candidate(name, (Recorded.of(name, read_run(path)),))
    if not (path / EXPERIMENT).exists():
        raise JournalError(
            f"{path} is neither a run nor an experiment: it has no {MANIFEST} and no {EXPERIMENT}. "
            "Give the folder that `bench run` or `bench experiment` wrote."
        )
    manifest = read_experiment_manifest(path)
    there = [run for run in manifest.runs if (path / run / MANIFEST).exists()]
    if not there:
        raise JournalError(f"{path} has no runs yet. Carry them out with `bench experiment`.")
    return Candidate(
        name,
        tuple(Recorded.of(run, read_run(path / run)) for run in there),
        manifest.digest,
        tuple(run for run in manifest.runs if run not in there),
    )


def read_policy(file: Path | None) -> Policy:
    """The policy in ``file``; the default one without.

    Raises:
        UsageError: it cannot be read, or is no policy; the message says where it is wrong.
    """
    if file is None:
        text = (files("harness.analysis.gate") / DEFAULT_POLICY).read_text(encoding="utf-8")
        return policy(tomllib.loads(text), DEFAULT_POLICY)
    return policy(read_toml(file, "--policy"), str(file))


def read_baseline(path: Path) -> Baseline:
    """The baseline in a file that ``write_baseline`` wrote, or in the folder of an experiment.

    Raises:
        JournalError: there is none, a newer schema wrote it, or it cannot be read.
    """
    if path.is_dir():
        return baselines.of(read_candidate(path))
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise JournalError(
            f"cannot read the baseline {path}: {error.strerror}. Make one with `bench baseline`."
        ) from None
    try:
        head = msgspec.json.decode(raw, type=_Head)
        if head.schema_version is None or head.schema_version > SCHEMA_VERSION:
            schema = head.schema_version or "none"
            raise JournalError(
                f"{path} was written by harness {head.harness_version or 'unknown'} with schema "
                f"{schema}; this one, {harness.__version__}, reads schema 1 to {SCHEMA_VERSION}. "
                "Upgrade it, or make the baseline again with `bench baseline`."
            )
        return msgspec.json.decode(raw, type=Baseline)
    except msgspec.DecodeError as error:
        raise JournalError(f"{path} is not a baseline: {error}.") from None


def write_baseline(baseline: Baseline, file: Path) -> None:
    """Replace ``file`` atomically.

    Raises:
        JournalError: it cannot be written.
    """
    fresh = file.with_name(file.name + ".new")
    write(fresh, msgspec.json.format(msgspec.json.encode(baseline), indent=1) + b"\n")
    try:
        fresh.replace(file)
    except OSError as error:
        raise JournalError(f"cannot write {file}: {error.strerror}.") from None


class _Head(msgspec.Struct):
    schema_version: int | None = None
    harness_version: str | None = None
