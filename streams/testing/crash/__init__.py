"""Crash tests for users: a workflow of theirs, with a worker that dies at every single point."""

from streams.testing.crash.everywhere import Progress, crash_everywhere
from streams.testing.crash.report import CrashTestFailed, Finding, Parked, Report
from streams.testing.crash.scenario import Scenario, Script

__all__ = ["CrashTestFailed", "Finding", "Parked", "Progress", "Report", "Scenario", "Script", "crash_everywhere"]
