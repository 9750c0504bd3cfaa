"""`streams replay rewind` on the memory log and the sqlite log, and what it takes for a place."""

from __future__ import annotations

import pytest

from streams.errors import UsageError
from streams.ops.replay import Goal, read_goal, read_time
from tests.replay import rewind_cases
from tests.runtime.lab import Lab, case
from tests.runtime.rewinding import app, fresh


@pytest.fixture(autouse=True)
def _fresh() -> None:
    fresh()


@case(app)
async def test_f21_to_the_start_changes_nothing(lab: Lab):
    await rewind_cases.to_the_start_changes_nothing(lab)


@case(app)
async def test_f21_to_a_time_is_what_was_asked_for(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    await rewind_cases.to_a_time_is_what_was_asked_for(lab, monkeypatch)


@case(app)
async def test_f21_forward_moves_are_refused(lab: Lab):
    await rewind_cases.forward_moves_are_refused(lab)


@case(app)
async def test_workers_are_in_the_way(lab: Lab):
    await rewind_cases.workers_are_in_the_way(lab)


@case(app)
async def test_commands_of_runs_that_are_gone_are_counted(lab: Lab):
    await rewind_cases.expired_ones_are_counted(lab)


NOW = 1_800_000_000_000_000


@pytest.mark.parametrize(
    ("text", "goal"),
    [
        ("start", Goal()),
        ("0", Goal(offset=0)),
        ("17", Goal(offset=17)),
        ("90s", Goal(at_us=NOW - 90_000_000)),
        ("30m", Goal(at_us=NOW - 1_800_000_000)),
        ("2h", Goal(at_us=NOW - 7_200_000_000)),
        ("7d", Goal(at_us=NOW - 604_800_000_000)),
        ("2020-01-01T00:00:00Z", Goal(at_us=1_577_836_800_000_000)),
        ("2020-01-01T02:00:00.5+02:00", Goal(at_us=1_577_836_800_500_000)),
    ],
)
def test_places(text: str, goal: Goal) -> None:
    assert read_goal(text, NOW) == goal


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("soon", "is no time"),
        ("-1", "is no time"),
        ("", "is no time"),
        ("2h30m", "is no time"),
        ("2020-01-01T00:00:00", "names no zone"),
        ("2020-01-01", "names no zone"),
        ("2999-01-01T00:00:00Z", "in the future"),
    ],
)
def test_no_places(text: str, part: str) -> None:
    with pytest.raises(UsageError, match=part):
        read_time(text, NOW)
