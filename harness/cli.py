"""``bench``: its commands that need a server, and where it exits; ``results`` has the others."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import anyio
import typer
from rich.console import Console

import harness
from harness import options, results
from harness.errors import HarnessError, UsageError
from harness.experiment.plan import read_experiment
from harness.experiment.run import carry_out
from harness.journals import RunStatus
from harness.measurement import Ending
from harness.plan import Plan, make_plan
from harness.records import ResetMode
from harness.replica.doctor import Diagnosis, inspect
from harness.replica.process import ReplicaSpec, managed_replica
from harness.report.live import Display
from harness.results import say, show_experiment, show_run, terminal
from harness.run import Watcher, run
from harness.settings import read_scenario
from harness.target import (
    Endpoint,
    Target,
    headers_from,
    permit_resets,
    read_target,
    target,
)

RUNS = Path("results/runs")
EXPERIMENTS = Path("results/experiments")
INTERRUPTED = 130
KEY_ENV = "VLLM_API_KEY"

app = typer.Typer(
    help="What losing the prefix cache costs a vLLM replica, and how it recovers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(results.app)
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
    processes: options.Processes = None,
    arrivals: options.ArrivalProcess = None,
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
        "load.processes": processes,
        "load.process": arrivals,
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
    with Display(terminal) as display:
        ending = carry_out(
            spec,
            where or _replica(model, vllm_arg, start_timeout),
            folder,
            Watcher(display.say, display.show),
            runs,
        )
    if ending.measured:
        show_experiment(folder)
    _exit_as(ending)


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
        async with managed_replica(spec, log, say) as replica:
            say(f"vLLM answers at {replica.url} after {replica.started_in:.0f} s. Then run:")
            say(f"  bench run --url {replica.url} --rate 4 --reset-mode keep")
            say("Ctrl-C stops it.")
            raise await replica.ended()

    try:
        anyio.run(keep_up)
    except KeyboardInterrupt:
        say("stopped")


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
        say(line)
    diagnosis.raise_problem()


def _carry_out(plan: Plan, where: Target | ReplicaSpec, folder: Path) -> None:
    """Run, report whatever was measured, and exit with the code that says how it ended."""
    with Display(terminal) as display:
        display.say(
            f"{plan.requests} requests over {plan.end:g} s, {len(plan.resets)} resets; "
            f"everything goes into {folder}"
        )
        ending = run(plan, where, folder, Watcher(display.say, display.show))
    if ending.measured:
        show_run(folder)
    _exit_as(ending)


def _exit_as(ending: Ending) -> None:
    """Exit with the code that says how it ended, unless it is complete."""
    if ending.error is not None:
        _fail(ending.error)
    if ending.status is RunStatus.INTERRUPTED:
        # Another Ctrl-C while Python shuts down would end it by the signal, not by its code.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        say(str(ending.reason))
        raise typer.Exit(INTERRUPTED)


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
