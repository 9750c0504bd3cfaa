"""Runs of every workflow of the chaos test, with a worker that dies, and with answers and signals; on any log."""

from __future__ import annotations

import asyncio
from typing import Any

from streams.kernel import bodies as ev
from streams.kernel import commands as cmd
from streams.log.port import Log
from tests.chaos.app import app
from tests.runtime.history import History, resume, signal
from tests.runtime.lab import Lab

__all__ = ["EVENTS", "STARTS", "app", "ends", "read_only", "tell"]

STARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chain": ("chain", {"number": 1, "ms": [5, 5, 30]}),
    "fan": ("fan", {"ms": [30, 5, 10]}),
    "race": ("race", {"ms": [5, 40, 40]}),
    "nap": ("nap", {"seconds": [0.05, 0.01]}),
    "ask": ("ask", {"questions": 2}),
    "both": ("ask_both", {}),
    "listen": ("listen", {"count": 3}),
    "stopped": ("stopped", {"number": 7, "ms": 400}),
    "forced": ("listen", {"count": 1}),
    "buy": ("buy", {"order": "o-1", "amount": 3, "ms": 10}),
    "flaky": ("flaky", {}),
    "doomed": ("doomed", {"how": "task"}),
    "fails": ("doomed", {"how": "fail"}),
    "late": ("late", {"seconds": 0.05}),
    "grown": ("grown", {}),
    "story": ("story", {"rounds": 2, "width": 3, "done": 0, "lines": []}),
    "open": ("ask", {"questions": 1}),
    "waits": ("listen", {"count": 2}),
}
OPEN = ("open", "waits")
"""Runs that are left waiting."""

EVENTS = set(
    "run.started op.scheduled op.completed op.failed timer.fired interrupt.answered signal.received signal.taken "
    "attempt.failed op.withdrawn effect.emitted cancel.requested state.advanced run.owned run.completed run.failed "
    "run.cancelled".split()
)
"""The types of events that the stories lead to for certain."""


async def tell(lab: Lab) -> None:
    """Play all stories; the worker dies in the middle."""
    history = lab.history
    first = await lab.worker(stop_seconds=0.2)
    await history.send("listen", signal("word", 1))  # before its run exists
    for run_id, (workflow, value) in STARTS.items():
        await history.start(workflow, run_id, value)
    await history.seen("stopped", ev.OpScheduled, 2)
    await history.seen("ask", ev.OpScheduled)
    await first.kill()
    await lab.worker()
    await history.send("stopped", cmd.Cancel())
    await history.send("forced", cmd.Cancel(force=True))
    await history.send("waits", signal("word", 1))
    await history.send_all([("listen", signal("word", number)) for number in (2, 3)])
    await _answer(history)
    await history.ended(*(run_id for run_id in STARTS if run_id not in OPEN))


async def _answer(history: History) -> None:
    await history.seen("both", ev.OpScheduled, 2)
    await history.send_all([("both", resume(1, "right")), ("both", resume(2, "left")), ("ask", resume(1))])
    await history.seen("ask", ev.OpScheduled, 2)
    await history.send_all([("ask", resume("no number")), ("ask", resume(2))])
    await history.seen("open", ev.OpScheduled)


async def ends(log: Log) -> dict[tuple[str, int], Any]:
    """The ends of all topics, pending records included; on a broker also of those that other tests have left."""
    found = {}
    for topic, info in (await log.describe_topics(await log.list_topics())).items():
        for number in range(info.partitions):
            found[topic, number] = await log.span(topic, number, "read_uncommitted")
    return found


class _ReadOnly:
    """A log that gives no way to write, or to take part."""

    def __init__(self, log: Any) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        allowed = {"url", "describe_topics", "list_topics", "span", "reader", "group_offsets"}
        assert name in allowed, f"a shadow replay called {name}"
        return getattr(self._log, name)


def read_only(log: Log) -> Any:
    """The log, which fails at everything but a read."""
    return _ReadOnly(log)


async def quiet(lab: Lab) -> None:
    """Stop all workers."""
    for running in lab.running:
        if not running.task.done():
            await running.stop()
    await asyncio.sleep(0)
