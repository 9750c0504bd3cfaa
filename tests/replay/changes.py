"""One app in many versions of its code, each changed in one way, as a deployment would change it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypedDict

from streams import App, Context, Effect, Retry, TaskContext, TaskFailed, extend

__all__ = ["GRAPHS", "WORKFLOWS", "app_of", "graph_of"]


def app_of(workflow: Callable[..., Any] | None, *, version: int = 1, attempts: int = 3, initial: float = 1.0) -> App:
    """The app with this code for its workflow `order`, or with none."""
    app = App("shop")
    app.signal("hurry", int)
    app.effect("shipped", str)

    @app.task(retry=Retry(max_attempts=attempts, initial=initial))
    async def quote(ctx: TaskContext, sku: str) -> int:
        return len(sku)

    @app.task
    async def charge(ctx: TaskContext, amount: int) -> str:
        return f"paid {amount}"

    if workflow is not None:
        app.workflow(version=version, name="order")(workflow(app))
    return app


def _task(app: App, name: str) -> Any:
    found = app.task_named(name)
    assert found is not None
    return found


def _effect(name: str) -> Any:
    return Effect(name, str, None)


def original(app: App) -> Any:
    async def order(ctx: Context, sku: str) -> str:
        amount = await ctx.run(_task(app, "quote"), sku)
        await ctx.run(_task(app, "charge"), amount)
        ctx.emit(_effect("shipped"), sku)
        answer = await ctx.interrupt("well?", answer=str)
        return f"{sku} {answer}"

    return order


def comment_only(app: App) -> Any:
    async def order(ctx: Context, sku: str) -> str:
        """Order something."""
        amount = await ctx.run(_task(app, "quote"), sku)  # what it costs
        await ctx.run(_task(app, "charge"), amount)
        ctx.emit(_effect("shipped"), sku)
        # and now ask
        answer = await ctx.interrupt("well?", answer=str)
        return f"{sku} {answer}"

    return order


def rewritten(app: App) -> Any:
    async def order(ctx: Context, sku: str) -> str:
        cost = await ctx.run(_task(app, "quote"), sku)
        steps = [await ctx.run(_task(app, "charge"), cost)]
        ctx.emit(_effect("shipped"), sku)
        steps.append(await ctx.interrupt("well?", answer=str))
        return " ".join([sku, *steps[1:]])

    return order


def step_at_the_end(app: App) -> Any:
    async def order(ctx: Context, sku: str) -> str:
        amount = await ctx.run(_task(app, "quote"), sku)
        await ctx.run(_task(app, "charge"), amount)
        ctx.emit(_effect("shipped"), sku)
        answer = await ctx.interrupt("well?", answer=str)
        await ctx.run(_task(app, "charge"), 0)
        return f"{sku} {answer}"

    return order


def step_removed(app: App) -> Any:
    async def order(ctx: Context, sku: str) -> str:
        await ctx.run(_task(app, "quote"), sku)
        ctx.emit(_effect("shipped"), sku)
        answer = await ctx.interrupt("well?", answer=str)
        return f"{sku} {answer}"

    return order


def reordered(app: App) -> Any:
    async def order(ctx: Context, sku: str) -> str:
        amount = await ctx.run(_task(app, "quote"), sku)
        ctx.emit(_effect("shipped"), sku)
        await ctx.run(_task(app, "charge"), amount)
        answer = await ctx.interrupt("well?", answer=str)
        return f"{sku} {answer}"

    return order


def argument(app: App) -> Any:
    async def order(ctx: Context, sku: str) -> str:
        amount = await ctx.run(_task(app, "quote"), sku)
        await ctx.run(_task(app, "charge"), amount + 1)
        ctx.emit(_effect("shipped"), sku)
        answer = await ctx.interrupt("well?", answer=str)
        return f"{sku} {answer}"

    return order


def payload(app: App) -> Any:
    async def order(ctx: Context, sku: str) -> str:
        amount = await ctx.run(_task(app, "quote"), sku)
        await ctx.run(_task(app, "charge"), amount)
        ctx.emit(_effect("shipped"), sku.upper())
        answer = await ctx.interrupt("well?", answer=str)
        return f"{sku} {answer}"

    return order


def result(app: App) -> Any:
    async def order(ctx: Context, sku: str) -> str:
        amount = await ctx.run(_task(app, "quote"), sku)
        await ctx.run(_task(app, "charge"), amount)
        ctx.emit(_effect("shipped"), sku)
        answer = await ctx.interrupt("well?", answer=str)
        return f"{sku}: {answer}"

    return order


def new_branch(app: App) -> Any:
    async def order(ctx: Context, sku: str) -> str:
        amount = await ctx.run(_task(app, "quote"), sku)
        if amount > 3:
            await ctx.sleep(60)
        await ctx.run(_task(app, "charge"), amount)
        ctx.emit(_effect("shipped"), sku)
        answer = await ctx.interrupt("well?", answer=str)
        return f"{sku} {answer}"

    return order


def broken(app: App) -> Any:
    async def order(ctx: Context, sku: str) -> str:
        amount = await ctx.run(_task(app, "quote"), sku)
        raise ValueError(f"no such key {amount}")

    return order


def stops_early(app: App) -> Any:
    async def order(ctx: Context, sku: str) -> str:
        amount = await ctx.run(_task(app, "quote"), sku)
        await ctx.run(_task(app, "charge"), amount)
        return sku

    return order


def other_answer(app: App) -> Any:
    async def order(ctx: Context, sku: str) -> str:
        amount = await ctx.run(_task(app, "quote"), sku)
        await ctx.run(_task(app, "charge"), amount)
        ctx.emit(_effect("shipped"), sku)
        answer = await ctx.interrupt("well?", answer=int)
        return f"{sku} {answer}"

    return order


def failing(app: App) -> Any:
    """It goes on where the task has failed for good."""

    async def order(ctx: Context, sku: str) -> str:
        try:
            await ctx.run(_task(app, "quote"), sku)
        except TaskFailed as error:
            return error.code
        return sku

    return order


def endless(app: App) -> Any:
    async def order(ctx: Context, sku: str) -> str:
        await ctx.run(_task(app, "quote"), sku)
        while True:
            pass

    return order


WORKFLOWS = {
    function.__name__: function
    for function in (
        original,
        comment_only,
        rewritten,
        step_at_the_end,
        step_removed,
        reordered,
        argument,
        payload,
        result,
        new_branch,
        broken,
        stops_early,
        other_answer,
        failing,
        endless,
    )
}


class State(TypedDict, total=False):
    text: str
    notes: Annotated[list[str], extend]
    score: Annotated[int, max]


class Summed(TypedDict, total=False):
    text: str
    notes: Annotated[list[str], extend]
    score: Annotated[int, lambda before, now: before + now]


def graph_of(variant: str) -> App:
    """The graph `report`: write, then ask, then end."""
    app = App("shop")
    graph: Any = app.graph("report", state=Summed if variant == "reducer" else State, version=1)

    @graph.node
    async def write(ctx: TaskContext, state: State) -> dict[str, Any]:
        return {"text": "text", "notes": ["written"], "score": 2}

    @graph.node
    async def check(ctx: TaskContext, state: State) -> dict[str, Any]:
        return {"notes": ["checked"], "score": 1}

    @graph.flow
    async def ask(ctx: Context, state: State) -> dict[str, Any]:
        return {"notes": [await ctx.interrupt("good?" if variant != "question" else "fine?", answer=str)]}

    if variant == "node added":
        graph.edge(write, check, ask)
    elif variant == "node added at the end":
        graph.edge(write, ask, check)
    else:
        graph.edge(write, ask)
    return app


GRAPHS = ("original", "node added", "node added at the end", "reducer", "question")
