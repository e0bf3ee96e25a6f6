from __future__ import annotations

import subprocess
import sys

import matplotlib
import numpy as np
import pytest
from matplotlib.image import imread

from harness.analysis.summary import summarize
from harness.records import Outcome, ResetMode
from harness.report.figures import draw_recovery
from tests.analysis.simulation import journals, request, scenario, simulate, wipe
from tests.analysis.test_summary import EDGES


def drawn(run, path):
    draw_recovery(run, summarize(run), path)
    return imread(path)


@pytest.mark.parametrize("edge", EDGES)
def test_every_edge_is_a_picture_of_the_promised_size(edge, tmp_path):
    picture = drawn(EDGES[edge](), tmp_path / "recovery.png")
    assert picture.shape[:2] == (800, 1200)


def test_failed_requests_are_drawn(tmp_path):
    good = [request(k, float(k), k + 0.1, k + 1.0) for k in range(90)]
    bad = [*good[:-1], request(89, 89.0, finished=90.0, outcome=Outcome.TIMEOUT)]
    one = drawn(journals(*good, resets=(wipe(0, 40.0),)), tmp_path / "good.png")
    other = drawn(journals(*bad, resets=(wipe(0, 40.0),)), tmp_path / "bad.png")
    assert np.abs(one - other).sum() > 50


def test_drawing_leaves_no_trace_in_matplotlib(tmp_path):
    before = dict(matplotlib.rcParams)
    drawn(simulate(scenario(ResetMode.KEEP)), tmp_path / "recovery.png")
    assert dict(matplotlib.rcParams) == before
    code = "import sys, harness.report.figures; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_path_that_cannot_be_written_is_an_os_error(tmp_path):
    run = journals()
    with pytest.raises(OSError, match="absent"):
        draw_recovery(run, summarize(run), tmp_path / "absent" / "recovery.png")
