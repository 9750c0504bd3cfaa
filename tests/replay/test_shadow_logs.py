"""A shadow replay of a whole app, on the memory log and the sqlite log."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams.errors import UsageError
from streams.ops.replay import Shadowed, Verdict, shadow
from tests.replay import shadow_cases
from tests.replay.stories import STARTS, app, tell
from tests.runtime.history import send_raw
from tests.runtime.lab import Lab, case


@pytest.fixture(autouse=True)
def _outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAOS_OUTSIDE", str(tmp_path / "outside"))


@case(app)
async def test_unchanged_code_is_the_same_and_nothing_is_written(lab: Lab):
    await shadow_cases.unchanged_code_is_the_same(lab)


@case(app)
async def test_f14_code_without_the_workflows_would_block_them(lab: Lab):
    await shadow_cases.changed_code_is_told(lab)


@case(app)
async def test_memory_is_bounded(lab: Lab):
    await shadow_cases.memory_is_bounded(lab)


@case(app, "memory")
async def test_filters_narrow_it_down(lab: Lab):
    await shadow_cases.filters_narrow_it_down(lab)


@case(app, "memory")
async def test_a_run_with_a_record_that_cannot_be_read_is_not_compared(lab: Lab):
    await tell(lab)
    lab.unchecked = True
    await send_raw(lab.log, lab.topics.events, lab.history.partition("waits"), b"waits", b"garbage")
    await send_raw(lab.log, lab.topics.events, lab.history.partition("nobody"), b"nobody", b"\xc3\x01garbage")
    found: dict[str, Shadowed] = {}
    report = await shadow(lab.log, lab.app, on_run=lambda one: found.__setitem__(one.run_id, one))
    assert report.counts[Verdict.NOT_COMPARABLE] == 2
    assert report.counts[Verdict.SAME] == len(STARTS) - 1
    assert "cannot be read" in found["waits"].reason
    assert found["nobody"].verdict is Verdict.NOT_COMPARABLE


@case(app, "memory")
async def test_an_app_that_is_not_there_is_said(lab: Lab):
    with pytest.raises(UsageError, match="app 'nobody' has no topics"):
        await shadow(lab.log, lab.app, name="nobody")
