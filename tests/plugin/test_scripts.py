"""The scripts that show the plugin at work."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
SOURCES = Path(__file__).parents[2] / ".vllm"


def lines_of(script, *options):
    command = [sys.executable, str(SCRIPTS / script), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_reproduce_prints_what_each_reset_does(plugin):
    first, *lines = lines_of("reproduce")
    assert re.fullmatch(r"vLLM \S+, vllm-keep-reset \S+", first)
    untouched = "1 running, 0 waiting, 0 preemptions, 48 computed tokens, 3 held blocks"
    assert lines == [
        f"before   {untouched}, 3 cached hashes",
        f"default  {untouched}, 3 cached hashes, refused",
        "preempt  0 running, 1 waiting, 1 preemptions, 0 computed tokens, 0 held blocks, "
        "0 cached hashes, cleared",
        f"keep     {untouched}, 0 cached hashes, cleared",
    ]


def test_reset_stall_shows_that_keep_costs_what_is_cached(plugin):
    if str(SOURCES) in os.environ.get("PYTHONPATH", ""):
        pytest.skip("measured once, with the vLLM that is installed")
    lines = lines_of("reset_stall", "--pools", "10000", "--repeats", "4")
    idle = [line.split() for line in lines if "%" in line and "refused" not in line]
    ratios = {row[1]: float(row[-1]) for row in idle}
    assert list(ratios) == ["100%", "50%", "5%", "0%"]
    assert ratios["100%"] < 1.2, "two thirds of vLLM's own, and room for a busy machine"
    assert ratios["5%"] < 0.5
    assert ratios["0%"] < 0.2
