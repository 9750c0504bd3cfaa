"""Graphs: ways between nodes, reducers, pending writes, and generations that keep a run small."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, NotRequired, TypedDict

import pydantic
import pytest

from streams import App, Cancelled, Context, Fail, Retry, TaskContext, TaskFailed, extend, merge
from streams.errors import Refused
from streams.kernel import bodies as ev
from streams.kernel.run import OpPhase, Status
from tests.kernel.harness import Harness, failure


def add(before: int, more: int) -> int:
    return before + more


class State(TypedDict, total=False):
    n: int
    log: Annotated[list[str], extend]
    table: Annotated[dict[str, int], merge]
    total: Annotated[int, add]
    late: NotRequired[Annotated[list[int], extend]]
    text: str


def new(state: Any = State, **options: Any) -> tuple[App, Any]:
    app = App("graphs", **options)
    return app, app.graph("g", state=state, version=1)


def start(app: App, value: Any = None, **options: Any) -> Harness:
    run = Harness(app, **options)
    run.start("g", {} if value is None else value)
    return run


def message(run: Harness) -> str:
    assert run.run.blocked is not None
    return run.run.blocked.message


def chain(app: App, graph: Any, names: str) -> list[Any]:
    def make(name: str) -> Any:
        async def body(ctx: TaskContext, state: State) -> Any:
            return {"log": [name]}

        return graph.node(name=name)(body)

    return [make(name) for name in names]


# -- ways --------------------------------------------------------------------------------------------------------


def test_one_node() -> None:
    app, g = new()

    @g.node
    async def only(ctx: TaskContext, state: State) -> Any:
        return {"n": state["n"] + 1}

    run = start(app, {"n": 1}).settle()
    assert run.result == {"n": 2}
    (op,) = run.of(ev.OpScheduled)
    assert (op.op, op.kind, op.name, op.args, op.ref) == ("1", "task", "g.only", None, "state")


def test_edges() -> None:
    app, g = new()
    a, b, c = chain(app, g, "abc")
    g.edge(a, b, c)
    run = start(app).settle()
    assert run.result == {"log": ["a", "b", "c"]}
    assert [body.op for body in run.of(ev.OpScheduled)] == ["1", "g2.1", "g3.1"]
    assert len(run.of(ev.StateAdvanced)) == 2


def test_a_step_runs_its_nodes_at_once_and_applies_them_in_order_of_activation() -> None:
    app, g = new()
    a, b, c, d = chain(app, g, "abcd")
    g.edge(a, b)
    g.edge(a, c)
    g.edge(b, d)
    g.edge(c, d)
    run = start(app)
    run.done("1", [{"log": ["a"]}, None, []])
    assert sorted(run.run.ops) == ["g2.1", "g2.2"]
    run.done("g2.2", [{"log": ["c"]}, None, []])
    run.take_over()
    run.settle()
    assert run.result == {"log": ["a", "b", "c", "d"]}


def test_routes() -> None:
    app, g = new()
    a, b, c = chain(app, g, "abc")

    def by_n(state: State) -> Any:
        return {0: None, 1: b, 2: [b, c], 3: []}[state["n"]]

    g.route(a, by_n)
    for n, log in enumerate([["a"], ["a", "b"], ["a", "b", "c"], ["a"]]):
        assert start(app, {"n": n}).settle().result["log"] == log


def test_fan_out_with_send() -> None:
    app, g = new()

    @g.node
    async def plan(ctx: TaskContext, state: State) -> Any:
        return [work.send(i) for i in range(4)]

    @g.node
    async def work(ctx: TaskContext, state: State, item: int) -> Any:
        return {"total": item, "log": [f"{item}/{state['n']}"]}

    run = start(app, {"n": 7, "total": 100})
    run.settle()
    assert run.result == {"n": 7, "total": 106, "log": ["0/7", "1/7", "2/7", "3/7"]}
    ops = run.of(ev.OpScheduled)[1:]
    assert [run.codec.decode(op.args) for op in ops] == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", ["node", "flow"])
@pytest.mark.parametrize("both", [True, False])
def test_a_sent_item_reaches_nodes_and_flows(kind: str, both: bool) -> None:
    app, g = new()

    @g.node
    async def plan(ctx: TaskContext, state: State) -> Any:
        return work.send({"n": 5})

    async def wide(ctx: Any, state: State, item: State) -> Any:
        return {"total": state["n"] * item["n"]}

    async def narrow(ctx: Any, item: State) -> Any:
        return {"total": item["n"]}

    work: Any = getattr(g, kind)(wide if both else narrow)
    assert start(app, {"n": 7}).settle().result == {"n": 7, "total": 35 if both else 5}


def test_a_route_may_send() -> None:
    app, g = new()

    @g.node
    async def plan(ctx: TaskContext, state: State) -> Any:
        return {"n": 3}

    @g.node
    async def work(ctx: TaskContext, state: State, item: int) -> Any:
        return {"log": [str(item)]}

    g.route(plan, lambda state: [work.send(i) for i in range(state["n"])])
    assert start(app).settle().result == {"n": 3, "log": ["0", "1", "2"]}


def test_goto_and_a_loop() -> None:
    app, g = new()

    @g.node
    async def count(ctx: TaskContext, state: State) -> Any:
        n = state.get("n", 0) + 1
        return count.goto({"n": n}) if n < 20 else end.goto({"n": n})

    @g.node
    async def end(ctx: TaskContext, state: State) -> Any:
        return {"text": "end"}

    g.edge(count, end)
    run = start(app).settle()
    assert run.result == {"n": 20, "text": "end"}
    assert run.run.generation == 21


def test_start_elsewhere_and_at_several() -> None:
    app, g = new()
    _, b, c = chain(app, g, "abc")
    g.start(b, c)
    assert start(app).settle().result == {"log": ["b", "c"]}


def test_join_waits_for_branches_of_unequal_length() -> None:
    app, g = new()
    a, b, c, d = chain(app, g, "abcd")
    g.start(a, b)
    g.edge(b, c)
    g.join([a, c], d)
    run = start(app).settle()
    assert run.result == {"log": ["a", "b", "c", "d"]}
    assert run.types().count("state.advanced") == 2


def test_a_join_in_a_loop_waits_anew() -> None:
    app, g = new()
    a, b = chain(app, g, "ab")

    @g.node
    async def end(ctx: TaskContext, state: State) -> Any:
        if len(state["log"]) < 7:
            return {"log": ["-"]}
        return done.goto()

    @g.node
    async def done(ctx: TaskContext, state: State) -> Any:
        return {"text": "done"}

    g.start(a, b)
    g.join([a, b], end)
    g.edge(end, a)
    g.edge(end, b)
    assert start(app).settle().result["log"] == ["a", "b", "-", "a", "b", "-", "a", "b"]


# -- state -------------------------------------------------------------------------------------------------------


def test_reducers() -> None:
    app, g = new()

    @g.node
    async def a(ctx: TaskContext, state: State) -> Any:
        return {"log": ["a"], "table": {"x": 1, "y": 1}, "total": 1, "late": [1]}

    @g.node
    async def b(ctx: TaskContext, state: State) -> Any:
        return {"log": ["b"], "table": {"y": 2}, "total": 2, "late": [2]}

    @g.node
    async def c(ctx: TaskContext, state: State) -> Any:
        return {"log": [], "table": {}, "total": 0, "text": repr(sorted(state["table"].items()))}

    g.start(a, b)
    g.join([a, b], c)
    run = start(app, {"log": ["0"], "total": 10}).settle()
    assert run.result == {
        "log": ["0", "a", "b"],
        "table": {"x": 1, "y": 2},
        "total": 13,
        "late": [1, 2],
        "text": "[('x', 1), ('y', 2)]",
    }
    changes = run.of(ev.StateAdvanced)[0].changes
    assert [(c.field, c.how) for c in changes] == [
        ("log", "extend"),
        ("log", "extend"),
        ("table", "merge"),
        ("table", "merge"),
        ("total", "set"),
        ("late", "extend"),
        ("late", "extend"),
    ]


@pytest.mark.parametrize(
    ("update", "text"),
    [
        ({"nope": 1}, "updates 'nope', which is no field of the state; its fields: n, log"),
        ({"n": "text"}, "field 'n' of the state"),
        ({"log": "text"}, "field 'log' of the state"),
        ({"table": [1]}, "field 'table' of the state"),
        ({"total": "x"}, "total"),
    ],
)
@pytest.mark.parametrize("kind", ["node", "flow"])
def test_a_bad_update_is_a_fault_that_names_the_field(update: Any, text: str, kind: str) -> None:
    app, g = new()

    async def bad(ctx: Any, state: State) -> Any:
        return update

    getattr(g, kind)(bad)
    run = start(app, {"total": 1}).settle()
    assert run.blocked == "WORKFLOW_BUG"
    assert text in message(run) or "TypeError" in message(run)


def test_two_writers_of_one_field_are_a_fault_that_says_what_to_do() -> None:
    app, g = new()

    @g.node
    async def a(ctx: TaskContext, state: State) -> Any:
        return {"n": 1}

    @g.node
    async def b(ctx: TaskContext, state: State) -> Any:
        return {"n": 2}

    g.start(a, b)
    run = start(app).settle()
    assert run.blocked == "WORKFLOW_BUG"
    assert "two nodes of one step set field 'n'; give it a reducer" in message(run)


@dataclass
class DataState:
    n: int
    log: Annotated[list[str], extend] = dataclasses.field(default_factory=list)


class ModelState(pydantic.BaseModel):
    n: int
    log: Annotated[list[str], extend] = []


@pytest.mark.parametrize("state", [DataState, ModelState])
def test_dataclass_and_model_state(state: Any) -> None:
    app, g = new(state)

    async def a(ctx: TaskContext, s: Any) -> Any:
        assert isinstance(s, state)
        return {"n": s.n + 1, "log": ["a"]}

    async def b(ctx: Context, s: Any) -> Any:
        assert isinstance(s, state)
        await ctx.sleep(1)
        return {"log": [f"b{s.n}"]}

    first, second = g.node(a), g.flow(b)
    g.edge(first, second)
    for given in ({"n": 1}, state(n=1)):
        run = start(app, given)
        run.take_over()
        assert run.settle().result == state(n=2, log=["a", "b2"])
    run = start(app, {})
    body = run.records[-1].body
    assert isinstance(body, ev.CommandRejected)
    assert body.code == "INPUT_INVALID"
    assert "n" in body.message


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"nope": 1}, "has no field nope; its fields: n, log"),
        ({"n": "x"}, "field 'n'"),
        ({"log": "x"}, "field 'log'"),
        ([], "expected the fields of State"),
        (None, "expected the fields of State"),
    ],
)
def test_bad_input_is_refused_with_the_names_of_fields(given: Any, text: str) -> None:
    app, g = new()
    chain(app, g, "a")
    run = Harness(app)
    run.start("g", given)
    body = run.records[-1].body
    assert isinstance(body, ev.CommandRejected)
    assert body.code == "INPUT_INVALID"
    assert text in body.message
    assert run.run.seq == 0


def test_a_graph_is_bounded_by_its_state_not_by_its_history() -> None:
    app, g = new()

    @g.node
    async def turn(ctx: TaskContext, state: State) -> Any:
        return turn.goto({"n": state["n"] + 1, "text": "x" * 1_000}) if state["n"] < 300 else {}

    run = Harness(app, checked=False)
    run.start("g", {"n": 0})
    sizes = []
    for _ in range(300):
        run.step()
        sizes.append((run.run.size, len(run.run.journal)))
    assert max(size for size, _ in sizes) < 2_000
    assert max(length for _, length in sizes) <= 2
    assert run.settle().result["n"] == 300


def test_the_items_of_a_send_count() -> None:
    app, g = new()

    @g.node
    async def plan(ctx: TaskContext, state: State) -> Any:
        return []

    @g.node
    async def work(ctx: TaskContext, state: State, item: str) -> Any:
        return {}

    run = start(app)
    run.done("1", [{}, None, [["work", "x" * 60_000]] * 4])
    assert run.run.size > 4 * 60_000


# -- waiting, failing, cancelling --------------------------------------------------------------------------------


def test_flows_wait_and_a_node_that_is_done_keeps_its_result() -> None:
    app, g = new()
    calls: list[str] = []

    @g.node
    async def io(ctx: TaskContext, state: State) -> Any:
        calls.append("io")
        return {"log": ["io"]}

    @g.flow
    async def ask(ctx: Context, state: State) -> Any:
        a, b = await ctx.all(ctx.interrupt("a"), ctx.interrupt("b"))
        return {"log": [a, b]}

    g.start(io, ask)
    run = start(app)
    run.step()
    assert run.status is Status.WAITING
    run.take_over()
    run.resume("y", "2/2")
    run.resume("x")
    assert run.result == {"log": ["io", "x", "y"]}
    assert calls == ["io"]


def test_a_failed_node_runs_again_alone() -> None:
    app, g = new()
    calls: list[str] = []

    @g.node
    async def good(ctx: TaskContext, state: State) -> Any:
        calls.append("good")
        return {"log": ["good"]}

    @g.node(retry=Retry(max_attempts=1, on_exhausted="park"))
    async def bad(ctx: TaskContext, state: State) -> Any:
        calls.append("bad")
        if len(calls) < 3:
            raise ValueError("not yet")
        return {"log": ["bad"]}

    g.start(good, bad)
    run = start(app).settle()
    assert run.run.ops["2"].phase is OpPhase.PARKED
    run.take_over()
    run.retry()
    assert run.settle().result == {"log": ["good", "bad"]}
    assert calls == ["good", "bad", "bad"]


def test_an_operator_completes_a_node_with_its_update() -> None:
    app, g = new()

    @g.node(retry=Retry(max_attempts=1, on_exhausted="park"))
    async def bad(ctx: TaskContext, state: State) -> Any:
        raise ValueError("never")

    run = start(app).settle()
    for wrong in (5, {"nope": 1}, {"n": "x"}):
        run.complete("1", wrong)
        body = run.records[-1].body
        assert isinstance(body, ev.CommandRejected)
        assert body.code == "INPUT_INVALID"
    run.complete("1", {"text": "by hand"})
    assert run.result == {"text": "by hand"}


def test_the_business_key_of_a_node() -> None:
    app, g = new()

    @g.node(key=lambda state: f"plan/{state['n']}")
    async def plan(ctx: TaskContext, state: State) -> Any:
        return pay.send(5)

    @g.node(key=lambda state, item: f"pay/{state['n']}/{item}")
    async def pay(ctx: TaskContext, state: State, item: int) -> Any:
        return {"text": ctx.idempotency_key}

    run = start(app, {"n": 3})
    assert run.run.ops["1"].key == "plan/3"
    assert run.settle().result["text"] == "pay/3/5"


def test_two_versions_of_a_graph_live_side_by_side() -> None:
    app = App("graphs")
    for version in (1, 2):
        g = app.graph("g", state=State, version=version)

        @g.node(name="a")
        async def a(ctx: TaskContext, state: State, version: int = version) -> Any:
            return {"n": version}

    run = Harness(app)
    run.start("g", {}, version=1)
    assert run.run.ops["1"].name == "g.a"
    latest = Harness(app, "s")
    latest.start("g", {})
    assert latest.run.version == 2
    assert latest.run.ops["1"].name == "g.v2.a"


@pytest.mark.parametrize("kind", ["node", "flow"])
def test_a_node_that_fails_for_good_fails_the_run_after_the_others(kind: str) -> None:
    app, g = new()

    async def bad(ctx: Any, state: State) -> Any:
        raise Fail("NO", "never")

    async def slow(ctx: TaskContext, state: State) -> Any:
        return {}

    g.start(getattr(g, kind)(bad), g.node(slow))
    run = start(app)
    if kind == "node":
        run.fail("1", failure("NO", "terminal"))
    assert run.status is Status.RUNNING
    run.settle()
    assert run.status is Status.FAILED
    assert run.run.error is not None
    assert run.run.error.code == "NO"


def test_what_a_node_may_return() -> None:
    app, g = new()

    @g.flow
    async def odd(ctx: Context, state: State) -> Any:
        return 5

    run = start(app)
    assert run.blocked == "WORKFLOW_BUG"
    assert "node 'odd' returned int; return an update of the state, a goto, or sends" in message(run)


def test_a_fault_of_a_later_generation_blocks_there_and_is_mended() -> None:
    def version(good: bool) -> App:
        app, g = new()
        (a,) = chain(app, g, "a")

        @g.flow
        async def ask(ctx: Context, state: State) -> Any:
            if not good:
                raise ValueError("broken")
            return {"log": [await ctx.interrupt("?")]}

        g.edge(a, ask)
        return app

    run = start(version(good=False))
    run.settle()
    assert run.blocked == "WORKFLOW_BUG"
    assert run.run.generation == 1
    size = run.run.size
    for _ in range(3):
        run.retry()
        assert run.blocked == "WORKFLOW_BUG"
        assert run.run.size == size
    run.deploy(version(good=True))
    run.take_over()
    run.retry()
    assert run.run.generation == 2
    run.resume("fine")
    assert run.result == {"log": ["a", "fine"]}


def test_a_node_that_is_gone_blocks() -> None:
    def version(names: str) -> App:
        app, g = new()
        g.edge(*chain(app, g, names))
        return app

    run = start(version("abc"))
    run.step()
    run.deploy(version("ac"))
    run.done("g2.1", [{}, None, []])
    assert run.blocked == "WORKFLOW_BUG"
    assert "no node 'b' any more; known nodes: a, c" in message(run)


def test_a_way_to_nowhere_blocks() -> None:
    app, g = new()
    chain(app, g, "a")
    run = start(app)
    run.done("1", [{}, ["gone"], []])
    assert run.blocked == "WORKFLOW_BUG"
    assert "'gone', which is none of its nodes" in message(run)


def test_cancel_between_and_within_steps_reaches_the_flow() -> None:
    app, g = new()

    @g.node
    async def a(ctx: TaskContext, state: State) -> Any:
        return {}

    @g.flow
    async def swallows(ctx: Context, state: State) -> Any:
        try:
            await ctx.sleep(9)
        except Cancelled:
            await ctx.sleep(1)
        return {"log": ["went on"]}

    @g.node
    async def never(ctx: TaskContext, state: State) -> Any:
        raise AssertionError

    g.edge(a, swallows, never)
    for steps in (0, 1):
        run = start(app)
        for _ in range(steps):
            run.step()
        run.cancel()
        if steps == 0:
            run.fail("1", failure("STOPPED", "cancelled"))
        run.settle()
        assert run.status is Status.CANCELLED


def test_a_cancel_while_a_branch_of_a_finished_step_still_runs_is_not_lost() -> None:
    app, g = new()

    @g.flow
    async def spawns(ctx: Context, state: State) -> Any:
        async def lingers() -> None:
            try:
                await ctx.sleep(100)
            except Cancelled:
                await ctx.sleep(1)

        ctx.spawn(lingers())
        return {"log": ["done"]}

    @g.node
    async def never(ctx: TaskContext, state: State) -> Any:
        raise AssertionError

    g.edge(spawns, never)
    run = start(app)
    assert run.run.generation == 1
    run.cancel()
    run.take_over()
    run.settle()
    assert run.status is Status.CANCELLED


def test_a_graph_that_was_started_before_it_was_loaded() -> None:
    app, g = new(DataState)

    async def a(ctx: TaskContext, s: DataState) -> Any:
        return {"log": [f"a{s.n}"]}

    g.node(a)
    run = Harness(App("graphs"))
    run.start("g", {"n": 4})
    assert run.blocked == "WORKFLOW_UNKNOWN"
    run.deploy(app)
    run.retry()
    run.take_over()
    assert run.settle().result == DataState(4, ["a4"])

    run = Harness(App("graphs"))
    run.start("g", {"m": 4})
    run.deploy(app)
    run.retry()
    assert run.blocked == "WORKFLOW_BUG"
    assert "does not fit the graph's state" in message(run)


def test_a_graph_without_nodes_refuses_to_start() -> None:
    app, g = new()
    run = start(app)
    body = run.records[-1].body
    assert isinstance(body, ev.CommandRejected)
    assert body.code == "GRAPH_EMPTY"
    with pytest.raises(Refused):
        g.plan()


def test_an_endless_graph_is_stopped() -> None:
    app, g = new()

    @g.flow
    async def around(ctx: Context, state: State) -> Any:
        return around.goto({"n": state.get("n", 0) + 1})

    run = Harness(app, checked=False)
    run.start("g", {})
    assert run.blocked == "WORKFLOW_BUG"
    assert "without waiting" in message(run)
    assert run.run.generation > 1_000


def test_flows_use_every_op_and_see_failures() -> None:
    app, g = new()
    note = app.effect("note", str)

    @app.task
    async def explode(ctx: TaskContext) -> int:
        raise Fail("NO")

    @g.flow
    async def work(ctx: Context, state: State) -> Any:
        ctx.emit(note, "hello")
        try:
            await ctx.run(explode)
        except TaskFailed as error:
            return {"text": error.code}
        return {}

    run = start(app).settle()
    assert run.result == {"text": "NO"}
    assert [effect.op for effect in run.of(ev.EffectEmitted)] == ["1/1"]


def test_the_fingerprint_tells_flows_and_routes_apart_and_is_made_once() -> None:
    def version(step: int) -> Any:
        app, g = new()
        (a,) = chain(app, g, "a")
        if step == 1:

            @g.flow
            async def f(ctx: Context, state: State) -> Any:
                return {}

        elif step == 2:
            g.route(a, lambda state: None)
        return g

    codes = [version(step).code for step in (0, 0, 1, 2)]
    assert codes[0] == codes[1]
    assert len(set(codes)) == 3
    g = version(1)
    assert g.code is g.code
