"""The story of a report that a subscriber stores in PostgreSQL: killed with the row written, it writes it once."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from streams.cli.demo.play import Ending, Play
from streams.cli.demo.stage import Stuck

__all__ = ["tell"]

EXAMPLE = "report_postgres"
EFFECT = "reports"
RUN = "r-2026-09"
AFTER_WRITING = f"effect.called/{EFFECT}"


async def tell(play: Play) -> Ending:
    """Play it and say what came of it."""
    say, stage = play.narrator, play.stage
    await play.prepare_ledger()
    say.title(
        "streams demo report --via subscriber",
        "a row and the note that it was written are one transaction; the subscriber is killed in the middle of it",
    )
    # The table stays, unlike the demo: each one has a topic of its own.
    topic = f"sales-{secrets.token_hex(3)}"
    async with play.opened(EXAMPLE) as module:
        await module.make_table(stage.ledger)
        worker = stage.worker(1, EXAMPLE)
        say.step(f"Worker 1 runs the app `{play.app}`.")
        await play.start("report", RUN, {"topic": topic, "period": "2026-09", "remark": "Better than August."})
        asked = await play.asked(RUN, worker)
        say.step(f"Run {RUN} was started: the report is generated. Before it is stored, a person is asked.")
        stage.kill(worker)
        say.kill(
            f"kill -9 {worker.pid}: worker 1 is gone.",
            note=f"Nobody is at work now. The question is in the log.{play.silence}",
        )
        approved = await play.answer(RUN, asked)
        worker = stage.worker(2, EXAMPLE)
        if approved:
            await _write(play, module, topic)
        else:
            say.step("Worker 2 takes over and finds the answer: nothing is asked for.")
        ended = await play.ended(RUN, worker)
        say.done(f"The run is {ended['status']}; its result says: {ended['result']['status']}.")
        await play.timeline(RUN)
        return await _ending(play, await module.stored(stage.ledger, topic), ended, approved=approved)


async def _write(play: Play, module: Any, topic: str) -> None:
    say, stage = play.narrator, play.stage
    say.step("Worker 2 takes over, finds the answer, and asks for the row. The request waits in the log.")
    first = stage.subscriber(1, EXAMPLE, crash_at=AFTER_WRITING)
    await stage.until_killed(first, "after its write and before its commit")
    if rows := await module.stored(stage.ledger, topic):
        raise Stuck(f"subscriber 1 was to be killed before its commit, but the table has {len(rows)} rows")
    say.kill(
        f"kill -9 {first.pid}: subscriber 1 is gone, with the row written and nothing committed.",
        note=f"PostgreSQL takes back both, the row and the claim.{play.silence}",
    )
    stage.subscriber(2, EXAMPLE)
    say.step("Subscriber 2 writes the row, and notes it in the ledger, in one transaction; then it replies.")


async def _ending(play: Play, rows: list[tuple[str, str]], ended: dict[str, Any], *, approved: bool) -> Ending:
    play.narrator.facts("what is in the table `reports`", dict(rows) or {"rows": 0})
    facts = {
        **ended,
        "worker_kills": play.stage.kills,
        "subscriber_kills": play.stage.subscriber_kills,
        "effects": await play.effects(),
        "rows": len(rows),
    }
    found = {**facts, "result": (ended["result"] or {}).get("status")}
    return Ending.of(facts, _promised(approved=approved), found)


def _promised(*, approved: bool) -> Mapping[str, Any]:
    return {
        "status": "completed",
        "result": "inserted" if approved else "rejected",
        "worker_kills": 1,
        "subscriber_kills": 1 if approved else 0,
        "effects": 1 if approved else 0,
        "rows": 1 if approved else 0,
    }
