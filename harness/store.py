"""Journals and manifest <-> disk.

A run folder holds ``run.json`` and one JSON-lines file a journal. Lines are appended as things
happen and flushed at least once a second, the manifest is replaced atomically, so a run that is
killed at any instant leaves a folder that loads, minus at most a torn last line per journal.
A journal that somebody compressed with xz afterwards (``requests.jsonl.xz``) is read as well.
"""

from __future__ import annotations

import contextlib
import lzma
import os
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec

from harness.errors import JournalError
from harness.journals import SCHEMA_VERSION, Journals, Manifest, RequestTable
from harness.records import ClientSample, RequestRecord, ResetRecord, ServerSample

MANIFEST = "run.json"
REQUESTS = "requests.jsonl"
RESETS = "resets.jsonl"
SERVER = "server.jsonl"
CLIENT = "client.jsonl"

Record = TypeVar("Record")


class RunFolder:
    """The folder of a run in progress; the only writer of its files.

    ``append`` only buffers; ``flush`` writes, and may be called from another thread. A flush
    that fails (disk full, folder deleted) raises ``JournalError``; what it
    could not write stays buffered.
    """

    def __init__(self, path: Path) -> None:
        """Create ``path``.

        Raises:
            JournalError: it exists and is not empty, or cannot be written.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()):
                raise JournalError(
                    f"{path} is not empty; nothing there is overwritten. Give another --out."
                )
            self._files = {
                name: FileIO(path / name, "xb") for name in (REQUESTS, RESETS, SERVER, CLIENT)
            }
        except OSError as error:
            raise JournalError(
                f"cannot create the run folder {path}: {error.strerror}. Give another --out."
            ) from None
        self.path = path
        self._pending: dict[str, bytearray] = {name: bytearray() for name in self._files}

    def append_request(self, record: RequestRecord) -> None:
        """Add a line to ``requests.jsonl``."""
        self._append(REQUESTS, record)

    def append_reset(self, record: ResetRecord) -> None:
        """Add a line to ``resets.jsonl``."""
        self._append(RESETS, record)

    def append_server(self, sample: ServerSample) -> None:
        """Add a line to ``server.jsonl``."""
        self._append(SERVER, {"t": sample.t, "engine": sample.engine, **sample.metrics})

    def append_client(self, sample: ClientSample) -> None:
        """Add a line to ``client.jsonl``."""
        self._append(CLIENT, sample)

    def flush(self) -> None:
        """Hand everything appended so far to the kernel.

        Raises:
            JournalError: a journal cannot be written, or its file is no longer in the folder.
        """
        for name, pending in self._pending.items():
            # A bound on what is taken: the owner may append from the event loop meanwhile.
            size = len(pending)
            if size == 0:
                continue
            file = self._files[name]
            try:
                if os.fstat(file.fileno()).st_nlink == 0:
                    raise JournalError(f"{self.path / name} was deleted while the run wrote it.")
                written = file.write(bytes(pending[:size]))
            except OSError as error:
                raise JournalError(f"cannot write {self.path / name}: {error.strerror}.") from None
            del pending[:written]
            if written < size:
                # A short write on a regular file means that the disk is full: say so now.
                raise JournalError(f"cannot write {self.path / name}: no space left on device.")

    def write_manifest(self, manifest: Manifest) -> None:
        """Replace ``run.json`` atomically.

        Raises:
            JournalError: it cannot be written.
        """
        encoded = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
        fresh = self.path / (MANIFEST + ".new")
        try:
            fresh.write_bytes(encoded)
            fresh.replace(self.path / MANIFEST)
        except OSError as error:
            raise JournalError(f"cannot write {self.path / MANIFEST}: {error.strerror}.") from None

    def close(self) -> None:
        """Close the journals; what was appended and not flushed is given up."""
        for file in self._files.values():
            with contextlib.suppress(OSError):
                file.close()

    def _append(self, name: str, record: object) -> None:
        self._pending[name] += msgspec.json.encode(record) + b"\n"


def read_run(path: Path) -> Journals:
    """Load a run folder, whole or cut short.

    Raises:
        JournalError: it is not a run folder, a newer schema wrote it, or a line that is not the
            last one of its journal does not parse.
    """
    manifest = read_manifest(path)
    torn: list[str] = []
    requests = RequestTable.from_records(_lines(path / REQUESTS, RequestRecord, torn))
    # A long wait is journaled several times; the last line of an id counts.
    resets = {record.id: record for record in _lines(path / RESETS, ResetRecord, torn)}
    server = tuple(
        ServerSample(t=line.pop("t"), engine=line.pop("engine"), metrics=line)
        for line in _lines(path / SERVER, dict[str, Any], torn)
    )
    client = tuple(_lines(path / CLIENT, ClientSample, torn))
    return Journals(manifest, requests, tuple(resets.values()), server, client, tuple(torn))


def read_manifest(path: Path) -> Manifest:
    """The manifest of the run folder ``path``.

    Raises:
        JournalError: it is not a run folder, or a newer schema wrote it.
    """
    file = path / MANIFEST
    try:
        raw = file.read_bytes()
    except FileNotFoundError:
        raise JournalError(
            f"{file.parent} is not a run folder: it has no {MANIFEST}. Give the folder of a run; "
            "report, compare and gate take that of an experiment too."
        ) from None
    except OSError as error:
        raise JournalError(f"cannot read {file}: {error.strerror}.") from None
    try:
        version = msgspec.json.decode(raw, type=_Version)
        if version.schema_version > SCHEMA_VERSION:
            raise JournalError(
                f"{file} was written by harness {version.harness_version} with schema "
                f"{version.schema_version}; this harness reads up to {SCHEMA_VERSION}. Upgrade it."
            )
        return msgspec.json.decode(raw, type=Manifest)
    except msgspec.DecodeError as error:
        raise JournalError(f"{file} is not a run's manifest: {error}.") from None


def write(file: Path, content: bytes, *, append: bool = False) -> None:
    """Write ``content`` to ``file``, whose folder is made if need be, or add it at its end.

    Raises:
        JournalError: it cannot be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("ab" if append else "wb") as opened:
            opened.write(content)
    except OSError as error:
        raise JournalError(f"cannot write {file}: {error.strerror}.") from None


class _Version(msgspec.Struct):
    schema_version: int
    harness_version: str


def _lines(file: Path, kind: type[Record], torn: list[str]) -> Iterator[Record]:
    """Records of one journal; a last line that was cut short is named in ``torn`` and left out."""
    decoder = msgspec.json.Decoder(kind)
    try:
        with _open(file) as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n"):
                    torn.append(file.name)
                    return
                try:
                    yield decoder.decode(line)
                except msgspec.DecodeError as error:
                    raise JournalError(f"{file}, line {number}: {error}.") from None
    except FileNotFoundError:
        raise JournalError(f"{file} is missing; a run folder has all four journals.") from None
    except (lzma.LZMAError, EOFError) as error:
        raise JournalError(f"{file}.xz is damaged: {error}. Restore it.") from None
    except OSError as error:
        raise JournalError(f"cannot read {file}: {error.strerror}.") from None


def _open(file: Path) -> IO[bytes]:
    packed = file.with_name(f"{file.name}.xz")
    if not file.exists() and packed.exists():
        return lzma.open(packed, "rb")
    return file.open("rb")
