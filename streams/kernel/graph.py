"""Graphs: a small interpreter on the same kernel. One super-step is one generation of the run.

All active nodes of a step run at once: I/O nodes as tasks, flows as branches. When all are in, their updates are
applied in the order of activation, and `state.advanced` drops the journal: a graph does not grow with its history.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from streams.errors import Refused
from streams.kernel.bodies import Activation, Change
from streams.kernel.changes import UNCHECKED, apply_changes, decode_base, decode_field
from streams.kernel.combine import all_of
from streams.kernel.definition import Advance, TaskSpec

if TYPE_CHECKING:
    from streams.kernel.codec import Codec
    from streams.kernel.driver import Driver
    from streams.kernel.ops import Op
    from streams.kernel.run import Run

__all__ = ["GraphPlan", "Join", "NodePlan", "NodeResult", "Reducer", "superstep"]

Reducer = str | Callable[[Any, Any], Any]


class NodeResult(NamedTuple):
    """What a node gave: an update of fields, the nodes to go to instead of its edges, and items sent to nodes."""

    update: dict[str, Any]
    goto: list[str] | None = None
    sends: list[tuple[str, Any]] = []  # noqa: RUF012 - a default of a tuple, never changed


class Join(NamedTuple):
    """`target` becomes active when all `sources` have run, in whatever steps."""

    id: str
    sources: tuple[str, ...]
    target: str


@dataclass(frozen=True, slots=True)
class NodePlan:
    """A node: a task's rules and business key, or the coroutine function of a flow.

    `key` and `flow` take the state, and the item of a `send` where there is one.
    """

    name: str
    task: TaskSpec | None
    key: Callable[..., str] | None
    flow: Callable[..., Coroutine[Any, Any, NodeResult]] | None


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """A graph as the interpreter sees it. `build` makes the typed state, `fields` holds the type of each field."""

    entry: tuple[str, ...]
    nodes: Mapping[str, NodePlan]
    edges: Mapping[str, tuple[str, ...]]
    routes: Mapping[str, Callable[[Any], NodeResult]]
    joins: tuple[Join, ...]
    fields: Mapping[str, Any]
    reducers: Mapping[str, Reducer]
    build: Callable[[dict[str, Any]], Any]
    prepare: Callable[[bytes, Codec], tuple[tuple[tuple[str, bytes], ...], tuple[Activation, ...]]]
    code: str


async def superstep(driver: Driver, run: Run, plan: GraphPlan) -> Any:
    """One generation: run the active nodes, then advance, or return the final state when no node follows."""
    if run.base and run.base[0][0] == UNCHECKED:
        return _prepared(driver, run, plan)
    ops = [_start(driver, run, plan, activation) for activation in run.active]
    outcomes = await all_of(driver, ops, as_list=True)
    results = [_read(outcome) for outcome in outcomes]
    changes = _changes(driver, run, plan, results)
    after = apply_changes(run.base, changes)
    state = plan.build(decode_base(after, driver.codec))
    active, arrived = _next(driver, run, plan, results, state)
    if not active:
        return state
    return Advance(changes, active, arrived)


def _prepared(driver: Driver, run: Run, plan: GraphPlan) -> Advance:
    """A run that was started before its graph was loaded holds the bare input: check it now, and begin."""
    try:
        fields, active = plan.prepare(run.base[0][1].chunks[0], driver.codec)
    except Refused as refused:
        raise driver.fault(f"the input does not fit the graph's state: {refused.message}") from refused
    return Advance(tuple(Change(name, "set", value) for name, value in fields), active, ())


def _start(driver: Driver, run: Run, plan: GraphPlan, activation: Activation) -> Op[Any]:
    node = plan.nodes.get(activation.node)
    if node is None:
        message = f"the graph has no node {activation.node!r} any more; known nodes: {', '.join(sorted(plan.nodes))}"
        raise driver.fault(message)
    if node.task is not None and node.key is None:
        return driver.task(node.task, activation.arg, ref="state")
    items = () if activation.arg is None else (driver.codec.decode(activation.arg),)
    state = plan.build(decode_base(run.base, driver.codec))
    if node.task is not None and node.key is not None:
        return driver.task(node.task, activation.arg, key=str(node.key(state, *items)), ref="state")
    assert node.flow is not None
    return driver.spawn(node.flow(driver, state, *items))


def _read(outcome: Any) -> NodeResult:
    """What a node gave; an operator who completes a node gives the update alone."""
    if isinstance(outcome, Mapping):
        return NodeResult(dict(outcome))
    return outcome if isinstance(outcome, NodeResult) else NodeResult(*outcome)


def _changes(driver: Driver, run: Run, plan: GraphPlan, results: list[NodeResult]) -> tuple[Change, ...]:
    base = dict(run.base)
    changes: dict[str, list[Change]] = {}
    folded: dict[str, Any] = {}
    for activation, result in zip(run.active, results, strict=True):
        for field, value in result.update.items():
            if field not in plan.fields:
                message = f"node {activation.node!r} updates {field!r}, which is no field of the state"
                raise driver.fault(f"{message}; its fields: {', '.join(plan.fields)}")
            reducer = plan.reducers.get(field)
            if isinstance(reducer, str):
                change = _set(driver, plan, field, value)
                changes.setdefault(field, []).append(change._replace(how=reducer))
            elif reducer is not None:
                before = folded.get(field, _current(base, field, driver))
                folded[field] = value if before is None and field not in base else reducer(before, value)
                changes[field] = [_set(driver, plan, field, folded[field])]
            elif field in changes:
                message = (
                    f"two nodes of one step set field {field!r}; give it a reducer, such as Annotated[list, extend]"
                )
                raise driver.fault(message)
            else:
                changes[field] = [_set(driver, plan, field, value)]
    return tuple(change for several in changes.values() for change in several)


def _current(base: Mapping[str, Any], field: str, driver: Driver) -> Any:
    return decode_field(base[field], driver.codec) if field in base else None


def _set(driver: Driver, plan: GraphPlan, field: str, value: Any) -> Change:
    try:
        return Change(field, "set", driver.codec.conform(driver.codec.encode(value), plan.fields[field]))
    except Refused as refused:
        raise driver.fault(f"field {field!r} of the state: {refused.message}") from refused


def _next(
    driver: Driver, run: Run, plan: GraphPlan, results: list[NodeResult], state: Any
) -> tuple[tuple[Activation, ...], tuple[str, ...]]:
    plain: dict[str, None] = {}
    sends: list[Activation] = []
    for activation, result in zip(run.active, results, strict=True):
        for target in _targets(plan, activation.node, result, state):
            _collect(driver, plan, target, plain, sends)
    arrived = dict.fromkeys(run.arrived)
    for join in plan.joins:
        arrived |= {f"{join.id}:{a.node}": None for a in run.active if a.node in join.sources}
        waited = [f"{join.id}:{source}" for source in join.sources]
        if all(source in arrived for source in waited):
            plain[join.target] = None
            arrived = {key: None for key in arrived if key not in waited}
    return tuple(Activation(name) for name in plain) + tuple(sends), tuple(arrived)


def _targets(plan: GraphPlan, node: str, result: NodeResult, state: Any) -> Iterable[NodeResult]:
    yield result._replace(goto=result.goto or [])
    if result.goto is None:
        yield NodeResult({}, list(plan.edges.get(node, ())))
        if node in plan.routes:
            yield plan.routes[node](state)


def _collect(
    driver: Driver, plan: GraphPlan, target: NodeResult, plain: dict[str, None], sends: list[Activation]
) -> None:
    for name in (*(target.goto or ()), *(name for name, _ in target.sends)):
        if name not in plan.nodes:
            raise driver.fault(f"the graph goes to {name!r}, which is none of its nodes")
    plain |= dict.fromkeys(target.goto or ())
    sends.extend(Activation(name, driver.codec.encode(item)) for name, item in target.sends)
