"""What experiments say: whole ones, broken ones, and those that cannot tell."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from harness.analysis.experiment.aligned import Quantity
from harness.analysis.experiment.contrast import Recovery
from harness.analysis.experiment.findings import Findings, design_of, find
from harness.analysis.experiment.recorded import Recorded
from harness.design import Design
from harness.experiment.plan import plan_runs, replayed
from harness.journals import Journals, RequestTable, RunStatus
from harness.records import Outcome, ResetMode
from tests.analysis import simulation
from tests.analysis.experiments import findings, simulated, spec
from tests.analysis.simulation import journals, request, scenario, simulate, wipe

NONE, SHAM, DEFAULT, PREEMPT, KEEP = (
    ResetMode.NONE,
    ResetMode.SHAM,
    ResetMode.DEFAULT,
    ResetMode.PREEMPT,
    ResetMode.KEEP,
)
LONG = {"warmup": 20.0, "duration": 240.0, "every": 30.0}
SHORT = {"warmup": 20.0, "duration": 60.0, "every": 20.0}


def of(runs: dict[str, Journals], design: Design | None = None) -> Findings:
    recorded = [Recorded.of(name, run) for name, run in runs.items()]
    return find("x", recorded, design or design_of(recorded))


def cut(run: Journals, at: float) -> Journals:
    """The run as if it had been killed: nothing that ended after ``at`` was written."""
    frame = run.requests.frame
    kept = frame[frame["finished"] < at].reset_index(drop=True)
    rows = np.flatnonzero((frame["finished"] < at).to_numpy())
    lengths = np.diff(run.requests.token_offsets)[rows]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    stamps = [
        run.requests.token_times[run.requests.token_offsets[r] : run.requests.token_offsets[r + 1]]
        for r in rows
    ]
    table = RequestTable(kept, np.concatenate([np.zeros(0), *stamps]), offsets)
    resets = tuple(reset for reset in run.resets if (reset.cleared_at or 0) < at)
    manifest = msgspec.structs.replace(run.manifest, status=RunStatus.RUNNING)
    return replace(run, manifest=manifest, requests=table, resets=resets)


def failed(run: Journals) -> Journals:
    frame = run.requests.frame.assign(outcome=str(Outcome.HTTP_ERROR))
    return replace(run, requests=replace(run.requests, frame=frame))


BAD = {
    "no run": (lambda: {}, "no run was recorded"),
    "fewer than 8 resets": (
        lambda: simulated(spec(warmup=20.0, duration=100.0, every=20.0)),
        "at least 8 are needed",
    ),
    "few requests between close resets": (
        lambda: {
            "a": simulate(scenario(KEEP, rate=0.3, warmup=20.0, duration=40.0, every=8.0)),
            "b": simulate(scenario(NONE, rate=0.3, warmup=20.0, duration=40.0)),
        },
        "at least 8 are needed",
    ),
    "no control": (
        lambda: simulated(spec(modes=(PREEMPT, KEEP), **SHORT)),
        "no control",
    ),
    "one mode and no control": (
        lambda: {"a": simulate(scenario(KEEP, **SHORT))},
        "nothing to compare it with",
    ),
    "only controls": (
        lambda: {"a": simulate(scenario(NONE, **SHORT)), "b": simulate(scenario(NONE, **SHORT))},
        "No reset was planned",
    ),
    "one reset only": (
        lambda: {
            str(mode): simulate(scenario(mode, warmup=20.0, duration=60.0, every=30.0))
            for mode in (NONE, KEEP)
        },
        "2 runs; at least 8 are needed",
    ),
    "no reset took effect": (
        lambda: {
            "a": simulate(scenario(DEFAULT, rate=12.0, **SHORT)),
            "b": simulate(scenario(NONE, rate=12.0, **SHORT)),
        },
        "No default reset took effect",
    ),
    "all failed": (
        lambda: {name: failed(run) for name, run in simulated(spec(**SHORT)).items()},
        "failed",
    ),
    "all failed in one arm": (
        lambda: {
            "a": simulate(scenario(NONE, **SHORT)),
            "b": failed(simulate(scenario(KEEP, **SHORT))),
        },
        "failed",
    ),
    "killed in the middle": (
        lambda: {name: cut(run, 55.0) for name, run in simulated(spec(**SHORT)).items()},
        "killed",
    ),
    "killed in the warm-up": (
        lambda: {name: cut(run, 15.0) for name, run in simulated(spec(**SHORT)).items()},
        "killed",
    ),
    "one run killed": (
        lambda: {
            name: cut(run, 55.0) if name.endswith("1") else run
            for name, run in simulated(spec(**SHORT)).items()
        },
        "killed",
    ),
    "empty journals": (
        lambda: {"a": journals(), "b": journals(resets=(wipe(0, 40.0),))},
        "No request ended",
    ),
    "one request": (
        lambda: {"a": journals(request(0, 1.0, 2.0), resets=(wipe(0, 0.5),))},
        "cannot tell",
    ),
}


@pytest.fixture(scope="module", params=BAD)
def bad(request: pytest.FixtureRequest) -> tuple[Findings, str]:
    make, expected = BAD[request.param]
    return of(make()), expected


def test_bad_input_says_what_cannot_be_said_and_why(bad: tuple[Findings, str]) -> None:
    found, expected = bad
    encoded = msgspec.json.encode(found)
    assert b"NaN" not in encoded
    assert b"Infinity" not in encoded
    assert msgspec.json.decode(encoded, type=Findings) == found
    assert expected in encoded.decode()
    assert "cannot" in found.verdict.lower() or "Void" in found.verdict
    for rate in found.rates:
        assert not any(price.total.excludes_zero for price in rate.prices)
        assert all(price.half_life is None for price in rate.prices)


@pytest.fixture(scope="module")
def crossover() -> Findings:
    return findings(spec(rates=(6.0,), duration=480.0))


def test_a_crossover_prices_each_mode_by_its_victims_and_later_arrivals(
    crossover: Findings,
) -> None:
    (rate,) = crossover.rates
    prices = {price.mode: price for price in rate.prices}
    assert set(prices) == {PREEMPT, KEEP}
    for price in prices.values():
        parts = price.victims.estimate + price.later.estimate
        assert price.total.estimate == pytest.approx(parts)
        assert price.total.excludes_zero
        assert price.recovery is not Recovery.DIVERGING
        assert f"{price.mode} wipe costs" in crossover.verdict
    assert prices[KEEP].victims.estimate == pytest.approx(0.0, abs=0.5)
    assert prices[PREEMPT].victims.estimate > 2
    (contrast,) = rate.contrasts
    assert (contrast.first, contrast.second) == (PREEMPT, KEEP)
    assert "preempt costs more than keep by victims' excess" in crossover.verdict
    assert "by later arrivals" in crossover.verdict
    assert "faster" not in crossover.verdict


def test_ttft_excess_stands_beside_the_price(crossover: Findings) -> None:
    (rate,) = crossover.rates
    assert [one.mode for one in rate.ttft] == [price.mode for price in rate.prices]
    told = {one.mode: one.total for one in rate.ttft}
    assert all(one.excludes_zero and one.estimate > 0 for one in told.values())
    # It ranks the modes backwards: preempt costs more, and its victims pay nothing here.
    assert told[PREEMPT].estimate < told[KEEP].estimate
    prices = {price.mode: price.total.estimate for price in rate.prices}
    assert prices[PREEMPT] > prices[KEEP]


def test_curves_have_their_sham_subtracted(crossover: Findings) -> None:
    (rate,) = crossover.rates
    curves = {(curve.quantity, curve.mode): curve for curve in rate.curves if curve.control is SHAM}
    for quantity in Quantity:
        for mode in (PREEMPT, KEEP):
            curve = curves[quantity, mode]
            starts = curve.start + curve.width * np.arange(len(curve.median))
            value = dict(zip(starts.tolist(), curve.median, strict=True))
            # A victim's latency counts where it was planned, before the wipe.
            if quantity not in (Quantity.LATENCY, Quantity.ITL):
                assert abs(value[-curve.width]) < 0.1 * abs(value[0.0]) + 1e-6, quantity
            assert (value[0.0] < 0) == (quantity is Quantity.CACHED)
    first = {mode: curves[Quantity.ITL, mode].median for mode in (PREEMPT, KEEP)}
    assert max(v or 0 for v in first[PREEMPT]) > 2 * max(v or 0 for v in first[KEEP])
    assert {trace.mode for trace in rate.traces} == {SHAM, PREEMPT, KEEP}


def test_the_report_tells_what_wipes_closer_than_the_rule_add(crossover: Findings) -> None:
    (rate,) = crossover.rates
    load = rate.wipe_load
    assert (load.spacing, load.rule) == (40.0, 120.0)
    expected = sum(price.total.estimate for price in rate.prices) / 3 / 40.0
    assert load.added == pytest.approx(expected)


def test_wipes_are_expected_to_meet_what_was_there_before_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(simulation, "COLD", 1.0)  # so that wipes pile requests up
    (rate,) = findings(spec(rates=(7.0,))).rates
    (check,) = (one for one in rate.checks if one.name == "preemptions per reset")
    assert check.expected == pytest.approx(rate.queue.in_flight)
    assert check.expected < 0.8 * np.mean([line.in_flight for line in rate.runs])
    assert check.passed


def test_checks_pass_on_a_replica_that_shares_its_processor(crossover: Findings) -> None:
    (rate,) = crossover.rates
    passed = {check.name: check.passed for check in rate.checks}
    assert passed.keys() >= {"Little's law", "Poisson arrivals", "sham resets", "warm-up"}
    assert all(passed.values())
    assert rate.queue.law.b == pytest.approx(0.08, rel=0.3)
    assert all(one.rate != rate.rate for one in rate.queue.law.predictions)


def test_arms_claim_nothing_of_few_runs_and_then_tell() -> None:
    runs = simulated(spec(Design.ARMS, (KEEP,), seeds=tuple(range(6)), rates=(6.0,), **SHORT))
    few = of({name: run for name, run in runs.items() if name[2] in "01"})
    assert few.rates[0].prices[0].total.reason == "4 runs; at least 8 are needed"
    many = of(runs)
    (price,) = many.rates[0].prices
    assert price.control is NONE
    assert price.total.excludes_zero
    assert price.total.units == 12
    assert "a keep wipe costs" in many.verdict


def test_controls_that_drift_apart_void_a_contrast_between_runs() -> None:
    runs = simulated(spec(Design.ARMS, (PREEMPT, KEEP), **SHORT))
    assert of(runs).rates[0].contrasts[0].void is None
    slow = runs["4-1-none"]
    frame = slow.requests.frame
    late = frame["sent"] * 0.05 + frame["finished"]  # ever slower
    slower = replace(slow, requests=replace(slow.requests, frame=frame.assign(finished=late)))
    void = of({**runs, "again": slower}).rates[0].contrasts[0].void
    assert "drifted apart" in void


def test_default_and_keep_agree_at_idle_instants() -> None:
    plans = plan_runs(spec(Design.AT_IDLE, (DEFAULT, KEEP), rates=(1.0,), seeds=(1, 2), **LONG))
    runs: dict[str, Journals] = {}
    for planned in plans:
        plan = replayed(planned.plan, runs[planned.replays]) if planned.replays else planned.plan
        runs[planned.name] = simulate(plan.scenario)
    found = of(runs, Design.AT_IDLE)
    idle = found.rates[0].at_idle
    assert idle.wipes > 4
    assert idle.default == pytest.approx(idle.keep, abs=1e-6)
    assert idle.default_in_flight == idle.keep_in_flight == 0
    assert "default cleared" in found.verdict
    load, lines = found.rates[0].wipe_load, found.rates[0].runs
    assert load.spacing == LONG["every"]
    wiped = [line.in_flight for line in lines if line.modes != (NONE,)]
    controls = [line.in_flight for line in lines if line.modes == (NONE,)]
    assert load.added == pytest.approx(np.mean(wiped) - np.mean(controls))


def test_capacity_lies_between_what_was_kept_up_with_and_what_was_not() -> None:
    found = findings(
        spec(Design.CAPACITY, (KEEP,), rates=(5.0, 14.0), warmup=10.0, duration=40.0, every=0.25)
    )
    hot, cold = found.capacity.brackets
    assert (hot.mode, cold.mode) == (NONE, KEEP)
    for bracket, work in ((hot, 1.01), (cold, 1.25)):
        capacity = 1 / (0.08 * work)
        assert bracket.kept_up < capacity < bracket.fell_behind
        assert bracket.kept_up < bracket.ended < 1.1 * capacity
        law = bracket.predicted
        assert law is None or bracket.kept_up < law < bracket.fell_behind
    assert cold.cached_share < 0.4 < 0.9 < hot.cached_share
    assert "Warm: keeps up with" in found.verdict


def test_a_prediction_that_a_measurement_refutes_is_not_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = spec(Design.CAPACITY, (), rates=(5.0, 9.0), warmup=10.0, duration=150.0)
    runs = simulated(plan)
    (warm,) = of(runs, Design.CAPACITY).capacity.brackets
    assert (warm.fell_behind, warm.predicted) == (None, pytest.approx(12.4, rel=0.2))
    assert "predicts" in of(runs, Design.CAPACITY).verdict
    _, fast = runs
    monkeypatch.setattr(simulation, "B", 2 * simulation.B)  # something else keeps the machine busy
    runs[fast] = simulated(plan)[fast]
    found = of(runs, Design.CAPACITY)
    (warm,) = found.capacity.brackets
    assert (warm.fell_behind, warm.predicted) == (pytest.approx(9.0, rel=0.1), None)
    assert "predicts" not in found.verdict


def test_more_resets_are_asked_for_where_precision_is_short() -> None:
    found = findings(spec(warmup=20.0, duration=200.0, every=20.0))
    needs = found.rates[0].needs
    assert {need.figure for need in needs} >= {"victims", "20 s"}
    told = [need for need in needs if need.half_width is not None]
    assert told
    assert all((need.further > 0) == (need.half_width > need.wanted) for need in told)
