"""`python -m vllm_keep_reset`: whether the plugin knows the vLLM installed beside it."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from vllm_keep_reset import __version__
from vllm_keep_reset.versions import Finding, examine, record


def main() -> None:
    """Print what the plugin finds here, as text or as one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m vllm_keep_reset", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--record",
        action="store_true",
        help="record the installed vLLM as known (for maintainers, after the tests passed on it)",
    )
    arguments = parser.parse_args()
    if arguments.record:
        sys.stdout.write(f"recorded vLLM {record()}\n")
        return
    finding = examine()
    sys.stdout.write(_as_json(finding) if arguments.json else _as_text(finding))


def _as_json(finding: Finding) -> str:
    values = asdict(finding) | {"status": finding.status.value, "plugin": __version__}
    return json.dumps(values) + "\n"


def _as_text(finding: Finding) -> str:
    lines = [f"vllm-keep-reset {__version__}, vLLM {finding.vllm}: {finding.status.value}"]
    return "".join(f"{line}\n" for line in (*lines, *(f"  {d}" for d in finding.differences)))


if __name__ == "__main__":
    main()
