"""A report: write it, ask a person, and store it once, whatever crashes in between.

    streams demo report                       # the whole story, with two kills, in a folder of its own

or by hand, in two terminals:

    streams worker examples/report.py:app
    streams start report --run-id r-1 --input '{"topic": "sales", "period": "2026-09"}'
    streams resume r-1 --value '{"approved": true}'

A graph: `generate` and `write` are nodes, which do I/O and may be repeated; `approve` is a flow, which is pure and may
wait. The write is keyed by what the report is about, not by who writes it or when: a repeat finds its own row and
changes nothing, and another text under the same key is refused and kept for a person to look at.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from streams import App, Context, Fail, Node, Retry, TaskContext

app = App("reports")


@dataclass(frozen=True)
class Decision:
    """The answer to the question whether to store the report."""

    approved: bool
    note: str = ""


@dataclass(frozen=True)
class Report:
    """The state of the graph. A run is started with `topic` and `period`; the nodes fill in the rest."""

    topic: str
    period: str
    remark: str = ""
    text: str = ""
    decision: Decision | None = None
    status: str = "draft"

    @property
    def operation_id(self) -> str:
        """One report of a topic and a period is stored, and no second."""
        return f"report/{self.topic}/{self.period}"


report = app.graph("report", state=Report, version=1)


@report.node
async def generate(_ctx: TaskContext, state: Report) -> dict[str, Any]:
    """Stands for the agent's work: searches, a model, tools. Its text is recorded, so it is never made twice."""
    return {"text": f"Report on {state.topic} in {state.period}. {state.remark}".strip()}


@report.flow
async def approve(ctx: Context, state: Report) -> dict[str, Any]:
    question = {"question": "Store this report?", "operation_id": state.operation_id, "text": state.text}
    decision = await ctx.interrupt(question, answer=Decision, key="approval")
    return {"decision": decision, "status": "approved" if decision.approved else "rejected"}


@report.node(retry=Retry(max_attempts=5, initial=0.2, on_exhausted="park"), timeout=30)
def write(ctx: TaskContext, state: Report) -> dict[str, Any]:
    """Store it under its operation id. The table's own key is what makes a repeat harmless."""
    digest = hashlib.sha256(state.text.encode()).hexdigest()
    with closing(connect()) as db, db:
        row = (state.operation_id, state.topic, state.period, state.text, digest)
        if db.execute("INSERT OR IGNORE INTO reports VALUES (?, ?, ?, ?, ?)", row).rowcount == 1:
            return {"status": "inserted"}
        stored = db.execute("SELECT digest FROM reports WHERE operation_id = ?", row[:1]).fetchone()[0]
        if stored == digest:
            return {"status": "already_exists"}
        db.execute("INSERT OR IGNORE INTO conflicts VALUES (?, ?, ?, ?)", (row[0], ctx.run_id, state.text, digest))
    raise Fail("OPERATION_CONFLICT", f"another text is stored under {state.operation_id!r}; this one is in `conflicts`")


def after_approval(state: Report) -> Node[Report, Report] | None:
    return write if state.status == "approved" else None


report.edge(generate, approve)
report.route(approve, after_approval)

# ---- The table ------------------------------------------------------------------------------------------------------

SCHEMA = """
CREATE TABLE IF NOT EXISTS reports (
    operation_id TEXT PRIMARY KEY, topic TEXT NOT NULL, period TEXT NOT NULL, text TEXT NOT NULL, digest TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS conflicts (
    operation_id TEXT NOT NULL, run_id TEXT NOT NULL, text TEXT NOT NULL, digest TEXT NOT NULL,
    PRIMARY KEY (operation_id, run_id, digest)
);
"""


def connect() -> sqlite3.Connection:
    """The database of the reports, at REPORTS_DB or in reports.db."""
    db = sqlite3.connect(os.environ.get("REPORTS_DB", "reports.db"), timeout=10)
    db.executescript(SCHEMA)
    return db


def stored() -> list[tuple[str, str]]:
    """What is in the table, for whoever wants to count."""
    with closing(connect()) as db:
        return db.execute("SELECT operation_id, text FROM reports ORDER BY operation_id").fetchall()
