"""Resets on a host that is not this machine: asked for by name, and never done unasked."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from harness.store import read_run

from .conftest import Bench, SmallReplica

SHORT = (
    *("--rate", "40", "--warmup", "0.2", "--duration", "1", "--reset-every", "0.3"),
    *("--prefixes", "2", "--prefix-tokens", "64", "--unique-tokens", "8", "--output-tokens", "2"),
)
EXPERIMENT = (
    'modes = ["sham", "keep"]\n[load]\nwarmup = 1.0\nduration = 4.0\n[resets]\nevery = 1.0\n'
)


@pytest.mark.parametrize("command", ["run", "experiment"])
def test_it_is_refused_before_anything_is_sent(bench: Bench, command: str) -> None:
    (bench.folder / "x.toml").write_text(EXPERIMENT)
    with socket.create_server(("0.0.0.0", 0)) as server:
        arguments = {"run": ["--reset-mode", "keep"], "experiment": ["x.toml"]}[command]
        url = f"http://0.0.0.0:{server.getsockname()[1]}"
        done = bench(command, *arguments, "--url", url)
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert done.returncode == 2
    assert "0.0.0.0" in done.stderr
    assert "--allow-reset-on-remote" in done.stderr
    assert not (bench.folder / "results").exists()


@pytest.mark.parametrize(
    ("mode", "flags", "emptied"),
    [
        ("keep", ["--allow-reset-on-remote"], True),
        ("none", ["--allow-reset-on-remote"], True),
        ("sham", [], False),
    ],
)
def test_without_leave_no_reset_is_sent_before_the_load_either(
    bench: Bench, small_replica: Callable[..., SmallReplica], mode: str, flags: list[str],
    emptied: bool,
) -> None:  # fmt: skip
    url = small_replica().url.replace("127.0.0.1", "0.0.0.0")
    done = bench("run", "--url", url, "--reset-mode", mode, *flags, *SHORT, "--out", "r")
    assert done.returncode == 0, done.stderr
    manifest = read_run(bench.folder / "r").manifest
    assert manifest.preparation["emptied"] is emptied
    assert any("--allow-reset-on-remote" in warning for warning in manifest.warnings) != emptied
