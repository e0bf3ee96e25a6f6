"""The errors this project raises on purpose.

Every message names what was wrong, where, and what to do about it. The command line prints the
message without a traceback and exits with the class's ``exit_code``::

    HarnessError
    ├── UsageError             2   an option or scenario that cannot be planned; nothing started
    ├── TargetError            3   the server cannot serve this run (unreachable, wrong model)
    │   └── KeepUnsupported    4   the server does not know the keep reset
    ├── ReplicaError           5   a managed replica did not start, or died
    ├── RunAborted             6   the run stopped early: the server went away, the disk filled up
    ├── JournalError           7   a run folder or a baseline cannot be read or written
    └── DependencyMissing      8   an optional package is not installed

Exit code 1 is left to faults of our own (a traceback), 130 to an interrupted run. A verdict is no
error: ``bench gate`` exits with 0 for pass, 10 for fail and 11 for cannot tell.
"""

from __future__ import annotations


class HarnessError(Exception):
    """Base of every error raised on purpose; its text is written for the user."""

    exit_code = 1


class UsageError(HarnessError):
    """An option or scenario value is wrong; nothing has been started."""

    exit_code = 2


class TargetError(HarnessError):
    """The server at the given address cannot serve this run; no load was sent."""

    exit_code = 3


class KeepUnsupported(TargetError):
    """The server's own schema does not list the keep reset; no load was sent."""

    exit_code = 4


class ReplicaError(HarnessError):
    """A managed replica did not come up, or died."""

    exit_code = 5


class RunAborted(HarnessError):
    """A run stopped before its plan was done; the journals hold what was measured."""

    exit_code = 6


class JournalError(HarnessError):
    """A run folder, or a baseline, cannot be written or read."""

    exit_code = 7


class DependencyMissing(HarnessError):
    """Something optional is needed and not installed."""

    exit_code = 8
