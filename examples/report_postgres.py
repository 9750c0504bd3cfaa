"""A report that is stored in PostgreSQL exactly once: its row and the note that it was done are one transaction.

    python examples/report_postgres.py postgresql://streams@127.0.0.1:5432/streams      # makes the table
    streams worker examples/report_postgres.py:app
    streams subscribe examples/report_postgres.py:app --ledger postgresql://streams@127.0.0.1:5432/streams
    streams start report --run-id r-1 --input '{"topic": "sales", "period": "2026-09"}'
    streams resume r-1 --value '{"approved": true}'

Beside examples/report.py, where a node writes the row itself, and finds its own row when it has to write again. Here
the flow `store` asks a subscriber for it. Its ledger lies in the same database as the table, so the handler is given
the transaction in which the ledger notes the outcome: it writes, and both are there or none of it. No key in the table
is needed for that. Another text for the same topic and period is told from a repeat by the ledger: it is never written,
and stays visible (`streams ledger show report/sales/2026-09 --effect reports`).
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from streams import App, Context, EffectContext, Fail, Node, RequestFailed, TaskContext

app = App("reports-in-postgres")


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


@dataclass(frozen=True)
class Row:
    """What is to be stored."""

    topic: str
    period: str
    text: str


reports = app.effect("reports", Row, reply=str)
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


@report.flow
async def store(ctx: Context, state: Report) -> dict[str, Any]:
    row = Row(state.topic, state.period, state.text)
    try:
        return {"status": await ctx.request(reports, row, idempotency_key=state.operation_id)}
    except RequestFailed as refused:
        return {"status": f"refused: {refused.code}"}


def after_approval(state: Report) -> Node[Report, Report] | None:
    return store if state.status == "approved" else None


report.edge(generate, approve)
report.route(approve, after_approval)

# ---- The subscriber -------------------------------------------------------------------------------------------------


@app.subscriber(reports, transactional=True)
async def write(ctx: EffectContext, row: Row) -> str:
    """`ctx.connection` is the open transaction of the ledger; whatever is raised here takes the row back with it."""
    if not row.text:
        raise Fail("EMPTY_REPORT", f"the report on {row.topic} in {row.period} has no text")
    values = (row.topic, row.period, row.text, ctx.run_id, datetime.now(UTC))
    await ctx.connection.execute("INSERT INTO reports VALUES (%s, %s, %s, %s, %s)", values)
    return "inserted"


# ---- The table ------------------------------------------------------------------------------------------------------

SCHEMA = """
CREATE TABLE IF NOT EXISTS reports (
    topic text NOT NULL, period text NOT NULL, text text NOT NULL, run_id text NOT NULL, stored_at timestamptz NOT NULL
)
"""


async def make_table(url: str) -> None:
    """Make the table; a service does that with its own migrations, before its subscriber is started."""
    from psycopg import AsyncConnection  # noqa: PLC0415 - workers of this app need no PostgreSQL

    async with await AsyncConnection.connect(url) as connection:
        await connection.execute(SCHEMA)


async def stored(url: str, topic: str) -> list[tuple[str, str]]:
    """Period and text of what is in the table, for whoever wants to count."""
    from psycopg import AsyncConnection  # noqa: PLC0415 - workers of this app need no PostgreSQL

    async with await AsyncConnection.connect(url) as connection:
        rows = await connection.execute("SELECT period, text FROM reports WHERE topic = %s ORDER BY period", (topic,))
        return await rows.fetchall()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/report_postgres.py postgresql://USER@HOST:PORT/DATABASE")
    asyncio.run(make_table(sys.argv[1]))
