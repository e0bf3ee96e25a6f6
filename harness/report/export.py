"""A run's requests in the forms that other programs read."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from harness.errors import DependencyMissing
from harness.journals import Journals
from harness.records import Outcome
from harness.scenario import LoadSpec, Process, PromptForm

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]


class ExportFormat(StrEnum):
    """What a run can be exported to."""

    VLLM_BENCH = "vllm-bench"
    """The JSON of ``vllm bench serve --save-result --save-detailed``."""
    CSV = "csv"
    PARQUET = "parquet"

    @property
    def file(self) -> str:
        """Name of the file in the run's folder, unless another is asked for."""
        return "vllm-bench.json" if self is ExportFormat.VLLM_BENCH else f"requests.{self}"


def export(journals: Journals, to: ExportFormat) -> bytes:
    """The requests of a run as the content of one file.

    Raises:
        DependencyMissing: Parquet is asked for and pyarrow is not installed.
    """
    match to:
        case ExportFormat.VLLM_BENCH:
            return msgspec.json.encode(as_vllm_bench(journals))
        case ExportFormat.CSV:
            frame = _table(journals)
            frame["token_times"] = [msgspec.json.encode(t).decode() for t in frame["token_times"]]
            return frame.to_csv(index=False).encode()
        case ExportFormat.PARQUET:
            if find_spec("pyarrow") is None:
                raise DependencyMissing(
                    "Parquet is written by pyarrow, which is not installed. Install it with "
                    "`pip install '.[parquet]'`, or export with --to csv."
                )
            file = io.BytesIO()
            _table(journals).to_parquet(file, engine="pyarrow", index=False)
            return file.getvalue()


def _table(journals: Journals) -> pd.DataFrame:
    """All requests, warm-up included, with the columns of ``requests.jsonl``."""
    whole = journals.requests
    numbers = ("prompt_tokens", "completion_tokens", "cached_tokens", "http_status")
    frame = whole.frame.astype(dict.fromkeys(numbers, "Int64"))
    frame["token_times"] = [stamps.tolist() for stamps in _stamps(journals, range(len(whole)))]
    return frame


def as_vllm_bench(journals: Journals) -> dict[str, Any]:
    """The fields that ``vllm bench serve`` writes (vLLM 0.33, ``benchmarks/serve.py``).

    Of the requests planned in the measured period. As there, times count from the sending and not
    from the planned instant, ITL are gaps between chunks, and a failed request has zeros;
    ``queue_times`` is the lag. ``generated_texts`` are empty, since no journal keeps them.
    """
    manifest, plan = journals.manifest, journals.manifest.plan
    scenario, load = plan.scenario, plan.scenario.load
    frame = journals.requests.frame
    at = frame["scheduled"]
    rows = np.flatnonzero((at >= load.warmup) & (at < plan.end) & frame["sent"].notna())
    requests = _Requests(journals, rows)
    backend = "openai-chat" if scenario.prompts.form is PromptForm.CHAT else "openai"
    model = manifest.server.get("model")
    return {
        "date": datetime.fromisoformat(manifest.started_utc).strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": backend,
        "backend": backend,
        "label": scenario.name,
        "model_id": model,
        "tokenizer_id": model,
        "num_prompts": len(rows),
        "request_rate": load.rate,
        "burstiness": _burstiness(load),
        "max_concurrency": load.max_in_flight,
        **requests.totals(),
        **requests.details(),
        **requests.peaks(),
        **requests.statistics(),
    }


def _burstiness(load: LoadSpec) -> float | None:
    """Shape of the gamma law of gaps; None where gaps follow no such law."""
    return load.burstiness if load.process in (Process.POISSON, Process.GAMMA) else None


def _stamps(journals: Journals, rows: Sequence[int] | NDArray[np.int64]) -> Iterator[Floats]:
    """Chunk stamps of each row."""
    offsets, times = journals.requests.token_offsets, journals.requests.token_times
    return (times[offsets[row] : offsets[row + 1]] for row in rows)


class _Requests:
    """Requests as ``vllm bench serve`` sees them."""

    def __init__(self, journals: Journals, rows: NDArray[np.int64]) -> None:
        frame = journals.requests.frame.iloc[rows]
        self._ok = (frame["outcome"] == Outcome.OK).to_numpy(np.bool_)
        self._lag = (frame["sent"] - frame["scheduled"]).to_numpy(np.float64)
        self._sent = frame["sent"].to_numpy(np.float64)
        self._end = frame["finished"].to_numpy(np.float64)
        self._latency = np.where(self._ok, self._end - self._sent, 0.0)
        first = frame["first_token"].to_numpy(np.float64)
        self._ttft = np.where(self._ok, first - self._sent, 0.0)
        self._stamps = [
            stamps if ok else stamps[:0]
            for ok, stamps in zip(self._ok, _stamps(journals, rows), strict=True)
        ]
        chunks = np.array([len(stamps) for stamps in self._stamps], np.float64)
        told = frame["completion_tokens"].to_numpy(np.float64)
        generated = np.where(np.isnan(told), chunks, told)
        self._outputs = np.where(self._ok, generated, 0).astype(np.int64)
        self._inputs = frame["prompt_tokens"].fillna(0).to_numpy(np.int64)
        self._errors = [
            "" if ok else str(e) for ok, e in zip(self._ok, frame["error"], strict=True)
        ]

    def totals(self) -> dict[str, Any]:
        """Counts and throughputs; the duration lasts until the last request ended."""
        asked, made = int(self._inputs[self._ok].sum()), int(self._outputs.sum())
        seconds = float(self._end.max() - self._sent.min()) if len(self._end) else 0.0
        done = int(self._ok.sum())

        def each_second(count: int) -> float:
            return count / seconds if seconds else 0.0

        return {
            "duration": seconds,
            "completed": done,
            "failed": len(self._ok) - done,
            "total_input_tokens": asked,
            "total_output_tokens": made,
            "request_throughput": each_second(done),
            "request_goodput": None,
            "output_throughput": each_second(made),
            "total_token_throughput": each_second(asked + made),
        }

    def details(self) -> dict[str, Any]:
        """One entry a request."""
        return {
            "input_lens": self._inputs.tolist(),
            "output_lens": self._outputs.tolist(),
            "ttfts": self._ttft.tolist(),
            "itls": [np.diff(stamps).tolist() for stamps in self._stamps],
            "latencies": self._latency.tolist(),
            "start_times": self._sent.tolist(),
            "queue_times": self._lag.tolist(),
            "generated_texts": [""] * len(self._ok),
            "errors": self._errors,
        }

    def peaks(self) -> dict[str, Any]:
        """The busiest second: chunks in it, and requests that were in flight at some time of it."""
        if not self._ok.any():
            return {"max_output_tokens_per_s": 0.0, "max_concurrent_requests": 0, "rtfx": 0.0}
        sent, end = self._sent[self._ok], self._end[self._ok]
        zero = sent.min()
        chunks = np.concatenate(self._stamps)
        tokens = np.bincount((chunks - zero).astype(np.int64))
        change = np.zeros(int(end.max() - zero) + 2, np.int64)
        np.add.at(change, (sent - zero).astype(np.int64), 1)
        np.add.at(change, (end - zero).astype(np.int64) + 1, -1)
        return {
            "max_output_tokens_per_s": float(tokens.max()),
            "max_concurrent_requests": int(np.cumsum(change).max()),
            "rtfx": 0.0,
        }

    def statistics(self) -> dict[str, float]:
        """Mean, median, standard deviation and p99 of what succeeded, in milliseconds."""
        several = self._ok & (self._outputs > 1)
        after_first = (self._latency - self._ttft)[several]
        gaps = [np.diff(stamps) for stamps in self._stamps]
        found: dict[str, float] = {}
        for name, seconds in {
            "ttft": self._ttft[self._ok],
            "tpot": after_first / (self._outputs[several] - 1),
            "itl": np.concatenate(gaps) if gaps else [],
            "e2el": self._latency[self._ok],
        }.items():
            found |= _described(name, seconds)
        return found


def _described(name: str, seconds: ArrayLike) -> dict[str, float]:
    values = 1000 * np.asarray(seconds, np.float64)
    if not len(values):
        values = np.zeros(1)  # as vLLM has it
    return {
        f"mean_{name}_ms": float(values.mean()),
        f"median_{name}_ms": float(np.median(values)),
        f"std_{name}_ms": float(values.std()),
        f"p99_{name}_ms": float(np.percentile(values, 99)),
    }
