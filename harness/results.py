"""``bench`` on what was recorded: reports, comparisons, exports, pages and the gate.

None of these commands needs a server; ``cli`` has those that do.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console

from harness import options
from harness.errors import JournalError, UsageError
from harness.experiment.folder import EXPERIMENT, read_experiment_manifest, recorded_runs
from harness.store import read_run, write

if TYPE_CHECKING:
    from harness.analysis.experiment.findings import Findings

FIGURE = "recovery.png"
BASELINE = Path("results/baseline.json")
GATE_FAILED, GATE_CANNOT_TELL = 10, 11

app = typer.Typer()
terminal = Console()


@app.command("report")
def _report(folder: options.FolderArgument) -> None:
    """Rebuild the report of a run, or of an experiment, from its journals."""
    if (folder / EXPERIMENT).exists():
        show_experiment(folder)
    else:
        show_run(folder)


@app.command("compare")
def _compare(
    folders: options.FolderArguments,
    allow_version: options.AllowVersion = False,
    allow_config: options.AllowConfig = False,
    out: options.CompareOut = None,
) -> None:
    """Compare runs or experiments of equal plans; their reset modes may differ."""
    from harness.analysis.experiment.findings import design_of, find
    from harness.analysis.experiment.recorded import Recorded
    from harness.comparison import Allowed, read_members

    given = {Allowed.VERSION: allow_version, Allowed.CONFIG: allow_config}
    members = read_members(folders, [flag for flag, allowed in given.items() if allowed])
    runs = [Recorded.of(one.name, one.journals, one.source) for one in members]
    flags = [flag.value for flag, allowed in given.items() if allowed]
    names = [str(folder) for folder in folders]
    findings = find(" and ".join(folder.name for folder in folders), runs, design_of(runs))
    _publish(findings, out, [" ".join(["bench compare", *names, *flags])])


@app.command("export")
def _export(
    folder: options.FolderArgument, to: options.ExportTo, out: options.ExportOut = None
) -> None:
    """Write a run's requests for other programs: as vllm bench serve does, as CSV or as Parquet."""
    from harness.report.export import export

    file = out or folder / to.file
    write(file, export(read_run(folder), to))
    say(f"{to}: {file}")


@app.command("schema")
def _schema() -> None:
    """Print the JSON Schema of summary.json, of a run and of an experiment."""
    from harness.report.summary import schema

    typer.echo(schema(), nl=False)


@app.command("explain")
def _explain(
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("explain.html"),
    run_folder: Annotated[
        Path | None, typer.Option("--from", metavar="RUN", help="Show one real reset of this run.")
    ] = None,
    reset: Annotated[
        int | None,
        typer.Option(help="Which reset, by its number; default the one with most in flight."),
    ] = None,
) -> None:
    """Write a page that steps through a reset on a small busy block pool, in each mode."""
    from harness.explain.page import write_page, write_recorded

    if run_folder is None:
        if reset is not None:
            raise UsageError("--reset goes with --from: the stories have no recorded resets.")
        write_page(out)
    else:
        write_recorded(out, read_run(run_folder), reset)
    say(f"page: {out}")


@app.command("gate")
def _gate(
    candidate: options.CandidateArgument,
    baseline: options.BaselineOption = None,
    policy: options.PolicyOption = None,
    json: options.JsonOut = None,
    junit: options.JunitOut = None,
) -> None:
    """Judge a run or experiment by a policy: exit 0 is pass, 10 fail, 11 cannot tell.

    On GitHub Actions the decision is also shown as annotations and on the run's summary page.
    """
    from harness.analysis.gate.judgement import Verdict, gate
    from harness.gate import read_baseline, read_candidate, read_policy
    from harness.report.gate import markdown, print_decision
    from harness.report.gate_files import as_json, as_junit, workflow_commands

    rules = read_policy(policy)
    old = None if baseline is None else read_baseline(baseline)
    decision = gate(read_candidate(candidate), rules, old)
    codes = {Verdict.PASS: 0, Verdict.FAIL: GATE_FAILED}
    code = codes.get(decision.verdict, GATE_CANNOT_TELL)
    print_decision(terminal, decision)
    if json is not None:
        write(json, as_json(decision, code))
    if junit is not None:
        write(junit, as_junit(decision))
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in workflow_commands(decision):
            typer.echo(line)
        if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
            write(Path(summary), markdown(decision).encode(), append=True)
    raise typer.Exit(code)


@app.command("baseline")
def _baseline(candidate: options.CandidateArgument, out: options.BaselineOut = BASELINE) -> None:
    """Write the small file that later runs are gated against, from a run or experiment."""
    from harness.analysis.gate.baseline import make
    from harness.gate import read_candidate, write_baseline

    write_baseline(make(read_candidate(candidate)), out)
    say(f"baseline: {out}")


def show_run(folder: Path) -> None:
    """Print the report of the run in ``folder``; write its figures for programs and its plot there.

    Raises:
        JournalError: the folder cannot be read or written.
    """
    # Here, since pandas, scipy and matplotlib take seconds to import and only a report needs them.
    from harness.analysis.summary import summarize
    from harness.report.figures import draw_recovery
    from harness.report.summary import SUMMARY, as_json
    from harness.report.text import print_summary

    journals = read_run(folder)
    summary = summarize(journals)
    print_summary(terminal, summary)
    write(folder / SUMMARY, as_json(summary))
    figure = folder / FIGURE
    try:
        draw_recovery(journals, summary, figure)
    except OSError as error:
        raise JournalError(f"cannot write {figure}: {error.strerror}.") from None
    say(f"plot: {figure}")


def show_experiment(folder: Path) -> None:
    """Print the findings of the experiment in ``folder``; write its page and its figures there.

    Raises:
        JournalError: the folder, or that of one of its runs, cannot be read or written.
    """
    from harness.analysis.experiment.findings import find
    from harness.analysis.experiment.recorded import Recorded

    spec = read_experiment_manifest(folder).spec
    begun, missing = recorded_runs(folder)
    runs = [Recorded.of(name, read_run(path)) for name, path in begun.items()]
    findings = find(spec.name, runs, spec.design, missing)
    _publish(
        findings,
        folder,
        [
            f"bench experiment {spec.name}.toml --out {folder}   # carries it out, or goes on",
            f"bench report {folder}   # makes this page from the journals",
            "# the specification, as experiment.json holds it:",
            msgspec.json.format(msgspec.json.encode(spec), indent=1).decode(),
        ],
    )


def _publish(findings: Findings, folder: Path | None, commands: Sequence[str]) -> None:
    """Print findings; with a folder, write them there as a page and for other programs."""
    from harness.report.experiment import print_findings
    from harness.report.html import REPORT, page
    from harness.report.summary import SUMMARY, as_json

    print_findings(terminal, findings)
    if folder is None:
        return
    write(folder / SUMMARY, as_json(findings))
    write(folder / REPORT, page(findings, commands).encode())
    say(f"page: {folder / REPORT}, figures for programs: {folder / SUMMARY}")


def say(line: str) -> None:
    """Print ``line`` as it is."""
    terminal.print(line, markup=False, highlight=False, soft_wrap=True)
