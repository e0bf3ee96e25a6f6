"""Run folders: what was appended loads again, torn or not; nothing earlier is overwritten."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import JournalError
from harness.journals import SCHEMA_VERSION, Manifest, RequestTable, RunStatus
from harness.plan import make_plan
from harness.records import (
    AttemptOutcome,
    ClientSample,
    Outcome,
    RequestRecord,
    ResetMode,
    ResetRecord,
    ServerSample,
)
from harness.scenario import Scenario
from harness.store import REQUESTS, RESETS, RunFolder, read_run

MANIFEST = Manifest(
    SCHEMA_VERSION, RunStatus.RUNNING, make_plan(Scenario()), "0", "2026-01-01T00:00:00Z",
    server={}, host={}, preparation={},
)  # fmt: skip


def request(number: int, tokens: int = 3) -> RequestRecord:
    stamps = tuple(number + 0.25 * n for n in range(tokens))
    return RequestRecord(
        id=number, scheduled=number, started=number, prefix=2, outcome=Outcome.OK,
        finished=number + 9, first_token=stamps[0] if stamps else None, token_times=stamps,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    folder = RunFolder(tmp_path / "run")
    folder.write_manifest(MANIFEST)
    yield folder
    folder.close()


def test_what_was_appended_loads_again(folder: RunFolder) -> None:
    for number in (2, 0, 1):
        folder.append_request(request(number))
    reset = ResetRecord(0, ResetMode.KEEP, 5.0, AttemptOutcome.CLEARED, in_flight=3)
    folder.append_reset(reset)
    sample = ServerSample(1.5, "0", {"num_requests_running": 2.0})
    folder.append_server(sample)
    health = ClientSample(1.0, 0.5, (0.001,))
    folder.append_client(health)
    folder.flush()
    run = read_run(folder.path)
    assert run.manifest == MANIFEST
    assert run.requests.frame["id"].tolist() == [0, 1, 2]
    assert run.requests.token_times[run.requests.token_offsets[1] :][:3].tolist() == [1, 1.25, 1.5]
    assert np.isnan(run.requests.frame["sent"]).all()
    assert (run.resets, run.server, run.client) == ((reset,), (sample,), (health,))
    assert run.torn == ()


def test_an_archived_run_reads_as_before(folder: RunFolder) -> None:
    for number in range(3):
        folder.append_request(request(number))
    folder.append_reset(ResetRecord(0, ResetMode.KEEP, 5.0, AttemptOutcome.CLEARED, in_flight=3))
    folder.append_server(ServerSample(1.5, "0", {"num_requests_running": 2.0}))
    folder.append_client(ClientSample(1.0, 0.5, (0.001,)))
    folder.flush()
    command = ["/home/me/checkout/.venv/bin/python", "--model=/home/me/checkout/model"]
    host = {"replica_command": command}
    folder.write_manifest(msgspec.structs.replace(MANIFEST, host=host))
    before = read_run(folder.path)
    script = Path(__file__).parents[1] / "scripts" / "archive_run"
    subprocess.run([sys.executable, str(script), str(folder.path)], check=True)
    assert not list(folder.path.glob("*.jsonl"))
    after = read_run(folder.path)
    assert after.requests.frame.equals(before.requests.frame)
    assert np.array_equal(after.requests.token_times, before.requests.token_times)
    assert (after.resets, after.server, after.client) == (
        before.resets, before.server, before.client
    )  # fmt: skip
    assert after.manifest.host["replica_command"] == [".venv/bin/python", "--model=model"]
    packed = folder.path / f"{REQUESTS}.xz"
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(JournalError, match="damaged"):
        read_run(folder.path)


def test_the_last_line_of_a_reset_counts(folder: RunFolder) -> None:
    for outcome in (AttemptOutcome.REFUSED, AttemptOutcome.CLEARED):
        folder.append_reset(ResetRecord(4, ResetMode.DEFAULT, 5.0, outcome, in_flight=3))
    folder.flush()
    assert [reset.outcome for reset in read_run(folder.path).resets] == [AttemptOutcome.CLEARED]


@given(cut=st.integers(1, 200))
def test_a_journal_cut_anywhere_loads_but_for_its_torn_line(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    folder = RunFolder(tmp_path_factory.mktemp("torn") / "run")
    folder.write_manifest(MANIFEST)
    for number in range(5):
        folder.append_request(request(number))
    folder.flush()
    folder.close()
    file = folder.path / REQUESTS
    whole = file.read_bytes()
    file.write_bytes(whole[:-cut])
    run = read_run(folder.path)
    assert len(run.requests) == whole[:-cut].count(b"\n")
    assert run.torn == ((REQUESTS,) if whole[:-cut][-1:] != b"\n" else ())


def test_a_broken_line_in_the_middle_is_named(folder: RunFolder) -> None:
    folder.append_request(request(0))
    folder.flush()
    with (folder.path / REQUESTS).open("ab") as file:
        file.write(b"{}\n")
    with pytest.raises(JournalError, match=r"requests.jsonl, line 2: .*missing required field"):
        read_run(folder.path)


def test_a_folder_in_use_is_not_overwritten(folder: RunFolder) -> None:
    with pytest.raises(JournalError, match="not empty"):
        RunFolder(folder.path)


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="Not a directory"):
        RunFolder(tmp_path / "file" / "run")


def test_a_deleted_journal_is_an_error(folder: RunFolder) -> None:
    (folder.path / RESETS).unlink()
    folder.append_reset(ResetRecord(0, ResetMode.KEEP, 5.0, AttemptOutcome.CLEARED, in_flight=3))
    with pytest.raises(JournalError, match="was deleted"):
        folder.flush()


def test_a_full_disk_is_an_error_and_what_fitted_loads(folder: RunFolder) -> None:
    for number in range(100):
        folder.append_request(request(number))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
    try:
        with pytest.raises(JournalError, match=r"no space left|File too large"):
            folder.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    run = read_run(folder.path)
    assert len(run.requests) > 0
    assert run.torn == (REQUESTS,)


def test_a_newer_schema_says_who_wrote_it(folder: RunFolder) -> None:
    newer = msgspec.structs.replace(MANIFEST, schema_version=99, harness_version="7.7")
    folder.write_manifest(newer)
    with pytest.raises(JournalError, match=r"harness 7\.7 with schema 99"):
        read_run(folder.path)


def test_any_other_folder_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="not a run folder"):
        read_run(tmp_path)


@given(order=st.permutations(range(6)))
def test_the_order_of_lines_does_not_matter(order: list[int]) -> None:
    records = [request(number, tokens=number) for number in range(6)]
    table = RequestTable.from_records(records[number] for number in order)
    straight = RequestTable.from_records(records)
    assert table.frame.equals(straight.frame)
    assert (table.token_times == straight.token_times).all()
    assert (table.token_offsets == straight.token_offsets).all()
