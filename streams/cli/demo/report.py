"""The story of a report: two workers are killed, one row is written."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from streams.cli.demo.play import Ending, Play
from streams.cli.demo.stage import Child, Stuck

__all__ = ["tell"]

RUN = "r-2026-09"
INPUT = {"topic": "sales", "period": "2026-09", "remark": "Better than August."}
Rows = list[tuple[str, str]]

AFTER_WRITING = "task.returned/report.write"


async def tell(play: Play) -> Ending:
    """Play it and say what came of it."""
    say, stage = play.narrator, play.stage
    say.title(
        "streams demo report", "workers are killed at the worst moments; the report is written once, or not at all"
    )
    database = str(stage.folder / "reports.db")
    stage.environment["REPORTS_DB"] = os.environ["REPORTS_DB"] = database
    async with play.opened("report") as module:
        worker = stage.worker(1, "report")
        say.step(f"Worker 1 runs the app `{play.app}`.")
        await play.start("report", RUN, INPUT)
        question = await play.asked(RUN, worker)
        say.step(
            f"Run {RUN} was started: the report is generated.",
            note="Before it is stored, a person is asked. A waiting run holds no worker.",
        )
        stage.kill(worker)
        say.kill(
            f"kill -9 {worker.pid}: worker 1 is gone.",
            note=f"Nobody is at work now. The question is in the log.{play.silence}",
        )
        approved = await play.answer(RUN, question)
        worker = await (_write(play, module.stored) if approved else _drop(play))
        ended = await play.ended(RUN, worker)
        say.done(f"The run is {ended['status']}; its result says: {ended['result']['status']}.")
        await play.timeline(RUN)
        return await _ending(play, module.stored(), ended, approved=approved)


async def _write(play: Play, stored: Callable[[], Rows]) -> Child:
    say, stage = play.narrator, play.stage
    second = stage.worker(2, "report", crash_at=AFTER_WRITING)
    say.step("Worker 2 takes over, finds the answer, and writes the row.")
    await stage.until_killed(second, "between the write and its record")
    if len(stored()) != 1:
        raise Stuck(f"worker 2 was to be killed after its write, but the table has {len(stored())} rows")
    say.kill(
        f"kill -9 {second.pid}: worker 2 is gone, at the worst moment.",
        note="The row is in the table; nothing in the log says so.",
    )
    third = stage.worker(3, "report")
    say.step("Worker 3 takes over and writes again, under the same operation id: the row is there already.")
    return third


async def _drop(play: Play) -> Child:
    second = play.stage.worker(2, "report")
    play.narrator.step("Worker 2 takes over and finds the answer: nothing is written.")
    return second


async def _ending(play: Play, rows: Rows, ended: dict[str, Any], *, approved: bool) -> Ending:
    effects = await play.effects()
    play.narrator.facts("what is in the table `reports`", dict(rows) or {"rows": 0})
    facts = {**ended, "worker_kills": play.stage.kills, "effects": effects, "rows": len(rows)}
    found = {**facts, "result": (ended["result"] or {}).get("status")}
    promised = {
        "status": "completed",
        "result": "already_exists" if approved else "rejected",
        "worker_kills": 2 if approved else 1,
        "rows": 1 if approved else 0,
    }
    return Ending.of(facts, promised, found)
