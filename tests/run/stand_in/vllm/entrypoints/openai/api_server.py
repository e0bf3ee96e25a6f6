"""Stands in for vLLM in whole runs: the fault server, with an engine's process beside it.

The first lines of its log are the names and pids of the two.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

RUN = Path(__file__).parents[4]

if __name__ == "__main__":
    engine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print("server", os.getpid(), flush=True)
    print("engine", engine.pid, flush=True)
    sys.path.insert(0, str(RUN))
    runpy.run_path(str(RUN / "fault_server.py"), run_name="__main__")
