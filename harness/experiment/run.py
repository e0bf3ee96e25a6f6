"""An experiment carried out: what is left of it, one run after the other on one replica."""

from __future__ import annotations

from pathlib import Path
from time import monotonic

from harness.experiment.folder import claim, free_name, is_complete, nothing_to_replay
from harness.experiment.plan import ExperimentSpec, PlannedRun, beforehand, plan_runs, replayed
from harness.interruption import Interruptions
from harness.journals import RunStatus
from harness.measurement import Ending
from harness.plan import Plan
from harness.replica.process import ReplicaSpec
from harness.run import Run, Watcher, until_signalled
from harness.server import Server, open_server
from harness.store import RunFolder, read_run
from harness.target import Target


def carry_out(
    spec: ExperimentSpec,
    where: Target | ReplicaSpec,
    out: Path,
    watcher: Watcher,
    most: int | None = None,
) -> Ending:
    """Carry out what is left of ``spec`` in the folder ``out``, one run after the other.

    Runs that are complete are not repeated; one that was cut short is set aside and run again. The
    first run that does not complete ends the experiment, and a later call goes on from there; so
    does one after ``most`` runs, if given.

    Raises:
        UsageError: ``out`` belongs to another experiment, or to this one with other settings.
        JournalError: ``out`` cannot be written.
    """
    planned = plan_runs(spec)
    claim(spec, planned, out)
    left = [
        run
        for run in planned
        if not is_complete(out / run.name) and not nothing_to_replay(run, out)
    ]
    watcher.say(f"{len(planned)} runs, {len(planned) - len(left)} of them done before")
    for line in beforehand(spec, planned):
        watcher.say(line)
    left = left[:most]
    if not left:
        return Ending(RunStatus.COMPLETE, measured=True)

    async def all_runs(interruptions: Interruptions) -> Ending:
        log = free_name(out / "vllm.log")
        async with open_server(where, log, watcher.say) as server:
            return await _run_all(left, out, server, watcher, interruptions)

    return until_signalled(all_runs)


async def _run_all(
    runs: list[PlannedRun],
    out: Path,
    server: Server,
    watcher: Watcher,
    interruptions: Interruptions,
) -> Ending:
    ending = Ending(RunStatus.COMPLETE, measured=True)
    began, load = monotonic(), sum(run.plan.end for run in runs)
    done = 0.0
    for number, planned in enumerate(runs, 1):
        # Until a run has shown what preparing and draining cost, its load is all that is known.
        pace = (monotonic() - began) / done if done else 1.0
        left = (load - done) * pace / 60
        watcher.say(f"run {number} of {len(runs)}: {planned.name}; about {left:.0f} min left")
        path = out / planned.name
        plan: Plan | None = planned.plan
        if planned.replays is not None:
            plan = replayed(planned.plan, read_run(out / planned.replays))
        if plan is None:
            watcher.say(f"{planned.name}: {planned.replays} never cleared; nothing to replay")
            done += planned.plan.end
            continue
        if path.exists():
            path.rename(free_name(out / f"{planned.name}-cut-short"))
        folder = RunFolder(path)
        try:
            run = Run(plan, folder, watcher)
            ending = await run.carry_out(server, interruptions)
        finally:
            folder.close()
        if ending.status is not RunStatus.COMPLETE:
            break
        done += planned.plan.end
    return ending
