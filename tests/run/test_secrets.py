"""Keys and headers appear in nothing that a run leaves, prints or shows of itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import EXPERIMENT, Bench, SmallReplica
from .test_run import lines, wait_until

Start = Callable[..., SmallReplica]

KEY, TOKEN = "sk-very-secret-93b1", "tenant-token-4f7a"
TARGET = """
[load]
url = "{url}"
key_env = "LOAD_KEY"
[[control]]
url = "{url}"
header_env = {{ X-Token = "POD_TOKEN" }}
"""


def told(*places: bytes | Path) -> list[str]:
    """Where the secrets, or half of them, are to be read."""
    found = []
    for place in places:
        content = place.read_bytes() if isinstance(place, Path) else place
        if any(
            part in content for part in (b"sk-very", b"secret-93b1", b"tenant-token", b"token-4f7a")
        ):
            found.append(str(place))
    return found


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_in_no_artefact_of_an_experiment_whose_server_echoes_them(
    bench: Bench, fault_server: Start
) -> None:
    routes = ("/v1/completions", "/reset_prefix_cache", "/metrics")
    echoes = [word for route in routes for word in ("--at", route, "echo")]
    server = fault_server("--after", "60", "--for", "0.8", *echoes)
    (bench.folder / "target.toml").write_text(TARGET.format(url=server.url))
    (bench.folder / "x.toml").write_text(f"{EXPERIMENT}[timeouts]\ngive_up = 60.0\n")
    process = bench.start("experiment", "x.toml", "--target", "target.toml", "--out", "x",
                          LOAD_KEY=KEY, POD_TOKEN=TOKEN)  # fmt: skip
    wait_until(lambda: any(lines(file) > 20 for file in bench.folder.glob("x/*/requests.jsonl")))
    title = Path(f"/proc/{process.pid}/cmdline").read_bytes()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    run = next(bench.folder.glob("x/*/run.json")).parent
    assert bench("report", f"x/{run.name}").returncode == 0

    written = files(bench.folder / "x")
    assert {path.name for path in written} >= {
        "experiment.json", "report.html", "summary.json", "run.json", "requests.jsonl",
        "resets.jsonl", "server.jsonl", "client.jsonl", "recovery.png",
    }  # fmt: skip
    assert any(b"***" in path.read_bytes() for path in bench.folder.glob("x/*/requests.jsonl"))
    assert told(title, out.encode(), err.encode(), *written) == []


@pytest.mark.parametrize("route", ["/v1/models", "/v1/completions", "/metrics"])
def test_in_no_message_of_a_run_that_fails(bench: Bench, fault_server: Start, route: str) -> None:
    server = fault_server("--at", route, "echo")
    command = "doctor" if route == "/metrics" else "run"
    out = ["--out", "r"] if command == "run" else []
    done = bench(command, "--url", server.url, "--header", f"X-Token: {TOKEN}", *out,
                 VLLM_API_KEY=KEY)  # fmt: skip
    assert "***" in done.stdout + done.stderr
    assert told(done.stdout.encode(), done.stderr.encode(), *files(bench.folder)) == []


def test_in_no_traceback(bench: Bench, fault_server: Start) -> None:
    faulty = "import harness.cli, harness.run as r; r.prime = None; harness.cli.main()"
    command = ["run", "--url", fault_server().url, "--out", "r"]
    process = subprocess.run(
        [sys.executable, "-c", faulty, *command, "--header", f"X-Token: {TOKEN}"],
        cwd=bench.folder, capture_output=True, check=False, timeout=60,
        env={"VLLM_API_KEY": KEY, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert process.returncode == 1
    assert b"Traceback" in process.stderr
    assert told(process.stdout, process.stderr, *files(bench.folder)) == []
