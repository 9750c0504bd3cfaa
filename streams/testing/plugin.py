"""The pytest plugin: a fixture that lets a worker die everywhere, and names each point at which that changes something.

Only pytest loads this module. Until a test asks for the fixture it costs what `import streams` does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from streams.testing.crash import Report

__all__ = ["crash_everywhere", "pytest_addoption"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options that repeat or bound what the tests ask for."""
    group = parser.getgroup("streams", "crash tests of streams")
    group.addoption(
        "--crash-only",
        action="append",
        metavar="POSITION",
        help="let workers die at this position only, as a report names it (such as commit.after:3); may be repeated",
    )
    group.addoption(
        "--crash-points-max",
        type=int,
        metavar="N",
        help="let workers die at so many sampled positions of each test, at most",
    )


@pytest.fixture
def crash_everywhere(request: pytest.FixtureRequest) -> Callable[..., Report]:
    """Call it as `streams.testing.crash_everywhere`: the test fails where a crash changes something.

    Each position that fails is a sub-test of its name, where pytest has them (9.0 and later, or pytest-subtests).
    """
    config = request.config

    def run(app: Any, scenario: Any, **options: Any) -> Report:
        from streams.testing.crash import crash_everywhere as run_everywhere  # noqa: PLC0415 - only where it is asked for

        asked = {"only": config.getoption("crash_only"), "points_max": config.getoption("crash_points_max")}
        options |= {name: value for name, value in asked.items() if value is not None}
        report = run_everywhere(app, scenario, **options)
        _tell(request, report)
        return report

    return run


def _tell(request: pytest.FixtureRequest, report: Report) -> None:
    if report.ok:
        return
    try:
        subtests = request.getfixturevalue("subtests")
    except pytest.FixtureLookupError:
        pytest.fail(str(report), pytrace=False)
    for position in report.failed:
        with subtests.test(position):
            pytest.fail("\n".join(str(found) for found in report.findings if found.position == position), pytrace=False)
