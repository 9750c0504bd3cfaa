"""How fast checkpoints are made anew: one course fills a log with runs that have ended, the next one rebuilds it."""

from __future__ import annotations

from bench import app
from bench.measure import Meter, peak_mb
from streams.cli.logs import open_log
from streams.log.port import Log, NewRecord, TopicPartition
from streams.ops.rebuild import rebuild
from streams.runtime.restore import read_range
from streams.wire.topics import Topics, topics_of

__all__ = ["rebuild_log"]


async def rebuild_log(url: str) -> dict[str, float]:
    """On paper first: reading, decoding, folding and encoding alone. Then in earnest; CPU is of all threads."""
    log = await open_log(url)
    try:
        await _lose_checkpoints(log, topics_of(app.app.name))
        meter = Meter()
        paper = await rebuild(log, app.app.name, dry_run=True)
        folded = meter.per_run(paper.total("events"))
        meter = Meter()
        report = await rebuild(log, app.app.name)
        spent = meter.per_run(report.total("events"))
    finally:
        await log.close()
    if not report.good or not report.total("events"):
        raise AssertionError(f"the log is not right: {report.plain()}")
    return {
        "events_per_s": spent["runs_per_s"],
        "events_per_core_s": 1e6 / spent["cpu_us_per_run"],
        "cpu_us_per_event": spent["cpu_us_per_run"],
        "dry_events_per_s": folded["runs_per_s"],
        "dry_cpu_us_per_event": folded["cpu_us_per_run"],
        "events": float(report.total("events")),
        "written": float(report.total("written")),
        "peak_mb": peak_mb(),
    }


async def _lose_checkpoints(log: Log, topics: Topics) -> None:
    """Nulls for all of them, so that all have to be written again."""
    count = (await log.describe_topics([topics.checkpoints]))[topics.checkpoints].partitions
    for number in range(count):
        span = await log.span(topics.checkpoints, number)
        place = TopicPartition(topics.checkpoints, number)
        keys = {record.key async for record in read_range(log, place, span.start, span.end)}
        await log.append([NewRecord(*place, key, None) for key in keys])
