"""Where STREAMS_SKIPS_FAIL is set (.ci/run), a skipped test that needs a real service counts as a failure."""

from __future__ import annotations

import os

import pytest

pytest_plugins = ["tests.broker"]

SERVICES = {"kafka", "postgres"}


def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not os.environ.get("STREAMS_SKIPS_FAIL"):
        return
    missed = [report.nodeid for report in reporter.stats.get("skipped", ()) if SERVICES & set(report.keywords)]
    if missed:
        reporter.write_line(f"\nnot run for want of a service, which fails here: {', '.join(missed)}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
