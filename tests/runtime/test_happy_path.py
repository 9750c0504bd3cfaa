"""A worker does what it is asked, on both embedded logs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from streams import App, Context, TaskContext
from streams.kernel import bodies as ev
from tests.runtime.history import resume, signal, until
from tests.runtime.lab import Lab, case

opened: list[str] = []


@asynccontextmanager
async def lifespan(app: App) -> AsyncIterator[dict[str, str]]:
    opened.append("open")
    yield {"pool": "open"}
    opened.append("closed")


app = App("happy", lifespan=lifespan)
parcels = app.effect("parcels", dict)
news = app.signal("news", str)


@app.task
async def add(ctx: TaskContext, a: int, b: int) -> int:
    assert ctx.resources == {"pool": "open"}
    return a + b


@app.task
def double(ctx: TaskContext, a: int) -> int:
    assert ctx.resources == {"pool": "open"}
    return a * 2


@app.workflow(version=1)
async def everything(ctx: Context, number: int) -> dict[str, Any]:
    a, b = await ctx.all(ctx.run(add, number, 1), ctx.run(double, number))
    ctx.emit(parcels, {"a": a, "b": b}, idempotency_key=f"parcel/{ctx.run_id}")
    await ctx.sleep(0.01)
    answer = await ctx.interrupt("go on?", answer=str)
    heard = await ctx.receive(news)
    return {"a": a, "b": b, "answer": answer, "heard": heard}


@case(app)
async def test_a_run_goes_from_command_to_events_effect_and_result(lab: Lab):
    await lab.worker()
    h = lab.history
    await h.start("everything", "r1", 5)
    await h.until(lambda h: any(b.kind == "interrupt" for b in h.bodies("r1", ev.OpScheduled)))
    await h.send("r1", signal("news", "good"))
    await h.send("r1", resume("yes"))
    assert await h.result("r1") == {"a": 6, "b": 10, "answer": "yes", "heard": "good"}
    (message,) = (await lab.check()).effects
    assert message.idempotency_key == "parcel/r1"


@case(app, "memory")
async def test_resources_are_opened_once_a_worker_and_closed_at_its_end(lab: Lab):
    opened.clear()
    running = await lab.worker()
    for number in range(20):
        await lab.history.start("everything", f"r{number}", number)
    await lab.history.until(lambda h: all(len(h.bodies(f"r{n}", ev.OpCompleted)) == 2 for n in range(20)))
    assert opened == ["open"]
    await running.stop()
    assert opened == ["open", "closed"]


@case(app, "memory")
async def test_many_runs_share_turns(lab: Lab):
    running = await lab.worker()
    await lab.history.send_all([(f"r{n}", signal("news", "early")) for n in range(200)])
    await until(lambda: sum(told[1] for told in running.told.heard("turn")) == 200)
    assert len(running.told.heard("turn")) < 20
