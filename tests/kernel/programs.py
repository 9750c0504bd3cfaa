"""Workflows made of data: Hypothesis draws a program, and one interpreter runs it on every op that there is."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

from hypothesis import strategies as st

from streams import App, Cancelled, Context, Fail, Op, OpError, Retry, TaskContext, TimedOut, extend

__all__ = ["VARIANTS", "build", "programs"]

VARIANTS = ("good", "mined", "other", "gone", "newer")
"""good; a bug at each mine; a step more at the beginning; no workflow; only a newer version."""


LEAVES = ("run", "request", "sleep", "ask", "receive")


class State(TypedDict, total=False):
    programs: list[Any]
    rounds: int
    log: Annotated[list[Any], extend]


def build(variant: str) -> App:
    """The app in one of its variants. All of them have the same tasks, signals and effects."""
    app = App("programs")
    word = app.signal("word", int)
    note = app.effect("note", list)
    effects = {
        "charge": app.effect("charge", int, reply=int, retry=Retry(max_attempts=2)),
        "ship": app.effect("ship", int, reply=int, retry=Retry(max_attempts=2, on_exhausted="park")),
    }

    @app.task(retry=Retry(max_attempts=3))
    async def work(ctx: TaskContext, n: int) -> int:
        return n

    @app.task(idempotent=False)
    async def once(ctx: TaskContext, n: int) -> int:
        return n

    async def find(ctx: TaskContext, n: int) -> Any: ...

    @app.task(reconcile=find, retry=Retry(max_attempts=2, on_exhausted="park"))
    async def found(ctx: TaskContext, n: int) -> int:
        return n

    tasks = {"work": work, "once": once, "found": found}

    def leaf(ctx: Context, program: Any) -> Op[Any]:
        kind, *rest = program
        if kind == "run":
            return ctx.run(tasks[rest[0]], rest[1])
        if kind == "request":
            return ctx.request(effects[rest[0]], 1, timeout=rest[1])
        if kind == "sleep":
            return ctx.sleep(rest[0])
        if kind == "ask":
            return ctx.interrupt("?", answer=int, timeout=rest[0])
        return ctx.receive(word)

    def branches(ctx: Context, programs: list[Any]) -> list[Op[Any]]:
        return [
            leaf(ctx, program) if program[0] in LEAVES else ctx.spawn(interpret(ctx, program)) for program in programs
        ]

    async def grouped(ctx: Context, kind: str, rest: list[Any]) -> Any:
        ops = branches(ctx, rest[0])
        if kind == "all":
            return await ctx.all(ops)
        if kind == "first":
            won = await ctx.first(ops)
            return [won.index, won.value]
        if kind == "wait":
            done, pending = await ctx.wait(ops, count=min(rest[1], len(ops)))
            return [len(done), len(pending)]
        nested = ctx.first(ctx.all(ops), ctx.timeout(ctx.all(branches(ctx, rest[0])), rest[1], default=None))
        return (await nested).index

    async def interpret(ctx: Context, program: Any) -> Any:
        kind, *rest = program
        if kind in LEAVES:
            try:
                return await leaf(ctx, program)
            except TimedOut:
                return "late"
        if kind in ("all", "first", "wait", "nest"):
            return await grouped(ctx, kind, rest)
        if kind == "seq":
            return [await interpret(ctx, step) for step in rest[0]]
        if kind == "timeout":
            return await ctx.timeout(branches(ctx, [rest[0]])[0], rest[1], default=None)
        if kind == "cancel":
            (op,) = branches(ctx, [rest[0]])
            await ctx.sleep(rest[1])
            op.cancel()
            op.cancel()
            return None
        if kind == "leave":
            branches(ctx, [rest[0]])
            return None
        return await guarded(ctx, kind, rest)

    async def guarded(ctx: Context, kind: str, rest: list[Any]) -> Any:
        if kind == "clean":
            try:
                return await interpret(ctx, rest[0])
            except (Cancelled, OpError, Fail):
                ctx.emit(note, ["clean-up"])
                await interpret(ctx, rest[1])
                raise
        if kind == "swallow":
            try:
                return await interpret(ctx, rest[0])
            except (Cancelled, OpError, Fail) as error:
                return type(error).__name__
        if kind == "shared":
            (op,) = branches(ctx, [rest[0]])

            async def waits() -> Any:
                return await op

            return await ctx.all(ctx.spawn(waits()), ctx.spawn(waits()))
        if kind == "draw":
            ctx.emit(note, [ctx.random(), str(ctx.uuid()), ctx.now().isoformat()])
        elif kind == "fail":
            raise Fail("PROGRAM", "it says so", rest)
        elif kind == "mine" and variant == "mined":
            raise ValueError("a mine")
        return None

    async def program(ctx: Context, program: Any) -> Any:
        if variant == "other":
            await ctx.sleep(1)
        return await interpret(ctx, program)

    if variant != "gone":
        version = 2 if variant == "newer" else 1
        app.workflow(version=version)(program)
        _graph(app, version, variant, interpret)
    return app


def _graph(app: App, version: int, variant: str, interpret: Any) -> None:
    graph = app.graph("graph", state=State, version=version)

    @graph.node
    async def plan(ctx: TaskContext, state: State) -> Any:
        return [step.send(program) for program in state["programs"]]

    @graph.flow
    async def step(ctx: Context, state: State, program: Any) -> Any:
        if variant == "other":
            await ctx.sleep(1)
        return {"log": [await interpret(ctx, program)]}

    @graph.node
    async def check(ctx: TaskContext, state: State) -> Any:
        return {"rounds": state["rounds"] - 1}

    @graph.flow
    async def pause(ctx: Context, state: State) -> Any:
        if variant == "mined":
            raise ValueError("a mine")
        await ctx.sleep(1)
        return {}

    graph.edge(step, check)
    graph.edge(step, pause)
    graph.route(check, lambda state: plan if state["rounds"] > 0 else None)


_leaves = st.one_of(
    st.tuples(st.just("run"), st.sampled_from(["work", "work", "once", "found"]), st.integers(0, 9)),
    st.tuples(st.just("request"), st.sampled_from(["charge", "ship"]), st.sampled_from([None, 3])),
    st.tuples(st.just("sleep"), st.integers(0, 9)),
    st.tuples(st.just("ask"), st.sampled_from([None, None, 5])),
    st.tuples(st.just("receive")),
)
_simple = st.one_of(_leaves, _leaves, st.sampled_from([("draw",), ("mine",), ("mine",), ("mine",), ("fail",)]))


def _more(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        st.tuples(st.just("seq"), several),
        st.tuples(st.sampled_from(["all", "first"]), several),
        st.tuples(st.just("wait"), several, st.integers(0, 3)),
        st.tuples(st.just("nest"), several, st.integers(0, 5)),
        st.tuples(st.just("timeout"), inner, st.integers(0, 5)),
        st.tuples(st.just("cancel"), inner, st.integers(0, 5)),
        st.tuples(st.just("leave"), inner),
        st.tuples(st.just("clean"), inner, inner),
        st.tuples(st.just("swallow"), inner),
        st.tuples(st.just("shared"), inner),
    )


programs = st.recursive(_simple, _more, max_leaves=8)
"""Programs as nested tuples; the workflow reads them as lists."""
