"""The project's environment, for scripts that may be called with any Python."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHON = ROOT / ".venv" / "bin" / "python"


def enter() -> None:
    """Go on in the environment that ``scripts/setup`` made, unless there is none."""
    if Path(sys.prefix) != PYTHON.parents[1] and PYTHON.exists():
        os.execv(PYTHON, [str(PYTHON), *sys.argv])
