"""Run one command and leave none of its descendants behind; a script that needs nothing of ours.

    python guard.py [--batch] COMMAND [ARGUMENT ...]

The guard stands between ``bench`` and vLLM, which starts an API server, engine cores and workers.
It reads its standard input, whose other end only its owner holds: end of file means that the owner
closed it or died, of whatever cause, SIGKILL included. It then asks the command to end (SIGTERM),
kills after ``GRACE_SECONDS`` whatever is left, and exits when there is no descendant any more.
It does the same when the command ends by itself, or when the guard gets SIGTERM or SIGINT.

Two kernel features make that complete (``man 2 prctl``). As a *child subreaper* the guard becomes
the parent of every orphan among its descendants, so that killing children until there are none
reaches all of them, even one that left its process group. The *parent-death signal* kills the
command should the guard itself be killed; the signal alone would miss grandchildren.

``--batch`` runs all of it under ``SCHED_BATCH``, which never preempts a client that wakes up.
Exits with the command's status, 128 + n where signal n ended it.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

GRACE_SECONDS = 10.0
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


class Stopped(Exception):
    """The guard was asked by a signal to stop."""


def main(arguments: list[str]) -> int:
    """Run the command named by ``arguments`` until it ends or the owner goes."""
    if arguments and arguments[0] == "--batch":
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        arguments = arguments[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    guard = os.getpid()

    def die_with_the_guard() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != guard:  # it died before the line above
            os._exit(1)

    # The guard has one thread, so code between fork and exec is safe.
    command = subprocess.Popen(
        arguments,
        stdin=subprocess.DEVNULL,
        preexec_fn=die_with_the_guard,  # noqa: PLW1509
    )
    try:
        _wait_for_either(command)
        if command.poll() is None:
            command.terminate()
            _wait(command, GRACE_SECONDS)
    except Stopped:
        command.terminate()
        _wait(command, GRACE_SECONDS)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _kill_descendants(command)
    status = command.returncode
    return status if status >= 0 else 128 - status


def _stop(_signal: int, _frame: FrameType | None) -> None:
    raise Stopped


def _wait_for_either(command: subprocess.Popen[bytes]) -> None:
    """Return when standard input ends or the command does."""
    poll = select.poll()
    owner = sys.stdin.fileno()
    poll.register(owner, select.POLLIN | select.POLLHUP)
    poll.register(os.pidfd_open(command.pid), select.POLLIN)
    while True:
        ready = [fd for fd, _ in poll.poll()]
        if owner not in ready or os.read(owner, 4096) == b"":
            return


def _wait(command: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        command.wait(seconds)
    except subprocess.TimeoutExpired:
        return


def _kill_descendants(command: subprocess.Popen[bytes]) -> None:
    """Kill children until none is left; orphaned grandchildren become children meanwhile."""
    while True:
        for pid in _children():
            os.kill(pid, signal.SIGKILL)
        command.poll()
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == command.pid:
            command.returncode = os.waitstatus_to_exitcode(status)
        if pid == 0:
            time.sleep(0.02)


def _children() -> list[int]:
    """Processes whose parent is this one, dead ones not yet waited for among them."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            # the second field, the command's name, may itself hold spaces and parentheses
            if int(stat.rpartition(")")[2].split()[1]) == os.getpid():
                found.append(int(entry.name))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
