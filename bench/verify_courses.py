"""How fast a log is verified: one course fills it with runs that have ended, the next one verifies it."""

from __future__ import annotations

from bench import app
from bench.measure import Meter
from streams.cli.logs import open_log
from streams.ops.verify import verify

__all__ = ["verify_log"]


async def verify_log(url: str) -> dict[str, float]:
    """All of the app's partitions. Both rates count reading, decoding, folding and comparing.

    The one by core is by CPU time of all threads: what one core does that does nothing else.
    """
    log = await open_log(url)
    try:
        meter = Meter()
        report = await verify(log, app.app.name)
        spent = meter.per_run(report.events)
    finally:
        await log.close()
    if not report.good or not report.events:
        raise AssertionError(f"the log is not right: {report.divergences[:1] or 'it is empty'}")
    return {
        "events_per_s": spent["runs_per_s"],
        "events_per_core_s": 1e6 / spent["cpu_us_per_run"],
        "events": float(report.events),
        "checkpoints": float(report.checkpoints),
    }
