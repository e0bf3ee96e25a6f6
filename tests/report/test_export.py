"""Exports: the fields that other programs read, with the values they expect."""

from __future__ import annotations

import csv
import io
import json
import sys
from importlib.util import find_spec

import msgspec
import pytest

from harness.errors import DependencyMissing
from harness.records import Outcome
from harness.report.export import ExportFormat, export
from tests.analysis.simulation import journals, request, scenario, simulate

FAILED = msgspec.structs.replace(
    request(3, 13.0, outcome=Outcome.TIMEOUT, finished=15.0), error="silence", prompt_tokens=None
)
RUN = journals(
    request(0, 1.0, 2.0),  # in the warm-up
    request(1, 10.5, 11.0, 11.25, 12.0, scheduled=10.0, cached=2000),
    request(2, 11.0, 11.5),
    FAILED,
    warmup=10.0, duration=20.0,
)  # fmt: skip


def vllm_bench(run) -> dict[str, object]:
    return json.loads(export(run, ExportFormat.VLLM_BENCH))


def test_vllm_bench_lists_the_requests_of_the_measured_period_from_their_sending() -> None:
    told = vllm_bench(RUN)
    assert told["num_prompts"] == 3
    assert (told["completed"], told["failed"]) == (2, 1)
    assert told["start_times"] == [10.5, 11.0, 13.0]
    assert told["ttfts"] == [0.5, 0.5, 0.0]
    assert told["itls"] == [[0.25, 0.75], [], []]
    assert told["latencies"] == [1.5, 0.5, 0.0]
    assert told["queue_times"] == [0.5, 0.0, 0.0]
    assert told["input_lens"] == [2060, 2060, 0]
    assert told["output_lens"] == [3, 1, 0]
    assert told["errors"] == ["", "", "silence"]
    assert told["generated_texts"] == ["", "", ""]


def test_vllm_bench_sums_up_what_succeeded() -> None:
    told = vllm_bench(RUN)
    assert told["duration"] == 4.5
    assert told["request_throughput"] == pytest.approx(2 / 4.5)
    assert told["output_throughput"] == pytest.approx(4 / 4.5)
    assert told["total_token_throughput"] == pytest.approx((4120 + 4) / 4.5)
    assert (told["mean_ttft_ms"], told["std_ttft_ms"], told["p99_ttft_ms"]) == (500, 0, 500)
    assert (told["mean_tpot_ms"], told["median_itl_ms"]) == (500, 500)
    assert told["mean_e2el_ms"] == 1000
    assert told["max_output_tokens_per_s"] == 2  # in either second of [10.5, 12.5)
    assert told["max_concurrent_requests"] == 2


def test_a_run_without_a_request_exports_zeros() -> None:
    told = vllm_bench(journals(warmup=10.0, duration=20.0))
    assert (told["completed"], told["duration"], told["mean_ttft_ms"]) == (0, 0, 0)


def test_csv_has_every_request_and_column_of_the_journal() -> None:
    rows = list(csv.DictReader(io.StringIO(export(RUN, ExportFormat.CSV).decode())))
    assert [row["id"] for row in rows] == ["0", "1", "2", "3"]
    assert {*rows[0]} == {*FAILED.__struct_fields__}
    assert json.loads(rows[1]["token_times"]) == [11.0, 11.25, 12.0]
    assert (rows[1]["cached_tokens"], rows[2]["cached_tokens"]) == ("2000", "")
    assert (rows[3]["outcome"], rows[3]["error"]) == ("timeout", "silence")


@pytest.mark.skipif(
    find_spec("pyarrow") is None, reason="pyarrow, the parquet extra, is not installed"
)
def test_parquet_reads_back() -> None:
    import pandas as pd

    frame = pd.read_parquet(io.BytesIO(export(RUN, ExportFormat.PARQUET)))
    assert frame["token_times"][1].tolist() == [11.0, 11.25, 12.0]
    assert frame["cached_tokens"].isna().tolist() == [True, False, True, True]


def test_parquet_without_pyarrow_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DependencyMissing, match=r"pip install '\.\[parquet\]'"):
        export(RUN, ExportFormat.PARQUET)


def test_a_whole_run_has_as_many_entries_in_every_list() -> None:
    told = vllm_bench(simulate(scenario()))
    lists = {key: len(value) for key, value in told.items() if isinstance(value, list)}
    assert len(lists) == 9
    assert set(lists.values()) == {told["num_prompts"]}
    assert told["max_concurrent_requests"] > 1
