"""What ships for tests: `crash_everywhere`, an event loop in virtual time, and the simulator that runs on it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streams.testing.crash import CrashTestFailed, Finding, Parked, Report, Scenario, crash_everywhere

__all__ = ["CrashTestFailed", "Finding", "Parked", "Report", "Scenario", "crash_everywhere"]


def __getattr__(name: str) -> Any:
    """Load what is asked for: the pytest plugin lies in this package, and is loaded into every run of pytest."""
    if name in __all__:
        return getattr(import_module("streams.testing.crash"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
