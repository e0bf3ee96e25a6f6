"""``bench``: the only place that reads options, prints results and exits."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import msgspec
import typer
from rich.console import Console

import harness
from harness import options
from harness.errors import HarnessError, JournalError, UsageError
from harness.experiment import (
    EXPERIMENT,
    carry_out,
    read_experiment,
    read_experiment_manifest,
    recorded_runs,
)
from harness.journals import RunStatus
from harness.measurement import Ending
from harness.plan import Plan, make_plan
from harness.records import ResetMode
from harness.replica.doctor import Diagnosis, inspect
from harness.replica.process import ReplicaSpec, managed_replica
from harness.report.live import Display
from harness.run import Watcher, run
from harness.settings import read_scenario
from harness.store import read_run, write
from harness.target import (
    Endpoint,
    Target,
    headers_from,
    permit_resets,
    read_target,
    target,
)

if TYPE_CHECKING:
    from harness.analysis.experiment.findings import Findings

RUNS = Path("results/runs")
EXPERIMENTS = Path("results/experiments")
FIGURE = "recovery.png"
BASELINE = Path("results/baseline.json")
INTERRUPTED = 130
GATE_FAILED, GATE_CANNOT_TELL = 10, 11
KEY_ENV = "VLLM_API_KEY"

app = typer.Typer(
    help="What losing the prefix cache costs a vLLM replica, and how it recovers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
_out = Console()
_err = Console(stderr=True)


def main() -> None:
    """Entry point of ``bench``: prints the message of an error of ours and exits with its code."""
    try:
        app(prog_name="bench")
    except HarnessError as error:
        _fail(error)


def _fail(error: HarnessError) -> None:
    _err.print("[bold red]error:[/]", end=" ")
    _err.print(str(error), markup=False, highlight=False, soft_wrap=True)
    sys.exit(error.exit_code)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"bench {harness.__version__}")
        raise typer.Exit


@app.callback()
def _bench(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


@app.command("run")
def _run(
    rate: options.Rate = None,
    duration: options.Duration = None,
    warmup: options.Warmup = None,
    max_in_flight: options.MaxInFlight = None,
    process: options.ArrivalProcess = None,
    burstiness: options.Burstiness = None,
    seed: options.Seed = None,
    scenario: options.ScenarioFile = None,
    reset_mode: options.ResetModeOption = None,
    reset_every: options.ResetEvery = None,
    reset_at: options.ResetAt = None,
    reset_external: options.ResetExternal = None,
    form: options.Form = None,
    family: options.Family = None,
    prefixes: options.Prefixes = None,
    zipf: options.Zipf = None,
    prefix_tokens: options.PrefixTokens = None,
    unique_tokens: options.UniqueTokens = None,
    turns: options.Turns = None,
    think: options.Think = None,
    output_tokens: options.OutputTokens = None,
    output_law: options.OutputLaw = None,
    trace: options.TraceFile = None,
    trace_format: options.TraceFormatOption = None,
    url: options.Url = None,
    control_url: options.ControlUrl = None,
    metrics_url: options.MetricsUrl = None,
    target_file: options.TargetFile = None,
    key_env: options.KeyEnv = KEY_ENV,
    header: options.Header = None,
    ca: options.Ca = None,
    allow_reset_on_remote: options.AllowResetOnRemote = False,
    model: options.Model = None,
    vllm_arg: options.VllmArg = None,
    start_timeout: options.StartTimeout = 300.0,
    out: options.Out = None,
) -> None:
    """Drive one replica with an open loop, reset its cache on the way, and report."""
    settings = {
        "seed": seed,
        "load.rate": rate,
        "load.duration": duration,
        "load.warmup": warmup,
        "load.max_in_flight": max_in_flight,
        "load.process": process,
        "load.burstiness": burstiness,
        "resets.mode": reset_mode,
        "resets.every": reset_every,
        "resets.at": reset_at or None,
        "resets.external": reset_external,
        "prompts.form": form,
        "prompts.family": family,
        "prompts.prefixes": prefixes,
        "prompts.zipf": zipf,
        "prompts.prefix_tokens": prefix_tokens,
        "prompts.unique_tokens": unique_tokens,
        "prompts.turns": turns,
        "prompts.think": think,
        "output.tokens": output_tokens,
        "output.law": output_law,
        "trace.file": None if trace is None else str(trace),
        "trace.format": trace_format,
    }
    given = {key: value for key, value in settings.items() if value is not None}
    plan = make_plan(read_scenario(scenario, given))
    where: Target | ReplicaSpec | None = _target(
        url, control_url, metrics_url, target_file, key_env, header, ca, model
    )
    if isinstance(where, Target):
        if vllm_arg:
            raise UsageError("--vllm-arg is for a vLLM that is started here; it excludes --url.")
        modes = {reset.mode for reset in plan.resets}
        where = permit_resets(where, modes, allow_reset_on_remote)
    else:
        where = _replica(model, vllm_arg, start_timeout)
    _carry_out(plan, where, out or RUNS / _folder_name(plan))


@app.command("experiment")
def _experiment(
    scenario: Annotated[
        Path, typer.Argument(help="TOML file of the experiment.", show_default=False)
    ],
    url: options.Url = None,
    control_url: options.ControlUrl = None,
    metrics_url: options.MetricsUrl = None,
    target_file: options.TargetFile = None,
    key_env: options.KeyEnv = KEY_ENV,
    header: options.Header = None,
    ca: options.Ca = None,
    allow_reset_on_remote: options.AllowResetOnRemote = False,
    model: options.Model = None,
    vllm_arg: options.VllmArg = None,
    start_timeout: options.StartTimeout = 300.0,
    out: options.Out = None,
    runs: options.MostRuns = None,
) -> None:
    """Carry out the runs of an experiment on one replica; called again, go on where it ended."""
    spec = read_experiment(scenario)
    where = _target(url, control_url, metrics_url, target_file, key_env, header, ca, model)
    if where is not None:
        where = permit_resets(where, spec.modes, allow_reset_on_remote)
    folder = out or EXPERIMENTS / spec.name
    with Display(_out) as display:
        ending = carry_out(
            spec,
            where or _replica(model, vllm_arg, start_timeout),
            folder,
            Watcher(display.say, display.show),
            runs,
        )
    if ending.measured:
        _show_experiment(folder)
    _exit_as(ending)


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


@app.command("serve")
def _serve(
    model: options.Model = None,
    vllm_arg: options.VllmArg = None,
    port: options.Port = None,
    start_timeout: options.StartTimeout = 300.0,
) -> None:
    """Start a replica and keep it up for several runs, until Ctrl-C."""
    log = RUNS.parent / f"serve-{_stamp()}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    spec = _replica(model, vllm_arg, start_timeout, port)

    async def keep_up() -> None:
        async with managed_replica(spec, log, _say) as replica:
            _say(f"vLLM answers at {replica.url} after {replica.started_in:.0f} s. Then run:")
            _say(f"  bench run --url {replica.url} --rate 4 --reset-mode keep")
            _say("Ctrl-C stops it.")
            raise await replica.ended()

    try:
        anyio.run(keep_up)
    except KeyboardInterrupt:
        _say("stopped")


@app.command("report")
def _report(folder: options.FolderArgument) -> None:
    """Rebuild the report of a run, or of an experiment, from its journals."""
    if (folder / EXPERIMENT).exists():
        _show_experiment(folder)
    else:
        _show(folder)


@app.command("export")
def _export(
    folder: options.FolderArgument, to: options.ExportTo, out: options.ExportOut = None
) -> None:
    """Write a run's requests for other programs: as vllm bench serve does, as CSV or as Parquet."""
    from harness.report.export import export

    file = out or folder / to.file
    write(file, export(read_run(folder), to))
    _say(f"{to}: {file}")


@app.command("schema")
def _schema() -> None:
    """Print the JSON Schema of summary.json, of a run and of an experiment."""
    from harness.report.summary import schema

    typer.echo(schema(), nl=False)


@app.command("doctor")
def _doctor(
    reset_mode: options.ResetModeOption = ResetMode.KEEP,
    url: options.Url = None,
    control_url: options.ControlUrl = None,
    metrics_url: options.MetricsUrl = None,
    target_file: options.TargetFile = None,
    key_env: options.KeyEnv = KEY_ENV,
    header: options.Header = None,
    ca: options.Ca = None,
    model: options.Model = None,
) -> None:
    """Say what a server is and whether it can serve a run; sends it no reset."""
    where = _target(url, control_url, metrics_url, target_file, key_env, header, ca, model)
    if where is None:
        raise UsageError("doctor examines a running server: give its address with --url.")
    needed = {reset_mode} - {ResetMode.NONE, None}

    async def examine() -> Diagnosis:
        return await inspect(where, [mode for mode in needed if mode is not None])

    diagnosis = anyio.run(examine)
    for line in diagnosis.lines():
        _say(line)
    diagnosis.raise_problem()


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
    _say(f"page: {out}")


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
    print_decision(_out, decision)
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
    _say(f"baseline: {out}")


def _carry_out(plan: Plan, where: Target | ReplicaSpec, folder: Path) -> None:
    """Run, report whatever was measured, and exit with the code that says how it ended."""
    with Display(_out) as display:
        display.say(
            f"{plan.requests} requests over {plan.end:g} s, {len(plan.resets)} resets; "
            f"everything goes into {folder}"
        )
        ending = run(plan, where, folder, Watcher(display.say, display.show))
    if ending.measured:
        _show(folder)
    _exit_as(ending)


def _exit_as(ending: Ending) -> None:
    """Exit with the code that says how it ended, unless it is complete."""
    if ending.error is not None:
        _fail(ending.error)
    if ending.status is RunStatus.INTERRUPTED:
        _say(str(ending.reason))
        raise typer.Exit(INTERRUPTED)


def _show(folder: Path) -> None:
    # Here, since pandas, scipy and matplotlib take seconds to import and only a report needs them.
    from harness.analysis.summary import summarize
    from harness.report.figures import draw_recovery
    from harness.report.summary import SUMMARY, as_json
    from harness.report.text import print_summary

    journals = read_run(folder)
    summary = summarize(journals)
    print_summary(_out, summary)
    write(folder / SUMMARY, as_json(summary))
    figure = folder / FIGURE
    try:
        draw_recovery(journals, summary, figure)
    except OSError as error:
        raise JournalError(f"cannot write {figure}: {error.strerror}.") from None
    _say(f"plot: {figure}")


def _show_experiment(folder: Path) -> None:
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

    print_findings(_out, findings)
    if folder is None:
        return
    write(folder / SUMMARY, as_json(findings))
    write(folder / REPORT, page(findings, commands).encode())
    _say(f"page: {folder / REPORT}, figures for programs: {folder / SUMMARY}")


def _say(line: str) -> None:
    _out.print(line, markup=False, highlight=False, soft_wrap=True)


def _target(
    url: str | None,
    control_url: Sequence[str] | None,
    metrics_url: Sequence[str] | None,
    file: Path | None,
    key_env: str,
    header: Sequence[str] | None,
    ca: Path | None,
    model: str | None,
) -> Target | None:
    """The target that the options name; None where they name none."""
    if file is not None:
        if url or control_url or metrics_url or header or ca:
            raise UsageError("--target names every address; it excludes --url, --header and --ca.")
        return read_target(file, os.environ)
    if url is None:
        if control_url or metrics_url:
            raise UsageError("--control-url and --metrics-url go with --url.")
        return None
    if key_env != KEY_ENV and key_env not in os.environ:
        raise UsageError(f"--key-env: environment variable {key_env} is not set; export it first.")
    headers = headers_from(header or (), os.environ.get(key_env))

    def endpoint(address: str) -> Endpoint:
        return Endpoint(address, headers, ca)

    return target(
        endpoint(url),
        [endpoint(address) for address in control_url or ()],
        [endpoint(address) for address in metrics_url or ()],
        model,
    )


def _replica(
    model: str | None, vllm_arg: Sequence[str] | None, start_timeout: float, port: int | None = None
) -> ReplicaSpec:
    if not 1 <= start_timeout <= 86_400:
        raise UsageError(f"--start-timeout is {start_timeout}; allowed is 1 to 86,400 s.")
    return ReplicaSpec(
        model=model, arguments=tuple(vllm_arg or ()), port=port, start_timeout=start_timeout
    )


def _folder_name(plan: Plan) -> str:
    scenario = plan.scenario
    return f"{_stamp()}-{scenario.name}-{scenario.resets.mode}-{scenario.seed}"


def _stamp() -> str:
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
