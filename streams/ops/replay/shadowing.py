"""Shadow replay: real histories against new code, run by run. It only reads; no task runs and nothing is published."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import aclosing
from datetime import datetime

from streams.authoring.app import App, AppDefinitions
from streams.client.reading import Progress
from streams.errors import UsageError
from streams.kernel.events import TYPES, Event
from streams.kernel.run import Status
from streams.log.port import Log
from streams.ops.replay.histories import MEMORY_BYTES_MAX, Filter, History, read_histories
from streams.ops.replay.redrive import World, redrive
from streams.ops.replay.verdict import Report, Shadowed, Verdict
from streams.runtime.guard import DriveGuard
from streams.runtime.settings import WorkerSettings
from streams.wire.app_codec import make_codec
from streams.wire.partitioner import partition_of
from streams.wire.topics import topics_of

__all__ = ["shadow", "shadow_history"]

OnRun = Callable[[Shadowed], None]


_DRIVE_SECONDS = WorkerSettings().drive_seconds


def shadow_history(app: App, history: Collection[Event], *, drive_seconds: float = _DRIVE_SECONDS) -> Shadowed:
    """The verdict on one history that is at hand: all events of a run, in order. Records without a seq are left out.

    `drive_seconds`: how long its code may run without waiting for anything.
    """
    guard = DriveGuard(drive_seconds)
    guard.start()
    try:
        world = World(AppDefinitions(app), make_codec(app.annotations, app.named_types), guard)
        return redrive(world, [event for event in history if event.seq is not None])
    finally:
        guard.close()


async def shadow(
    log: Log,
    app: App,
    *,
    name: str | None = None,
    runs: Collection[str] = (),
    since: datetime | None = None,
    status: Status | str | None = None,
    limit: int | None = None,
    memory_bytes_max: int = MEMORY_BYTES_MAX,
    on_run: OnRun | None = None,
    progress: Progress | None = None,
) -> Report:
    """Run the code of `app` against the recorded histories, and say of each run what would have become of it.

    `name` is the app in the log where it is not that of `app`. `runs` narrows it down to these ids, `since` to runs
    that began then or later, `status` to those that stand there, `limit` to so many. `on_run` gets every verdict.
    """
    topics = topics_of(name or app.name)
    found = await log.describe_topics([topics.events])
    if topics.events not in found:
        raise UsageError(f"app {topics.app!r} has no topics in {log.url}; --app names the app whose runs are meant")
    keys = {run_id.encode() for run_id in runs}
    count = found[topics.events].partitions
    numbers = sorted({partition_of(key, count) for key in keys}) if keys else list(range(count))
    wanted = Filter(keys, 0 if since is None else round(since.timestamp() * 1_000_000))
    report = Report()
    guard = DriveGuard(_DRIVE_SECONDS)
    guard.start()
    try:
        world = World(AppDefinitions(app), make_codec(app.annotations, app.named_types), guard)
        for place, number in enumerate(numbers):
            shown = None if progress is None else _part(progress, place, len(numbers))
            histories = read_histories(log, topics.events, number, wanted, bytes_max=memory_bytes_max, progress=shown)
            async with aclosing(histories):
                async for history in histories:
                    if limit is not None and report.runs >= limit:
                        report.limited = True
                        return report
                    one = _one(world, history, report)
                    if status is None or one.status == status:
                        report.add(one)
                        if on_run is not None:
                            on_run(one)
                    await asyncio.sleep(0)
    finally:
        guard.close()
    return report


def _one(world: World, history: History, report: Report) -> Shadowed:
    events = history.decoded()
    report.seen |= {TYPES[type(event.body)] for event in events}
    if events:
        return redrive(world, events, history.flaw)
    return Shadowed(history.run_id, "", "", 0, "unknown", 0, Verdict.NOT_COMPARABLE, reason=history.flaw or "no events")


def _part(progress: Progress, place: int, count: int) -> Progress:
    """The progress of one partition as a share of all."""

    def report(done: int, total: int) -> None:
        progress(round((place + done / max(total, 1)) * 1_000), count * 1_000)

    return report
