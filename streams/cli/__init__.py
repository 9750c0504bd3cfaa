"""The command line: the only place that builds real adapters."""

from __future__ import annotations

from streams.cli.entry import main

__all__ = ["main"]
