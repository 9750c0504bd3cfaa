"""Where STREAMS_SKIPS_FAIL is set (.ci/run), a test that was skipped for want of a service fails the session.

So does a whole run in which not one test on a real broker, or on a real PostgreSQL, has passed: it would prove
nothing of the product.
"""

from __future__ import annotations

import os

import pytest

pytest_plugins = ["tests.broker", "tests.postgres"]

SERVICES = {"kafka": "broker", "postgres": "PostgreSQL"}


def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not os.environ.get("STREAMS_SKIPS_FAIL"):
        return
    missed = [report.nodeid for report in reporter.stats.get("skipped", ()) if SERVICES.keys() & set(report.keywords)]
    if missed:
        reporter.write_line(f"\nnot run for want of a service, which fails here: {', '.join(missed)}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    passed = {name for report in reporter.stats.get("passed", ()) for name in report.keywords}
    for service in SERVICES.keys() - passed if is_whole(session.config) else ():
        reporter.write_line(f"\nno test on a real {SERVICES[service]} has passed, which fails here", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def is_whole(config: pytest.Config) -> bool:
    """Whether nothing was chosen: who asks for some tests gets those."""
    chosen = [config.getoption(name) for name in ("keyword", "markexpr", "deselect", "ignore", "ignore_glob")]
    return (
        not any(chosen) and not config.getoption("collectonly") and set(config.args) == set(config.getini("testpaths"))
    )
