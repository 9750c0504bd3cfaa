"""Graphs: typed state, nodes that do I/O, flows that may wait, and the ways between them."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    NotRequired,
    Required,
    TypedDict,
    TypeVar,
    get_args,
    get_origin,
    is_typeddict,
    overload,
)

from streams.authoring.context import Context
from streams.authoring.durability import EVERY_STEP, Durability
from streams.authoring.fingerprint import fingerprint
from streams.authoring.task import Task, TaskContext, annotations_of
from streams.errors import Refused
from streams.kernel.bodies import Activation
from streams.kernel.graph import GraphPlan, Join, NodePlan, NodeResult, Reducer, superstep

if TYPE_CHECKING:
    from streams.authoring.app import App
    from streams.kernel.codec import Codec
    from streams.kernel.driver import Driver
    from streams.kernel.run import Run

__all__ = ["Goto", "Graph", "Node", "Send", "extend", "merge"]

_typed_dict: Any = TypedDict  # called with fields that are known only when the user's module is loaded
S = TypeVar("S")
A = TypeVar("A")


def extend(before: list[Any], more: list[Any]) -> list[Any]:
    """The reducer that appends a list; stored as its increment, so a long list is never rewritten."""
    return [*before, *more]


def merge(before: Mapping[Any, Any], more: Mapping[Any, Any]) -> dict[Any, Any]:
    """The reducer that updates a mapping; stored as its increment."""
    return {**before, **more}


_BUILT_IN: dict[Any, str] = {extend: "extend", merge: "merge"}


@dataclasses.dataclass(frozen=True, slots=True)
class Goto:
    """Go to a node instead of along the edges, with an update of the state."""

    node: str
    update: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Send(Generic[S]):
    """Run a node with an item of its own in the next step."""

    node: str
    item: Any


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Node(Generic[S, A]):
    """A node of a graph, made by `@graph.node` or `@graph.flow`."""

    name: str
    function: Callable[..., Any]
    graph: Graph[S] = dataclasses.field(repr=False)
    task: Task[Any, Any] | None = None

    def send(self, item: A, /) -> Send[S]:
        """Run this node with `item` in the next step; several sends fan out."""
        return Send(self.name, item)

    def goto(self, update: Mapping[str, Any] | None = None, /) -> Goto:
        """Go to this node next, with an update of the state."""
        return Goto(self.name, update or {})


class Graph(Generic[S]):
    """One version of a graph. It begins at the first node that is defined, unless `start` names others."""

    def __init__(self, app: App, name: str, state: type[S], version: int, durability: Durability = EVERY_STEP) -> None:
        self.name = name
        self.version = version
        self.durability = durability
        self.state = state
        self._app = app
        self._nodes: dict[str, Node[S, Any]] = {}
        self._entry: tuple[str, ...] = ()
        self._edges: dict[str, tuple[str, ...]] = {}
        self._routes: dict[str, Callable[[Any], Any]] = {}
        self._joins: list[Join] = []
        self._plan: GraphPlan | None = None
        self._fields = _fields_of(state)
        self._update = _typed_dict(f"{state.__qualname__}Update", self._fields, total=False)
        """What an operator's value for a node must fit."""

    @overload
    def node(self, function: Callable[[TaskContext, S], Coroutine[Any, Any, Any]], /) -> Node[S, S]: ...
    @overload
    def node(self, function: Callable[[TaskContext, S, A], Coroutine[Any, Any, Any]], /) -> Node[S, A]: ...
    @overload
    def node(self, function: Callable[[TaskContext, S], Any], /) -> Node[S, S]: ...
    @overload
    def node(self, function: Callable[[TaskContext, S, A], Any], /) -> Node[S, A]: ...
    @overload
    def node(self, /, **options: Any) -> Callable[[Callable[..., Any]], Node[S, Any]]: ...
    def node(self, function: Any = None, /, **options: Any) -> Any:
        """A node that does I/O: a task with a task's context. Options are those of `app.task`.

        It returns an update of the state, `other.goto(update)`, or one or more `other.send(item)`.
        """
        if function is None:
            return lambda f: self.node(f, **options)
        name = options.pop("name", None) or function.__name__
        version = "" if self.version == 1 else f"v{self.version}."
        task = self._app.add_task(
            _as_task(function), f"{self.name}.{version}{name}", options, source=function, result=self._update
        )
        return self._add(Node(name, function, self, task))

    @overload
    def flow(self, function: Callable[[Context, S], Coroutine[Any, Any, Any]], /) -> Node[S, S]: ...
    @overload
    def flow(self, function: Callable[[Context, S, A], Coroutine[Any, Any, Any]], /) -> Node[S, A]: ...
    def flow(self, function: Callable[..., Coroutine[Any, Any, Any]], /) -> Node[S, Any]:
        """A node of pure code that may wait: `run`, `interrupt`, `receive`, `emit`. I/O belongs into tasks."""
        if not inspect.iscoroutinefunction(function):
            message = f"@{self.name}.flow takes an async function; {function.__name__!r} is none"
            raise TypeError(message)
        return self._add(Node(function.__name__, function, self))

    def _add(self, node: Node[S, Any]) -> Node[S, Any]:
        if node.name in self._nodes:
            message = f"graph {self.name!r} has two nodes named {node.name!r}"
            raise ValueError(message)
        self._app.learn_function(node.function)
        self._nodes[node.name] = node
        self._plan = None
        return node

    def start(self, *nodes: Node[S, Any]) -> None:
        """Begin with these nodes instead of the first one defined."""
        self._entry = tuple(self._own(node) for node in nodes)
        self._plan = None

    def edge(self, *chain: Node[S, Any]) -> None:
        """Go from each node of the chain to the next."""
        for source, target in itertools.pairwise(chain):
            targets = self._edges.get(self._own(source), ())
            self._edges[source.name] = (*targets, self._own(target))
        self._plan = None

    def join(self, sources: Sequence[Node[S, Any]], to: Node[S, Any]) -> None:
        """Go to a node once all the sources have run."""
        names = tuple(self._own(source) for source in sources)
        self._joins.append(Join(f"{'+'.join(names)}>{to.name}", names, self._own(to)))
        self._plan = None

    def route(self, source: Node[S, Any], to: Callable[[S], Any]) -> None:
        """Go where `to(state)` says after `source`: a node, a `send`, several of them, or None for nowhere."""
        self._routes[self._own(source)] = to
        self._plan = None

    def _own(self, node: Node[S, Any]) -> str:
        owner = getattr(node, "graph", None)
        if owner is not self:
            message = f"{node!r} is no node of graph {self.name!r}"
            raise TypeError(message)
        return node.name

    # -- the definition that the kernel sees ---------------------------------------------------------------------

    @property
    def code(self) -> str:
        """The fingerprint of flows and routes; nodes are tasks, whose code may change at any time."""
        return self.plan().code

    def base(self, data: bytes, codec: Codec) -> tuple[tuple[tuple[str, bytes], ...], tuple[Activation, ...]]:
        """The checked input as fields of the state, and the nodes to begin with."""
        plan = self.plan()
        value = codec.decode(data)
        if not is_typeddict(self.state) and not isinstance(value, self.state):
            value = codec.decode(codec.conform(data, self.state))
        fields = _prepare(self.state, self._fields, value)
        pairs = tuple((name, self._field(name, v, codec)) for name, v in fields.items())
        return pairs, tuple(Activation(name) for name in plan.entry)

    def _field(self, name: str, value: Any, codec: Codec) -> bytes:
        try:
            return codec.conform(codec.encode(value), self._fields[name])
        except Refused as refused:
            raise Refused(refused.code, f"field {name!r} of {self.state.__qualname__}: {refused.message}") from refused

    def enter(self, driver: Driver, run: Run) -> Coroutine[Any, Any, Any]:
        """The coroutine of one super-step."""
        return superstep(driver, run, self.plan())

    def plan(self) -> GraphPlan:
        """The graph as the interpreter sees it. Raises `Refused` for a graph without nodes."""
        if self._plan is None:
            if not self._nodes:
                raise Refused("GRAPH_EMPTY", f"graph {self.name!r} has no nodes; define one with @{self.name}.node")
            self._plan = self._make_plan()
        return self._plan

    def _make_plan(self) -> GraphPlan:
        return GraphPlan(
            entry=self._entry or (next(iter(self._nodes)),),
            nodes={
                name: NodePlan(name, node.task, _key(node), None if node.task else _flow(node))
                for name, node in self._nodes.items()
            },
            edges=self._edges,
            routes={source: _route(to) for source, to in self._routes.items()},
            joins=tuple(self._joins),
            fields=self._fields,
            reducers=_reducers(self._fields),
            build=self.build,
            prepare=self.base,
            code=fingerprint(
                *(node.function for node in self._nodes.values() if node.task is None), *self._routes.values()
            ),
        )

    def build(self, fields: dict[str, Any]) -> Any:
        """The typed state from its fields."""
        return fields if is_typeddict(self.state) else self.state(**fields)


def _fields_of(state: type[Any]) -> dict[str, Any]:
    if not (is_typeddict(state) or dataclasses.is_dataclass(state) or hasattr(state, "model_fields")):
        message = f"state={state!r}: the state of a graph is a TypedDict, a dataclass or a pydantic model"
        raise TypeError(message)
    annotations = annotations_of(state, f"state {state.__qualname__}")
    if dataclasses.is_dataclass(state):
        return {field.name: annotations[field.name] for field in dataclasses.fields(state)}
    return {name: annotations[name] for name in getattr(state, "model_fields", annotations)}


def _reducers(fields: Mapping[str, Any]) -> dict[str, Reducer]:
    found: dict[str, Reducer] = {}
    for name, annotation in fields.items():
        inner = get_args(annotation)[0] if get_origin(annotation) in (Required, NotRequired) else annotation
        if get_origin(inner) is Annotated:
            for extra in get_args(inner)[1:]:
                if callable(extra) and not isinstance(extra, type):
                    found[name] = _BUILT_IN.get(extra, extra)
    return found


def _prepare(state: type[Any], fields: Mapping[str, Any], value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        given = dict(value)
    elif not is_typeddict(state) and isinstance(value, state):
        given = {name: getattr(value, name) for name in fields}
    else:
        raise Refused("INPUT_INVALID", f"expected the fields of {state.__qualname__}, got {type(value).__name__}")
    unknown = [str(name) for name in given if name not in fields]
    if unknown:
        raise Refused(
            "INPUT_INVALID", f"{state.__qualname__} has no field {', '.join(unknown)}; its fields: {', '.join(fields)}"
        )
    return given


def _flow(node: Node[Any, Any]) -> Callable[..., Coroutine[Any, Any, NodeResult]]:
    wanted = _wanted(node.function)

    async def body(driver: Driver, *args: Any) -> NodeResult:
        return normalise(node.name, await node.function(Context(driver), *args[-wanted:]))

    return body


def _key(node: Node[Any, Any]) -> Callable[..., str] | None:
    key, wanted = node.task.key if node.task else None, _wanted(node.function)
    return None if key is None else lambda *args: key(*args[-wanted:])


def _route(to: Callable[[Any], Any]) -> Callable[[Any], NodeResult]:
    def target(state: Any) -> NodeResult:
        chosen = to(state)
        several = [] if chosen is None else [chosen] if isinstance(chosen, (Node, Send)) else list(chosen)
        goto = [item.name for item in several if isinstance(item, Node)]
        sends = [(item.node, item.item) for item in several if isinstance(item, Send)]
        if len(goto) + len(sends) != len(several):
            message = f"a route gives nodes, sends or None; it gave {chosen!r}"
            raise TypeError(message)
        return NodeResult({}, goto, sends)

    return target


def _wanted(function: Callable[..., Any]) -> int:
    """How many of (state, item) a node takes: one that takes a single value gets the item where one was sent."""
    return max(1, len(inspect.signature(function).parameters) - 1)


def _as_task(function: Callable[..., Any]) -> Callable[..., Any]:
    """The node's function as a task's: what it returns becomes plain data."""
    name, wanted = function.__name__, _wanted(function)
    if inspect.iscoroutinefunction(function):

        async def on_loop(ctx: TaskContext, *args: Any) -> list[Any]:
            return list(normalise(name, await function(ctx, *args[-wanted:])))

        return on_loop

    def in_thread(ctx: TaskContext, *args: Any) -> list[Any]:
        return list(normalise(name, function(ctx, *args[-wanted:])))

    return in_thread


def normalise(name: str, result: Any) -> NodeResult:
    """What a node returned, in one form. Raises TypeError that says what a node may return."""
    if result is None:
        return NodeResult({})
    if isinstance(result, Goto):
        return NodeResult(dict(result.update), [result.node])
    if isinstance(result, Mapping):
        return NodeResult(dict(result))
    sends = [result] if isinstance(result, Send) else result
    if isinstance(sends, Sequence) and sends and all(isinstance(item, Send) for item in sends):
        return NodeResult({}, None, [(item.node, item.item) for item in sends])
    message = f"node {name!r} returned {type(result).__name__}; return an update of the state, a goto, or sends"
    raise TypeError(message)
