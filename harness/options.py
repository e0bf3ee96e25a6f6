"""The options of ``bench``: their types, help and grouping. What they do is ``cli``'s business."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.load.traces import TraceFormat
from harness.records import ResetMode
from harness.report.export import ExportFormat
from harness.scenario import LengthLaw, Process, PromptFamily, PromptForm

_LOAD, _RESETS, _PROMPTS = "Load", "Resets", "Prompts and outputs"
_TRACE = "A recorded trace"
_ELSEWHERE, _OWN = "A replica elsewhere", "A replica of our own"


def _option(help_text: str, panel: str | None = None, *names: str) -> typer.models.OptionInfo:
    info: typer.models.OptionInfo = typer.Option(*names, help=help_text, rich_help_panel=panel)
    return info


Rate = Annotated[float | None, _option("Mean arrivals a second; default 4.", _LOAD)]
Duration = Annotated[
    float | None,
    _option("Measured seconds, after the warm-up; with no timing given, 100.", _LOAD),
]
Warmup = Annotated[
    float | None, _option("Seconds of load before; with no timing given, 20.", _LOAD)
]
MaxInFlight = Annotated[
    int | None, _option("Cap on requests in flight; default none, an open loop.", _LOAD)
]
Processes = Annotated[
    int | None, _option("Processes of this machine that send the load; 1.", _LOAD)
]
ArrivalProcess = Annotated[
    Process | None,
    _option("How arrivals lie in time; poisson. Levels of a ramp need --scenario.", _LOAD),
]
Burstiness = Annotated[
    float | None, _option("Shape of gamma gaps, below 1 burstier than Poisson; 1.", _LOAD)
]
Seed = Annotated[int | None, _option("Fixes everything that is drawn; default 1.", _LOAD)]
ScenarioFile = Annotated[Path | None, _option("TOML file of settings; options override it.", _LOAD)]

ResetModeOption = Annotated[
    ResetMode | None, _option("What each reset does; default none, a control.", _RESETS)
]
ResetEvery = Annotated[
    float | None, _option("Seconds between resets; with no timing given, 25.", _RESETS)
]
ResetAt = Annotated[
    list[float] | None,
    _option("A reset this many seconds after the warm-up; repeatable.", _RESETS),
]
ResetExternal = Annotated[
    bool | None, _option("Also reset the KV connector's cache (reset_external).", _RESETS)
]

Form = Annotated[PromptForm | None, _option("How prompts are sent; token_ids.", _PROMPTS)]
Family = Annotated[
    PromptFamily | None,
    _option("What prompts have in common; zipf. Another tree needs --scenario.", _PROMPTS),
]
Prefixes = Annotated[int | None, _option("Shared prefixes in the pool; 24.", _PROMPTS)]
Zipf = Annotated[
    float | None, _option("Exponent of the Zipf law prefixes are drawn by; 1.", _PROMPTS)
]
PrefixTokens = Annotated[int | None, _option("Tokens of a shared prefix; 2000.", _PROMPTS)]
UniqueTokens = Annotated[int | None, _option("Tokens of the unique tail; 60.", _PROMPTS)]
Turns = Annotated[int | None, _option("Requests of a session; 4.", _PROMPTS)]
Think = Annotated[
    float | None,
    _option("Mean seconds from an answer to the next turn of its session; 5.", _PROMPTS),
]
OutputTokens = Annotated[int | None, _option("Tokens to generate, or their mean; 100.", _PROMPTS)]
OutputLaw = Annotated[LengthLaw | None, _option("How output lengths are chosen; fixed.", _PROMPTS)]

TraceFile = Annotated[
    Path | None,
    _option(
        "Take arrivals and prompts from this file, save what --arrivals or --family names.",
        _TRACE,
        "--trace",
    ),
]
TraceFormatOption = Annotated[
    TraceFormat | None, _option("How it is written; mooncake.", _TRACE, "--trace-format")
]

Url = Annotated[
    str | None,
    _option("Replica or router that takes the load; without it one is started.", _ELSEWHERE),
]
ControlUrl = Annotated[
    list[str] | None, _option("Takes resets, one a pod; default --url.", _ELSEWHERE)
]
MetricsUrl = Annotated[
    list[str] | None, _option("Sampled, one a pod; default --control-url.", _ELSEWHERE)
]
TargetFile = Annotated[
    Path | None,
    _option("TOML file of addresses, each with own headers, key and CA.", _ELSEWHERE, "--target"),
]
KeyEnv = Annotated[str, _option("Environment variable that holds the API key.", _ELSEWHERE)]
Header = Annotated[
    list[str] | None,
    _option(
        "'Name: value' sent to every address; repeatable; shows in the process list.", _ELSEWHERE
    ),
]
Ca = Annotated[Path | None, _option("PEM file of the authorities to trust.", _ELSEWHERE)]
AllowResetOnRemote = Annotated[
    bool,
    _option(
        "Wipe the cache of a host that is not this machine.",
        _ELSEWHERE,
        "--allow-reset-on-remote",
    ),
]

Model = Annotated[
    str | None,
    _option("Model to ask for, or to start vLLM with; default what is served, or bundled."),
]
VllmArg = Annotated[
    list[str] | None,
    _option("A flag of the vLLM that is started: --vllm-arg=--max-num-seqs=64.", _OWN),
]
StartTimeout = Annotated[float, _option("Seconds it may take to start.", _OWN)]
Port = Annotated[int | None, _option("Port on 127.0.0.1; default a free one.", _OWN)]

Out = Annotated[Path | None, _option("Folder to write; default a new one below results/.")]
FolderArgument = Annotated[
    Path,
    typer.Argument(metavar="DIR", help="Folder of a run or of an experiment.", show_default=False),
]

MostRuns = Annotated[
    int | None,
    typer.Option("--runs", min=1, help="Carry out at most so many runs now; default all."),
]

_GATE = "Files"
CandidateArgument = Annotated[
    Path,
    typer.Argument(
        metavar="CANDIDATE", help="The folder of a run or experiment.", show_default=False
    ),
]
BaselineOption = Annotated[
    Path | None,
    _option("What `bench baseline` wrote, or the folder of an experiment.", _GATE, "--baseline"),
]
PolicyOption = Annotated[
    Path | None, _option("TOML file of assertions; default the built-in ones.", _GATE, "--policy")
]
JsonOut = Annotated[Path | None, _option("Write the decision here as JSON.", _GATE, "--json")]
JunitOut = Annotated[
    Path | None, _option("Write the decision here as JUnit XML.", _GATE, "--junit")
]
BaselineOut = Annotated[Path, _option("The file to write.", None, "--out")]

FolderArguments = Annotated[
    list[Path],
    typer.Argument(
        metavar="DIR DIR...", help="Folders of runs or experiments.", show_default=False
    ),
]
AllowVersion = Annotated[
    bool,
    _option("Compare although vLLM's or this harness's version differs.", None, "--allow-version"),
]
AllowConfig = Annotated[
    bool,
    _option(
        "Compare although the server's cache is configured differently.", None, "--allow-config"
    ),
]
CompareOut = Annotated[
    Path | None, _option("Folder for report.html and summary.json.", None, "--out")
]

ExportTo = Annotated[ExportFormat, _option("What to write.", None, "--to")]
ExportOut = Annotated[
    Path | None, _option("The file to write; default one in the run's folder.", None, "--out")
]
