"""Measures what losing the prefix cache costs a vLLM replica, and how it recovers."""

from __future__ import annotations

__version__ = "0.1.0"
