"""Everything here that needs no engine, once more against vLLM 0.33's Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RELEASE = "0.33.0"
SOURCE = ROOT / ".vllm" / RELEASE


@pytest.mark.skipif(
    not SOURCE.is_dir(), reason=f"scripts/vllm_source {RELEASE} unpacks the source this needs"
)
def test_the_plugin_passes_against_the_next_release(plugin, tmp_path):
    if plugin.finding().vllm.startswith(RELEASE):
        pytest.skip(f"this is the run against {RELEASE}")
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
        *(f"--basetemp={tmp_path / 'pytest'}", str(Path(__file__).parent)),
    ]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]
