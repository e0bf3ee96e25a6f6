"""The statistics keep their promises on a simulated replica; ``scripts/calibrate_statistics`` in
small."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "calibrate_statistics"


@pytest.fixture(scope="module")
def calibration() -> ModuleType:
    loader = SourceFileLoader("calibrate_statistics", str(SCRIPT))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module  # where dataclasses look up their annotations
    loader.exec_module(module)
    return module


def test_false_alarms_with_drift(calibration: ModuleType) -> None:
    case = calibration.Case(rate=3.0, run=0.01, drift=0.05, resets=10, severity=0.0)
    for outcomes in calibration.outcomes([calibration.measure(case, 150, seed=1)]).values():
        assert outcomes.rejected() < 0.105  # 5 % and three standard errors


def test_half_of_the_effect_is_found_and_covered(calibration: ModuleType) -> None:
    case = calibration.Case(rate=3.0, run=0.01, drift=0.0, resets=10, severity=0.5)
    outcomes = calibration.outcomes([calibration.measure(case, 100, seed=2)])
    assert outcomes["victims"].rejected() > 0.8
    for figure in outcomes.values():
        assert figure.plain.mean() > 5
        assert figure.covered() > 0.87
        assert figure.estimate.mean() == pytest.approx(figure.plain.mean(), rel=0.15)


def test_the_simulated_queue_follows_the_law_it_is_made_by(calibration: ModuleType) -> None:
    case = calibration.Case(rate=3.0, run=0.0, drift=0.0, resets=8, severity=0.0)
    levels = []
    for runs, _ in calibration.blocks(case, 40, seed=3):
        end = float(runs[0].resets["instant"].iloc[0])
        levels.append(runs[0].count.mean(end - 60, end))
    assert np.mean(levels) == pytest.approx(3.0 * 1.077 / (1 - 3.0 * 0.199), rel=0.15)
