"""A report on a large run: bounded time and memory, and no quadratic step."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "report_benchmark"


def test_a_hundred_thousand_requests_take_ten_seconds() -> None:
    """By CPU time: others may keep this machine busy, and the script itself judges wall time.

    The quickest of four counts where need be: a shared machine's own speed wanders by half.
    """
    done = subprocess.run(
        [sys.executable, SCRIPT, "--requests", "100000", "--attempts", "4"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert not done.stderr
    found = re.search(r"\(([\d.]+) s of CPU\), ([\d.]+) GiB", done.stdout)
    assert found, done.stdout
    assert float(found[1]) < 10
    assert float(found[2]) < 1
