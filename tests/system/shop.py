"""The app that worker processes of the system tests run. Its tasks note each attempt in a database outside the log."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

from streams import App, Context, Found, NotFound, Retry, TaskContext, Unknown, extend

OUTSIDE = os.environ.get("SHOP_DB", "")
SCHEMA = """
CREATE TABLE IF NOT EXISTS attempts (key TEXT, run TEXT, attempt INTEGER, what TEXT, pid INTEGER);
CREATE TABLE IF NOT EXISTS orders (key TEXT PRIMARY KEY, value TEXT);
CREATE TABLE IF NOT EXISTS opened (pid INTEGER);
"""


def outside(sql: str, *values: Any, path: str = "") -> list[Any]:
    """One statement in the outside world."""
    for tries_left in range(5, -1, -1):
        connection = sqlite3.connect(path or OUTSIDE, timeout=30, isolation_level=None)
        try:
            connection.execute("PRAGMA synchronous=OFF")
            return connection.execute(sql, values).fetchall()
        except sqlite3.OperationalError as error:
            # Many processes that open and close it at once: sqlite gives up on the lock of its index, time-out or not.
            if "locking protocol" not in str(error) or not tries_left:
                raise
            time.sleep(0.1)
        finally:
            connection.close()
    raise AssertionError("unreachable")


def prepare(path: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.executescript(SCHEMA)
    connection.close()


def note(ctx: TaskContext, what: str = "") -> None:
    outside("INSERT INTO attempts VALUES (?,?,?,?,?)", ctx.idempotency_key, ctx.run_id, ctx.attempt, what, os.getpid())


@asynccontextmanager
async def lifespan(app: App) -> AsyncIterator[str]:
    outside("INSERT INTO opened VALUES (?)", os.getpid())
    yield "open"


app = App(os.environ.get("SHOP_APP", "shop"), lifespan=lifespan)
parcels = app.effect("parcels", dict)
mails = app.effect("mails", dict)
news = app.signal("news", int)
soon = Retry(max_attempts=10, initial=0.02, max_delay=0.05)


@app.task(retry=soon)
async def work(ctx: TaskContext, number: int) -> int:
    assert ctx.resources == "open"
    note(ctx, "work")
    await asyncio.sleep(0.01)
    return number + 1


@app.task(retry=soon)
def plain(ctx: TaskContext, number: int) -> int:
    note(ctx, "plain")
    time.sleep(0.005)
    return number * 2


@app.task(retry=soon)
async def flaky(ctx: TaskContext) -> int:
    note(ctx, "flaky")
    if ctx.attempt < 3:
        raise RuntimeError(f"attempt {ctx.attempt}")
    return 3


@app.workflow(version=1)
async def steps(ctx: Context, number: int) -> int:
    for _ in range(3):
        number = await ctx.run(work, number)
    ctx.emit(parcels, {"run": ctx.run_id, "number": number})
    number = await ctx.run(plain, number)
    ctx.emit(mails, {"run": ctx.run_id, "number": number}, idempotency_key=f"mail/{ctx.run_id}")
    return number


@app.workflow(version=1)
async def fan(ctx: Context, count: int) -> list[int]:
    ops = [ctx.run(work if i % 2 else plain, i) for i in range(count)]
    found = await ctx.all(ops)
    ctx.emit(parcels, {"run": ctx.run_id, "found": found})
    return found


@app.workflow(version=1)
async def sleeper(ctx: Context, seconds: float) -> int:
    for _ in range(3):
        await ctx.sleep(seconds)
    ctx.emit(mails, {"run": ctx.run_id})
    return await ctx.run(flaky)


@app.workflow(version=1)
async def asker(ctx: Context, number: int) -> list[int]:
    a = await ctx.interrupt({"question": "first?", "of": number}, answer=int, key="first")
    b = await ctx.run(work, a)
    c = await ctx.interrupt({"question": "second?", "of": b}, answer=int, key="second")
    ctx.emit(parcels, {"run": ctx.run_id, "answers": [a, c]})
    return [a, b, c]


@app.workflow(version=1)
async def listener(ctx: Context, count: int) -> list[int]:
    heard = [await ctx.receive(news) for _ in range(count)]
    ctx.emit(mails, {"run": ctx.run_id, "heard": heard})
    return heard


@app.workflow(version=1)
async def cancelled(ctx: Context, number: int) -> int:
    try:
        await ctx.interrupt("never answered")
    finally:
        await ctx.run(work, number)
        ctx.emit(mails, {"run": ctx.run_id, "cleaned": number})
    return number


@dataclass
class Story:
    lines: Annotated[list[str], extend] = field(default_factory=list)
    rounds: int = 0


story = app.graph("story", state=Story, version=1)


@story.node
async def write(ctx: TaskContext, state: Story) -> dict[str, Any]:
    note(ctx, "write")
    return {"lines": [f"line {state.rounds}"], "rounds": state.rounds + 1}


@story.flow
async def publish(ctx: Context, state: Story) -> dict[str, Any]:
    ctx.emit(parcels, {"run": ctx.run_id, "lines": state.lines})
    await ctx.sleep(0.01)
    return {}


story.route(write, lambda state: write if state.rounds < 3 else publish)


# -- the unknown -----------------------------------------------------------------------------------------------------


async def find_order(ctx: TaskContext, mode: str) -> Found[str] | NotFound | Unknown:
    note(ctx, "find")
    if mode == "unknown":
        return Unknown("the provider does not say")
    rows = outside("SELECT value FROM orders WHERE key = ?", ctx.idempotency_key)
    return Found(rows[0][0]) if rows else NotFound()


@app.task(reconcile=find_order, retry=Retry(max_attempts=2, initial=0.02, max_delay=0.02))
async def order(ctx: TaskContext, mode: str) -> str:
    note(ctx, "order")
    if mode == "found":
        outside("INSERT OR IGNORE INTO orders VALUES (?, ?)", ctx.idempotency_key, f"made by attempt {ctx.attempt}")
    return f"returned by attempt {ctx.attempt}"


@app.task(idempotent=False)
async def once(ctx: TaskContext) -> str:
    note(ctx, "once")
    return "done"


@app.task(retry=Retry(max_attempts=3, initial=0.01, max_delay=0.01))
async def deadly(ctx: TaskContext) -> str:
    note(ctx, "deadly")
    os._exit(9)


@app.task(pure=True, retry=Retry(max_attempts=3, initial=0.01, max_delay=0.01))
async def deadly_pure(ctx: TaskContext) -> str:
    note(ctx, "deadly")
    os._exit(9)


@app.task(retry=Retry(max_attempts=3, initial=0.01, max_delay=0.01, on_exhausted="park"))
async def deadly_park(ctx: TaskContext) -> str:
    note(ctx, "deadly")
    os._exit(9)


@app.task(retry=Retry(max_attempts=3, initial=0.02, max_delay=0.02), timeout=600)
async def slow(ctx: TaskContext, seconds: float) -> str:
    note(ctx, "slow")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        note(ctx, "slow was stopped")
        raise
    note(ctx, "slow is done")
    return "slow"


@app.task
async def block_loop(ctx: TaskContext, seconds: float) -> str:
    note(ctx, "block")
    time.sleep(seconds)  # noqa: ASYNC251 - what must not be done
    return "blocked the loop"


@app.task
def block_thread(ctx: TaskContext, seconds: float) -> str:
    note(ctx, "block thread")
    time.sleep(seconds)
    return "blocked a thread"


@app.task
def hold_gil(ctx: TaskContext, size: int) -> int:
    note(ctx, "gil")
    return (3 ** (size if ctx.attempt == 1 else 1)).bit_length()  # one call that never gives the interpreter lock back


@app.workflow(version=1)
async def uncertain(ctx: Context, mode: str) -> str:
    return await ctx.run(order, mode)


@app.workflow(version=1)
async def only_once(ctx: Context, _: None) -> str:
    return await ctx.run(once)


@app.workflow(version=1)
async def killer(ctx: Context, park: bool) -> str:
    return await ctx.run(deadly_park if park else deadly)


@app.task(pure=True, retry=soon)
async def twice(ctx: TaskContext, number: int) -> int:
    note(ctx, "twice")
    return number * 2


@app.workflow(version=1, durability="pipelined")
async def early(ctx: Context, number: int) -> int:
    number = await ctx.run(twice, number)
    return await ctx.run(twice, number)


@app.workflow(version=1, durability="pipelined")
async def early_killer(ctx: Context, _: None) -> str:
    return await ctx.run(deadly_pure)


@app.workflow(version=1)
async def patient(ctx: Context, seconds: float) -> str:
    return await ctx.run(slow, seconds)


@app.workflow(version=1)
async def blocking(ctx: Context, seconds: float) -> str:
    return await ctx.run(block_loop, seconds)


@app.workflow(version=1)
async def blocking_thread(ctx: Context, seconds: float) -> str:
    return await ctx.run(block_thread, seconds)


@app.workflow(version=1)
async def gil(ctx: Context, size: int) -> int:
    return await ctx.run(hold_gil, size)
