"""The gate on simulated experiments: what passes, what fails and names what broke it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from harness.analysis.experiment.recorded import Recorded
from harness.analysis.gate import baseline as baselines
from harness.analysis.gate.baseline import Baseline
from harness.analysis.gate.judgement import Decision, Verdict, _holds, gate
from harness.analysis.gate.policy import Arm, Figure, Operator, Policy
from harness.analysis.gate.policy_text import policy
from harness.analysis.gate.readings import Candidate, Observation, readings, share_interval
from harness.errors import UsageError
from harness.gate import read_policy
from harness.journals import Journals, RequestTable, RunStatus
from harness.records import AttemptOutcome, Outcome, ResetMode, ResetRecord
from harness.scenario import OutputSpec, Scenario
from tests.analysis import simulation
from tests.analysis.simulation import scenario, simulate

NONE, DEFAULT, PREEMPT, KEEP, SHAM = (
    ResetMode.NONE, ResetMode.DEFAULT, ResetMode.PREEMPT, ResetMode.KEEP, ResetMode.SHAM,
)  # fmt: skip
ALL = (SHAM, PREEMPT, KEEP)
DEFAULTS = read_policy(None)
replaced = msgspec.structs.replace


def of(seed: int, modes: tuple[ResetMode, ...], turn: int, resets: int, rate: float) -> Scenario:
    plain = scenario(NONE, rate=rate, warmup=10.0, duration=8.0 * (resets + 1), seed=seed)
    spec = replaced(plain.resets, every=8.0, modes=modes, turn=turn)
    return replaced(plain, resets=spec, output=OutputSpec(tokens=6))


def experiment(
    seed: int = 1,
    modes: tuple[ResetMode, ...] = ALL,
    resets: int = 12,
    rate: float = 4.0,
    speed: float = 1.0,
    told: bool = True,
    wipes_work: bool = True,
) -> dict[str, Journals]:
    """Mirrored runs of one seed on a simulated replica whose work takes ``speed`` as long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "A", simulation.A * speed)
        patch.setattr(simulation, "B", simulation.B * speed)
        return {
            f"{rate:g}-{seed}-turn{turn}": simulate(
                of(seed, modes, turn, resets, rate), told=told, wipes_work=wipes_work
            )
            for turn in range(len(modes))
        }


def candidate(runs: dict[str, Journals], name: str = "new") -> Candidate:
    return Candidate(name, tuple(Recorded.of(*run) for run in runs.items()), "digest")


def asserted(*lines: str, **settings: int) -> Policy:
    return policy({"assert": list(lines), **settings}, "test.toml")


def verdicts(decision: Decision) -> dict[str, Verdict]:
    return {one.assertion: one.verdict for one in decision.assertions}


def broken(decision: Decision) -> list[str]:
    return [one.assertion for one in decision.assertions if one.verdict is Verdict.FAIL]


@pytest.fixture(scope="module")
def good() -> dict[str, Journals]:
    return experiment()


@pytest.fixture(scope="module")
def whole(good) -> Candidate:
    return candidate(good)


def with_resets(
    runs: dict[str, Journals], change: Callable[[ResetRecord], ResetRecord]
) -> dict[str, Journals]:
    return {
        name: replace(run, resets=tuple(change(reset) for reset in run.resets))
        for name, run in runs.items()
    }


def one_reset(
    runs: dict[str, Journals], mode: ResetMode, change: Callable[[ResetRecord], ResetRecord]
) -> dict[str, Journals]:
    """The fourth reset of ``mode`` changed, in the run that has it."""
    changed = dict(runs)
    name, run = next(iter(runs.items()))
    chosen = [reset.id for reset in run.resets if reset.mode is mode][3]
    changed[name] = with_resets({name: run}, lambda r: change(r) if r.id == chosen else r)[name]
    return changed


def told(**reply: int) -> Callable[[ResetRecord], ResetRecord]:
    """A reset whose last reply says this too."""

    def change(reset: ResetRecord) -> ResetRecord:
        last = reset.attempts[-1]
        last = replaced(
            last,
            reply={**(last.reply or {}), **reply},
            preemptions=reply.get("preempted", last.preemptions),
        )
        return replaced(reset, attempts=(*reset.attempts[:-1], last))

    return change


def ended(outcome: AttemptOutcome) -> Callable[[ResetRecord], ResetRecord]:
    def change(reset: ResetRecord) -> ResetRecord:
        last = replaced(reset.attempts[-1], outcome=outcome)
        return replaced(reset, outcome=outcome, cleared_at=None, attempts=(last,))

    return change


def with_failures(runs: dict[str, Journals], every: int) -> dict[str, Journals]:
    changed = {}
    for name, run in runs.items():
        frame = run.requests.frame.copy()
        frame.loc[frame["id"] % every == 0, "outcome"] = Outcome.HTTP_ERROR.value
        table = RequestTable(frame, run.requests.token_times, run.requests.token_offsets)
        changed[name] = replace(run, requests=table)
    return changed


def test_a_good_candidate_passes_and_what_was_not_planned_is_not_judged(whole) -> None:
    decision = gate(whole, DEFAULTS)
    assert decision.verdict is Verdict.PASS, decision
    found = verdicts(decision)
    assert found['preemptions_per_reset{mode="keep"} == 0'] is Verdict.PASS
    assert found['upper(victims_excess{mode="keep"}) < 0.5 * victims_excess{mode="preempt"}'] == (
        Verdict.PASS
    )
    assert found['cleared_while_running{mode="default"} == 0'] is Verdict.NOT_JUDGED
    assert found["lower(latency_ratio) <= 1.10"] is Verdict.NOT_JUDGED
    assert decision.count(Verdict.CANNOT_TELL) == 0


@pytest.mark.parametrize(
    ("mode", "change", "assertions", "culprit"),
    [
        (KEEP, told(preempted=1), ['preemptions_per_reset{mode="keep"} == 0'], ": 1"),
        (KEEP, ended(AttemptOutcome.REFUSED), ['cleared{mode="keep"} == 1'], ": 0"),
        (
            KEEP,
            ended(AttemptOutcome.IGNORED),
            ["ignored == 0", 'cleared{mode="keep"} == 1'],
            ": 1",
        ),
        (
            PREEMPT,
            told(preempted=0, running=3),
            ['preempted_share{mode="preempt"} >= 0.9'],
            ": 0",
        ),
        (
            PREEMPT,
            told(preempted=4, running=3),
            ['preempted_share{mode="preempt"} <= 1'],
            ": 1.33333",
        ),
    ],
)
def test_one_bad_reset_fails_and_is_named(good, mode, change, assertions, culprit) -> None:
    decision = gate(candidate(one_reset(good, mode, change)), DEFAULTS)
    assert decision.verdict is Verdict.FAIL
    assert broken(decision) == assertions
    failed = next(one for one in decision.assertions if one.verdict is Verdict.FAIL)
    [named] = failed.culprits
    assert named.startswith("4-1-turn0, reset ")
    assert f"({mode} at " in named
    assert named.endswith(culprit)


def test_a_cache_that_stays_fails_by_its_cached_tokens() -> None:
    decision = gate(candidate(experiment(wipes_work=False)), DEFAULTS)
    assert decision.verdict is Verdict.FAIL
    assert 'cached_tokens_after_reset{mode="keep"} == 0' in broken(decision)
    assert 'cleared{mode="keep"} == 1' in broken(decision)
    failed = next(one for one in decision.assertions if one.assertion.startswith("cached_tokens"))
    assert all(named.endswith(": 1984") for named in failed.culprits)


def test_failed_requests_fail_it(good) -> None:
    decision = gate(candidate(with_failures(good, 40)), DEFAULTS)
    assert "failed_share <= 1%" in broken(decision)
    decision = gate(candidate(with_failures(good, 150)), DEFAULTS)
    assert decision.verdict is Verdict.PASS


def test_failures_after_one_mode_fail_it_against_the_control(good, whole) -> None:
    found = asserted('failed_share{mode="keep"} <= failed_share{mode="control"} + 1%')
    bad = {}
    for name, run in good.items():
        frame = run.requests.frame.copy()
        keeps = [reset.cleared_at for reset in run.resets if reset.mode is KEEP]
        after = np.any([(frame["sent"] >= at) & (frame["sent"] < at + 1) for at in keeps], axis=0)
        frame.loc[after, "outcome"] = Outcome.TIMEOUT.value
        bad[name] = replace(
            run,
            requests=RequestTable(frame, run.requests.token_times, run.requests.token_offsets),
        )
    assert gate(whole, found).verdict is Verdict.PASS
    assert gate(candidate(bad), found).verdict is Verdict.FAIL


def test_keep_as_dear_as_preempt_is_not_passed() -> None:
    # Both modes swapped in the records: what is called keep has preempted.
    swapped = {KEEP: PREEMPT, PREEMPT: KEEP}

    def swap(reset: ResetRecord) -> ResetRecord:
        return replaced(reset, mode=swapped.get(reset.mode, reset.mode))

    found = asserted('upper(victims_excess{mode="keep"}) < 0.5 * victims_excess{mode="preempt"}')
    decision = gate(candidate(with_resets(experiment(), swap)), found)
    assert decision.verdict is Verdict.FAIL


def test_few_resets_break_an_assertion_but_do_not_keep_it() -> None:
    few = experiment(modes=(PREEMPT, KEEP), resets=5)
    decision = gate(candidate(few), DEFAULTS)
    assert decision.verdict is Verdict.CANNOT_TELL
    keep = decision.assertions[2]
    assert keep.reason == "5 resets; at least 8 are needed"
    bad = one_reset(experiment(modes=(PREEMPT, KEEP), resets=8), KEEP, told(preempted=2))
    lines = asserted('preemptions_per_reset{mode="keep"} == 0', min_resets=20)
    assert gate(candidate(bad), lines).verdict is Verdict.FAIL


@pytest.mark.parametrize("status", [RunStatus.INTERRUPTED, RunStatus.RUNNING, RunStatus.FAILED])
def test_a_run_cut_short_cannot_pass(good, status) -> None:
    name, run = next(iter(good.items()))
    cut = {**good, name: replace(run, manifest=replaced(run.manifest, status=status))}
    decision = gate(candidate(cut), DEFAULTS)
    assert decision.verdict is Verdict.CANNOT_TELL
    assert decision.reasons == (f"run {name} is {status}",)
    worse = gate(candidate(one_reset(cut, KEEP, told(preempted=1))), DEFAULTS)
    assert worse.verdict is Verdict.FAIL
    with pytest.raises(UsageError, match=name):
        baselines.make(candidate(cut))


def test_an_experiment_with_runs_missing_cannot_pass(whole) -> None:
    some = replace(whole, missing=("4-1-turn9",))
    decision = gate(some, DEFAULTS)
    assert decision.verdict is Verdict.CANNOT_TELL
    assert "4-1-turn9" in decision.reasons[0]


def test_an_arm_that_a_policy_names_and_the_candidate_lacks_cannot_be_told(whole) -> None:
    decision = gate(whole, asserted('cleared_while_running{mode="default"} == 0'))
    assert decision.verdict is Verdict.CANNOT_TELL
    assert decision.assertions[0].reason == "the candidate plans no default reset"
    without = gate(candidate(experiment(modes=(PREEMPT, KEEP))), asserted(
        'failed_share{mode="keep"} <= failed_share{mode="control"}'))  # fmt: skip
    assert without.verdict is Verdict.CANNOT_TELL


def test_a_candidate_without_resets_cannot_be_told() -> None:
    control = {"none": simulate(scenario(NONE))}
    decision = gate(candidate(control), DEFAULTS)
    assert decision.verdict is Verdict.CANNOT_TELL
    assert decision.assertions[0].reason == "no resets"
    nothing = policy({"assert_if_planned": ['cleared{mode="keep"} == 1']}, "test.toml")
    decision = gate(candidate(control), nothing)
    assert decision.verdict is Verdict.CANNOT_TELL
    assert "could be judged" in decision.reasons[0]


def test_a_server_that_does_not_tell_is_not_believed() -> None:
    stock = candidate(experiment(modes=(PREEMPT, KEEP), told=False))
    decision = gate(stock, DEFAULTS)
    assert decision.verdict is Verdict.CANNOT_TELL
    assert verdicts(decision)['preempted_share{mode="preempt"} >= 0.9'] is Verdict.CANNOT_TELL
    silent = {}
    for name, run in experiment(modes=(PREEMPT, KEEP)).items():
        frame = run.requests.frame.assign(cached_tokens=np.nan)
        table = RequestTable(frame, run.requests.token_times, run.requests.token_offsets)
        silent[name] = replace(run, requests=table)
    unsure = gate(candidate(silent), DEFAULTS)
    assert verdicts(unsure)['cached_tokens_after_reset{mode="keep"} == 0'] is Verdict.CANNOT_TELL


def test_default_clears_only_when_nothing_runs() -> None:
    runs = {"d": simulate(replaced(of(3, (), 0, 20, 1.0), resets=replaced(
        of(3, (), 0, 20, 1.0).resets, mode=DEFAULT)))}  # fmt: skip
    outcomes = {reset.outcome for reset in runs["d"].resets}
    assert outcomes == {AttemptOutcome.CLEARED, AttemptOutcome.REFUSED}
    assert gate(candidate(runs), DEFAULTS).verdict is Verdict.PASS

    def busy(reset: ResetRecord) -> ResetRecord:
        return told(running=2)(reset) if reset.outcome is AttemptOutcome.CLEARED else reset

    decision = gate(candidate(with_resets(runs, busy)), DEFAULTS)
    assert broken(decision) == ['cleared_while_running{mode="default"} == 0']


def test_late_ticks_void_times_and_not_counts(good) -> None:
    late = {
        name: replace(run, client=tuple(replaced(s, overshoots=(0.2,) * 50) for s in run.client))
        for name, run in good.items()
    }
    found = verdicts(gate(candidate(late), DEFAULTS))
    assert found['preemptions_per_reset{mode="keep"} == 0'] is Verdict.PASS
    assert [one for one, verdict in found.items() if verdict is Verdict.CANNOT_TELL] == [
        'upper(victims_excess{mode="keep"}) < 0.5 * victims_excess{mode="preempt"}'
    ]
    with pytest.raises(UsageError, match="ticker"):
        baselines.make(candidate(late))


@pytest.mark.parametrize("seed", range(1, 11))
def test_a_against_a_passes(seed: int) -> None:
    # The same plan on the same kind of replica, whose speed differs by a few per cent.
    speed = float(np.exp(np.random.default_rng(seed).normal(0, 0.03)))
    old = baselines.make(candidate(experiment(seed), "old"))
    decision = gate(candidate(experiment(seed, speed=speed)), DEFAULTS, old)
    assert decision.verdict is Verdict.PASS, [
        one for one in decision.assertions if one.verdict in (Verdict.FAIL, Verdict.CANNOT_TELL)
    ]


def test_a_baseline_from_a_machine_half_as_fast_passes(whole) -> None:
    old = baselines.make(candidate(experiment(speed=0.5), "old"))
    decision = gate(whole, DEFAULTS, old)
    assert decision.verdict is Verdict.PASS
    [latency] = [one for one in decision.assertions if "latency" in one.assertion]
    assert latency.verdict is Verdict.NOT_JUDGED
    assert latency.value > 1.5
    assert latency.reason


def test_counts_are_gated_against_a_baseline(good, whole) -> None:
    old = baselines.make(candidate(good, "old"))
    lines = asserted('preemptions_per_reset{mode="keep"} <= baseline')
    assert gate(whole, lines, old).verdict is Verdict.PASS
    bad = candidate(one_reset(good, KEEP, told(preempted=3)))
    decision = gate(bad, lines, old)
    assert decision.verdict is Verdict.FAIL
    assert [named.endswith(": 3") for named in decision.assertions[0].culprits] == [True]
    half = candidate(with_resets(good, lambda r: told(preempted=1, running=2)(r)
                                 if r.mode is PREEMPT else r))  # fmt: skip
    more = asserted('preempted_share{mode="preempt"} <= 1.05 * baseline')
    assert gate(whole, more, baselines.of(half)).verdict is Verdict.FAIL


def test_refusals_of_default_are_gated_beyond_chance() -> None:
    lines = asserted('lower(refused{mode="default"}) <= upper(baseline)')
    plan = of(3, (), 0, 20, 1.0)
    runs = {"d": simulate(replaced(plan, resets=replaced(plan.resets, mode=DEFAULT)))}
    old = baselines.make(candidate(runs, "old"))
    assert gate(candidate(runs), lines, old).verdict is Verdict.PASS
    refused = with_resets(runs, ended(AttemptOutcome.REFUSED))
    assert gate(candidate(refused), lines, old).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"rate": 3.0}, "load.rate is 4.0, the baseline's 3.0"),
        ({"resets": 13}, "load.duration is 104.0, the baseline's 112.0"),
        ({"seed": 2}, "seeds are [1], the baseline's [2]"),
        ({"modes": (PREEMPT, KEEP)}, "resets.modes"),
    ],
)
def test_another_plan_cannot_be_told(whole, other, words: str) -> None:
    old = baselines.of(candidate(experiment(**other), "old"))
    decision = gate(whole, DEFAULTS, old)
    assert decision.verdict is Verdict.CANNOT_TELL
    reasons = {one.reason for one in decision.assertions if one.verdict is Verdict.CANNOT_TELL}
    assert len(reasons) == 1
    assert words in reasons.pop()


def test_another_model_or_too_small_a_baseline_cannot_be_told(good, whole) -> None:
    lines = asserted('preemptions_per_reset{mode="keep"} <= baseline')
    old = baselines.make(candidate(good, "old"))
    other = replaced(old, made_from=replaced(old.made_from, model="other"))
    assert "another model" in gate(whole, lines, other).assertions[0].reason
    few = replaced(old, figures=tuple(replaced(one, resets=7) for one in old.figures))
    assert "7 resets" in gate(whole, lines, few).assertions[0].reason
    none = replaced(old, figures=())
    assert "does not hold" in gate(whole, lines, none).assertions[0].reason


class Pair:
    """Candidate and baseline as arms of one experiment over five seeds, run by run in turns."""

    def __init__(self, slower: float, seeds: int = 5) -> None:
        rng = np.random.default_rng(7)
        self.new: list[Recorded] = []
        self.old: list[Recorded] = []
        for seed in range(1, seeds + 1):
            for side, factor, minute in ((self.old, 1.0, 0), (self.new, slower, 5)):
                speed = factor * float(np.exp(rng.normal(0, 0.02)))
                for name, run in experiment(seed, (PREEMPT, KEEP), 8, speed=speed).items():
                    manifest = replaced(
                        run.manifest,
                        started_utc=f"2025-01-01T{seed:02}:{minute:02}:00+00:00",
                        host={"boot": "one"},
                    )
                    side.append(Recorded.of(name, replace(run, manifest=manifest)))

    @property
    def candidate(self) -> Candidate:
        return Candidate("new", tuple(self.new), "digest")

    @property
    def baseline(self) -> Baseline:
        return baselines.of(Candidate("old", tuple(self.old), "digest"))


@pytest.fixture(scope="module")
def slow() -> Pair:
    return Pair(1.3)


TIMES = {"lower(latency_ratio) <= 1.10", "lower(ttft_ratio) <= 1.10"}


def test_times_are_judged_between_paired_arms(slow: Pair) -> None:
    decision = gate(slow.candidate, DEFAULTS, slow.baseline)
    assert set(broken(decision)) == TIMES
    even = gate(Candidate("new", tuple(slow.old), "digest"), DEFAULTS, slow.baseline)
    assert {verdicts(even)[one] for one in TIMES} == {Verdict.PASS}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda b: replaced(b, made_from=replaced(b.made_from, experiment="x")), "one experiment"),
        (lambda b: replaced(b, runs=tuple(replaced(r, boot="two") for r in b.runs)), "one machine"),
        (lambda b: replaced(b, runs=tuple(replaced(r, boot=None) for r in b.runs)), "one machine"),
        (lambda b: replaced(b, runs=tuple(replaced(r, void=True) for r in b.runs)), "are void"),
        (lambda b: replaced(b, runs=b.runs[:8]), "seeds in common: 4"),
        (
            lambda b: replaced(
                b,
                runs=tuple(replaced(r, started_utc="2025-01-01T00:00:00+00:00") for r in b.runs),
            ),
            "in turns",
        ),
    ],
)
def test_times_are_shown_and_not_judged_otherwise(slow: Pair, change, reason: str) -> None:
    decision = gate(slow.candidate, DEFAULTS, change(slow.baseline))
    times = [one for one in decision.assertions if one.assertion in TIMES]
    assert {one.verdict for one in times} == {Verdict.NOT_JUDGED}
    for one in times:
        assert reason in one.reason
        assert one.value == pytest.approx(1.35, abs=0.3)


def test_an_interval_that_holds_the_limit_is_neither_pass_nor_fail(whole) -> None:
    found = readings(whole)(Figure.VICTIMS_EXCESS, Arm.PREEMPT)
    middle = (found.value + found.high) / 2
    of_preempt = 'upper(victims_excess{mode="preempt"})'
    for limit, verdict in [
        (found.high + 0.1, Verdict.PASS),
        (middle, Verdict.CANNOT_TELL),
        (found.low - 0.1, Verdict.FAIL),
    ]:
        assert gate(whole, asserted(f"{of_preempt} < {limit:.6f}")).verdict is verdict
    shown = asserted(f'lower(victims_excess{{mode="preempt"}}) <= {found.low - 0.1:.6f}')
    assert gate(whole, shown).verdict is Verdict.FAIL
    not_shown = asserted(f'lower(victims_excess{{mode="preempt"}}) <= {middle:.6f}')
    assert gate(whole, not_shown).verdict is Verdict.PASS


def test_what_a_counter_leaves_open_is_open() -> None:
    seen = [Observation("a", 0.0, 3.0), Observation("b", 2.0, 2.0)]
    table = {
        ("==", 0): [None, False],
        ("==", 4): [False, False],
        ("!=", 4): [True, True],
        ("!=", 1): [None, True],
        ("<=", 3): [True, True],
        ("<=", 2): [None, True],
        ("<", 0): [False, False],
        (">=", 2): [None, True],
        (">", 3): [False, False],
    }
    for (sign, limit), expected in table.items():
        assert [_holds(Operator(sign), limit)(one) for one in seen] == expected, (sign, limit)


def test_intervals_of_shares_are_exact() -> None:
    assert share_interval(0, 10) == pytest.approx((0.0, 0.3085), abs=1e-4)
    assert share_interval(5, 10) == pytest.approx((0.1871, 0.8129), abs=1e-4)
