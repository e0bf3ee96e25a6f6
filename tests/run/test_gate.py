"""``bench gate`` and ``bench baseline`` as commands: exit codes, files, GitHub, bad input."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

import pytest

from harness.analysis.gate.baseline import make
from harness.analysis.gate.judgement import Verdict, gate
from harness.errors import JournalError, UsageError
from harness.gate import read_baseline, read_candidate, read_policy

from .conftest import SMALL_REPLICA, Bench

ELSEWHERE = Path(__file__).parents[2] / "scripts" / "gate_elsewhere"
SPEC = """
modes = ["preempt", "keep"]
rates = [60.0]
[load]
warmup = 0.3
duration = 3.6
[prompts]
prefixes = 4
prefix_tokens = 64
unique_tokens = 8
[output]
tokens = 30
[resets]
every = 0.4
"""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with experiment ``a``, its baseline, and ``b`` as the action's script left it."""
    folder = tmp_path_factory.mktemp("gate")
    (folder / "x.toml").write_text(SPEC)
    bench = Bench(folder)
    with small_replica() as url:
        for turn in range(2):
            done = bench("experiment", "x.toml", "--url", url, "--out", "a", "--runs", "1")
            assert done.returncode == 0, done.stderr
            assert len(list((folder / "a").glob("*/run.json"))) == turn + 1
        _quieten(folder / "a")
        done = bench("baseline", "a", "--out", "base.json")
        assert done.returncode == 0, done.stderr
        settings = {"PYTHON": sys.executable, "URL": url, "SCENARIO": "x.toml",
                    "BASELINE": "base.json", "OUT": "b"}  # fmt: skip
        script = subprocess.run(
            [ELSEWHERE], check=False, cwd=folder, text=True, capture_output=True,
            env={**os.environ, **{f"GATE_{name}": value for name, value in settings.items()}},
        )  # fmt: skip
    assert script.returncode == 0, script.stdout + script.stderr
    return folder


@contextmanager
def small_replica() -> Iterator[str]:
    with subprocess.Popen(
        [sys.executable, str(SMALL_REPLICA)], stdout=subprocess.PIPE, text=True
    ) as replica:
        try:
            assert replica.stdout is not None
            yield f"http://127.0.0.1:{replica.stdout.readline().strip()}"
        finally:
            replica.kill()


def _quieten(experiment: Path) -> None:
    """Take this test machine's own late wake-ups out of the journals."""
    for file in experiment.glob("*/client.jsonl"):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        text = "".join(json.dumps({**line, "overshoots": [0.001]}) + "\n" for line in lines)
        file.write_text(text)


@pytest.fixture
def here(pair: Path, bench: Bench) -> Bench:
    """``bench`` in a folder of its own with copies of both experiments and the baseline."""
    for name in ("a", "b"):
        shutil.copytree(pair / name, bench.folder / name)
    shutil.copy(pair / "base.json", bench.folder)
    return bench


def edit_resets(experiment: Path, mode: str, **reply: object) -> None:
    """Change the first reset of ``mode`` in the experiment's first run."""
    file = experiment / "60-1-turn0" / "resets.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    first = next(line for line in lines if line["mode"] == mode)
    first["attempts"][-1]["reply"].update(reply)
    first["attempts"][-1]["preemptions"] = reply["preempted"]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_live_pair_passes(here: Bench) -> None:
    decided = json.loads((here.folder / "b" / "gate.json").read_text())
    assert (decided["verdict"], decided["baseline"]) == ("pass", "a")
    assert ElementTree.parse(here.folder / "b" / "gate.xml").getroot()[0].get("failures") == "0"
    done = here("gate", "b", "--baseline", "base.json")
    assert done.returncode == 0, done.stdout
    assert "PASS" in done.stdout
    assert "Gate of b against a" in done.stdout
    assert "::" not in done.stdout
    run = read_candidate(here.folder / "b" / "60-1-turn0")
    decision = gate(run, read_policy(None))
    assert decision.verdict is Verdict.CANNOT_TELL  # four resets of each mode
    folder = read_baseline(here.folder / "a")
    assert gate(read_candidate(here.folder / "b"), read_policy(None), folder).verdict == "pass"


def test_a_keep_reset_that_preempts_fails_in_every_output(here: Bench) -> None:
    edit_resets(here.folder / "b", "keep", preempted=1, running=4)
    summary = here.folder / "summary.md"
    summary.write_text("before\n")
    done = here("gate", "b", "--baseline", "base.json", "--json", "out/d.json", "--junit",
                "d.xml", GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(summary))  # fmt: skip
    assert done.returncode == 10
    named = "60-1-turn0, reset "
    assert named in done.stdout
    errors = [line for line in done.stdout.splitlines() if line.startswith("::error")]
    assert any('preemptions_per_reset{mode="keep"} == 0' in line for line in errors)
    assert any(named in line for line in errors)

    decision = json.loads((here.folder / "out" / "d.json").read_text())
    assert (decision["verdict"], decision["exit_code"]) == ("fail", 10)
    failed = [one for one in decision["assertions"] if one["verdict"] == "fail"]
    assert [one["assertion"] for one in failed] == [
        'preemptions_per_reset{mode="keep"} == 0',
        'preemptions_per_reset{mode="keep"} <= baseline',
    ]
    assert all(one["culprits"][0].startswith(named) for one in failed)
    assert failed[0]["most"] == 1

    suite = ElementTree.parse(here.folder / "d.xml").getroot()[0]
    assert (suite.get("failures"), suite.get("errors")) == ("2", "0")
    assert len(suite.findall("testcase/failure")) == 2
    assert named in (suite.find("testcase/failure").text or "")
    assert int(suite.get("tests") or 0) == len(suite.findall("testcase"))

    page = summary.read_text()
    assert page.startswith("before\n### Gate of b against a")
    assert "**FAIL" in page
    assert named in page


def test_what_cannot_be_told_has_a_code_of_its_own(here: Bench) -> None:
    (here.folder / "p.toml").write_text("assert = ['cleared{mode=\"default\"} == 1']\n")
    done = here("gate", "b", "--policy", "p.toml", GITHUB_ACTIONS="true")
    assert done.returncode == 11
    assert "the candidate plans no default reset" in done.stdout
    assert "::warning" in done.stdout


def test_a_baseline_is_not_made_of_what_is_not_whole(here: Bench) -> None:
    file = here.folder / "a" / "60-1-turn1" / "run.json"
    file.write_text(file.read_text().replace('"complete"', '"interrupted"'))
    done = here("baseline", "a", "--out", "new.json")
    assert done.returncode == 2
    assert "interrupted" in done.stderr
    assert not (here.folder / "new.json").exists()
    shutil.rmtree(here.folder / "b" / "60-1-turn1")
    some = read_candidate(here.folder / "b")
    assert some.missing == ("60-1-turn1",)
    with pytest.raises(UsageError, match="60-1-turn1"):
        make(some)
    assert gate(some, read_policy(None)).verdict is Verdict.CANNOT_TELL


def test_a_baseline_says_what_it_was_made_from(here: Bench) -> None:
    base = json.loads((here.folder / "base.json").read_text())
    assert base["schema_version"] == 1
    made = base["made_from"]
    assert (made["name"], made["model"], made["versions"]) == ("a", "small", ["0.32.0"])
    assert made["setting"]["load.rate"] == 60.0
    assert len(base["runs"]) == 2
    keep = next(one for one in base["figures"]
                if (one["figure"], one["mode"]) == ("preemptions_per_reset", "keep"))  # fmt: skip
    assert (keep["resets"], keep["value"]) == (8, 0.0)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "bench baseline"),
        ("{}", "was written by harness unknown with schema none"),
        (
            '{"schema_version": 99, "harness_version": "7.1"}',
            "was written by harness 7.1 with schema 99",
        ),
        ('{"schema_version": 1, "harness_version": "0.1.0"}', "is not a baseline"),
        ("[", "is not a baseline"),
    ],
)
def test_a_baseline_that_cannot_be_read_says_why(
    tmp_path: Path, content: str | None, words: str
) -> None:
    file = tmp_path / "bad.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(JournalError, match=words):
        read_baseline(file)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("assert = ['preemption_per_reset == 0']", "'preemptions_per_reset'"),
        ("", "asserts nothing"),
        ("assert = [", "not valid TOML"),
        (None, "No such file"),
    ],
)
def test_a_policy_that_is_none_says_why(tmp_path: Path, policy: str | None, words: str) -> None:
    file = tmp_path / "p.toml"
    if policy is not None:
        file.write_text(policy)
    with pytest.raises(UsageError, match=words) as caught:
        read_policy(file)
    assert "p.toml" in str(caught.value)


def test_bad_input_has_the_codes_of_other_bad_input(bench: Bench) -> None:
    (bench.folder / "p.toml").write_text("assert = ['cleared = 1']")
    for arguments, code, words in [
        (("gate", ".", "--policy", "p.toml"), 2, "'=='"),
        (("baseline", "."), 7, "neither a run nor an experiment"),
    ]:
        done = bench(*arguments)
        assert done.returncode == code, done.stderr
        assert words in " ".join(done.stderr.split())
        assert "Traceback" not in done.stderr
    with pytest.raises(JournalError, match="bench baseline"):
        read_baseline(bench.folder / "none.json")
    with pytest.raises(JournalError, match="neither a run nor an experiment"):
        read_candidate(bench.folder)
    help_text = bench("gate", "--help").stdout
    assert "10 fail" in help_text
    assert "11 cannot tell" in help_text
