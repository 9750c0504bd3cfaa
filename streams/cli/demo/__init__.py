"""The verb `demo`: an example with its processes, killed at the worst moments, in a folder of its own."""

from __future__ import annotations

from streams.cli.demo.verb import add

__all__ = ["add"]
