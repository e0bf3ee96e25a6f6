"""The command line of ``bench run``: every option reaches the scenario, and messages name it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.main import get_command

from harness.cli import app
from harness.errors import UsageError
from harness.settings import OPTIONS

TRACES = Path(__file__).parent / "load" / "traces"
MOONCAKE, SHAREGPT = str(TRACES / "mooncake.jsonl"), str(TRACES / "sharegpt.json")


def test_every_option_that_a_message_names_exists() -> None:
    run = get_command(app).commands["run"]
    assert set(OPTIONS.values()) <= {name for option in run.params for name in option.opts}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--arrivals", "replay"), "--arrivals replay, .* need --trace"),
        (("--burstiness", "0.5"), "--burstiness .* goes with --arrivals gamma, not poisson"),
        (("--arrivals", "gamma", "--burstiness", "0"), "--burstiness .* is 0.0; allowed"),
        (("--arrivals", "ramp"), "a ramp needs two or more, .*; a scenario gives them"),
        (("--family", "trace", "--arrivals", "gamma"), "--family trace .* need --trace"),
        (("--family", "sessions", "--turns", "0"), "--turns .* is 0; allowed"),
        (("--family", "sessions", "--think", "0"), "--think .* is 0.0; allowed"),
        (("--trace", "nowhere"), "trace nowhere: No such file"),
        (("--trace-format", "azure"), "need --trace"),
        (("--trace", MOONCAKE, "--trace-format", "azure"), "no column 'TIMESTAMP'"),
        (("--trace", SHAREGPT, "--trace-format", "sharegpt"), "set --form"),
        (("--trace", MOONCAKE), "the trace lasts 29.176 s .* Shorten the load"),
    ],
)
def test_options_of_the_workload_reach_the_scenario(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=message):
        get_command(app).main(
            ["run", "--url", "http://127.0.0.1:9", *arguments], standalone_mode=False
        )
    assert not list(tmp_path.iterdir())
