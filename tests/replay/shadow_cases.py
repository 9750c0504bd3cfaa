"""What a shadow replay of a whole app must do, on any log."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

from streams import App
from streams.ops.replay import Shadowed, Verdict, shadow
from tests.replay.stories import EVENTS, STARTS, ends, quiet, read_only, tell
from tests.runtime.lab import Lab

__all__ = ["changed_code_is_told", "filters_narrow_it_down", "memory_is_bounded", "unchanged_code_is_the_same"]


async def unchanged_code_is_the_same(lab: Lab) -> None:
    """Every history is the same, and no topic has changed."""
    await tell(lab)
    await quiet(lab)
    before = await ends(lab.log)
    found: list[Shadowed] = []
    report = await shadow(read_only(lab.log), lab.app, on_run=found.append)
    assert await ends(lab.log) == before
    assert report.same, str(report)
    assert Counter(one.run_id for one in found) == Counter([*STARTS])
    assert report.counts == {Verdict.SAME: len(STARTS), **dict.fromkeys(list(Verdict)[1:], 0)}
    assert report.seen >= EVENTS
    waiting = {one.run_id: one.ahead for one in found if one.status == "waiting"}
    assert waiting == {"open": "goes on", "waits": "goes on"}


async def changed_code_is_told(lab: Lab) -> None:
    """An app without the workflows would block every run; the report names three of each kind."""
    await tell(lab)
    empty = App(lab.app.name)
    empty.signal("word", int)
    report = await shadow(read_only(lab.log), empty)
    assert report.counts[Verdict.WOULD_BLOCK] == report.runs == len(STARTS)
    assert not report.same
    assert {group.kind for group in report.groups} == {"WORKFLOW_UNKNOWN"}
    doomed = next(group for group in report.groups if group.workflow == "listen")
    assert (doomed.count, len(doomed.examples)) == (3, 3)
    assert sum(group.count for group in report.groups) == len(STARTS)


async def memory_is_bounded(lab: Lab) -> None:
    """With less memory it takes more passes, and tells each run once all the same."""
    await tell(lab)
    for bound in (2_000, 6_000, 20_000):
        found: list[Shadowed] = []
        report = await shadow(read_only(lab.log), lab.app, memory_bytes_max=bound, on_run=found.append)
        assert Counter(one.run_id for one in found) == Counter([*STARTS])
        given_up = [one for one in found if one.verdict is Verdict.NOT_COMPARABLE]
        assert all(f"larger than the {bound:,} bytes" in one.reason for one in given_up)
        assert report.counts[Verdict.SAME] == len(STARTS) - len(given_up)
        assert bool(given_up) == (bound == 2_000), (bound, given_up)


async def filters_narrow_it_down(lab: Lab) -> None:
    """By run, time, status and number."""
    began = datetime.now(UTC)
    await tell(lab)
    log = read_only(lab.log)
    some = await shadow(log, lab.app, runs=["ask", "buy", "nobody"])
    assert some.runs == 2
    assert (await shadow(log, lab.app, since=began)).runs == len(STARTS)
    assert (await shadow(log, lab.app, since=datetime.now(UTC))).runs == 0
    assert not (await shadow(log, lab.app, since=datetime.now(UTC))).same  # nothing was shown
    assert (await shadow(log, lab.app, status="waiting")).runs == 2
    limited = await shadow(log, lab.app, limit=5)
    assert (limited.runs, limited.limited) == (5, True)
