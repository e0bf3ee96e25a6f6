"""``python -m harness`` is ``bench``."""

from __future__ import annotations

from harness.cli import main

main()
