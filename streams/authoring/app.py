"""The app: everything that one deployment defines, and the definitions that the engine looks up in it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from streams.authoring.context import Context
from streams.authoring.declared import Effect, Signal, check_name
from streams.authoring.durability import EVERY_STEP, PIPELINED, Durability, check_durability
from streams.authoring.fingerprint import fingerprint
from streams.authoring.graph import Graph
from streams.authoring.subscriber import (
    LOOKS,
    BatchContext,
    BatchDecorator,
    EffectContext,
    LookUp,
    Subscription,
    SubscriptionDecorator,
    check_handler,
)
from streams.authoring.task import (
    Reconciled,
    ReconciledTaskDecorator,
    Retry,
    Task,
    TaskContext,
    TaskDecorator,
    annotations_of,
    make_policy,
)
from streams.authoring.workflow import Workflow
from streams.kernel.definition import Definition

__all__ = ["App"]

P = ParamSpec("P")
R = TypeVar("R")
I = TypeVar("I")  # noqa: E741 - input
O = TypeVar("O")  # noqa: E741 - output
S = TypeVar("S")
T = TypeVar("T")
E = TypeVar("E")
Y = TypeVar("Y")
Lifespan = Callable[["App"], AbstractAsyncContextManager[Any]]


class App:
    """A named set of workflows, graphs, tasks, signals and effects. Its topics begin with its name."""

    def __init__(self, name: str, *, lifespan: Lifespan | None = None) -> None:
        """Name the app. `lifespan(app)` is entered once a worker; tasks see what it yields as `ctx.resources`."""
        self.name = check_name("app", name)
        self.lifespan = lifespan
        self.annotations: list[Any] = []
        """The types that values may have, for the codec."""
        self.named_types: dict[str, type[Any]] = {}
        self._definitions: dict[str, dict[int, Definition]] = {}
        self._tasks: dict[str, Task[Any, Any]] = {}
        self._signals: dict[str, Any] = {}
        self._effects: dict[str, Any] = {}
        self._replies: dict[str, Any] = {}
        self._subscriptions: dict[str, Subscription[Any, Any]] = {}

    # -- declarations --------------------------------------------------------------------------------------------

    @overload
    def task(self, function: Callable[Concatenate[TaskContext, P], Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[Concatenate[TaskContext, P], R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        /,
        *,
        reconcile: Callable[Concatenate[TaskContext, P], Coroutine[Any, Any, Reconciled[R]]],
        name: str | None = None,
        retry: Retry | None = None,
        timeout: float | timedelta | None = None,
        idempotent: bool = True,
        key: Callable[..., str] | None = None,
    ) -> ReconciledTaskDecorator[P, R]: ...
    @overload
    def task(
        self,
        /,
        *,
        reconcile: Callable[Concatenate[TaskContext, P], Reconciled[R]],
        name: str | None = None,
        retry: Retry | None = None,
        timeout: float | timedelta | None = None,
        idempotent: bool = True,
        key: Callable[..., str] | None = None,
    ) -> ReconciledTaskDecorator[P, R]: ...
    @overload
    def task(
        self,
        /,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: float | timedelta | None = None,
        idempotent: bool = True,
        key: Callable[..., str] | None = None,
        pure: bool = False,
    ) -> TaskDecorator: ...
    def task(self, function: Any = None, /, *, name: str | None = None, **options: Any) -> Any:
        """Declare a task: an async function, or a plain one that runs in a thread.

        `timeout` bounds one attempt (60 s unless given). `key` makes a business key of the arguments. `reconcile` looks
        an uncertain outcome up and gives Found, NotFound or Unknown. `idempotent=False` asks a person instead of
        repeating what may have happened. `pure=True` says that it touches nothing outside: a workflow that is
        `durability="pipelined"` may run it before the commit of its start, and more than once.
        """
        if function is None:
            return lambda f: self.add_task(f, name or f.__name__, options)
        return self.add_task(function, name or function.__name__, options)

    def add_task(
        self,
        function: Callable[..., Any],
        name: str,
        options: dict[str, Any],
        *,
        source: Callable[..., Any] | None = None,
        result: Any = None,
    ) -> Task[Any, Any]:
        """Register a task. `source` is the function that a user wrote where `function` wraps it to give a `result`."""
        check_name("task", name)
        if name in self._tasks:
            message = f"app {self.name!r} has two tasks named {name!r}; give one of them another with name="
            raise ValueError(message)
        unknown = set(options) - {"retry", "timeout", "idempotent", "key", "reconcile", "pure"}
        if unknown:
            message = f"task {name!r}: unknown option {', '.join(sorted(unknown))}"
            raise TypeError(message)
        annotations = self.learn_function(source or function)
        task: Task[Any, Any] = Task(
            name,
            function,
            make_policy(options.get("retry"), options.get("timeout")),
            options.get("idempotent", True),
            options.get("key"),
            options.get("reconcile"),
            annotations.get("return", Any) if source is None else result,
            inspect.signature(function) if source is None else None,
            pure=options.get("pure", False),
            is_async=inspect.iscoroutinefunction(function),
        )
        self._tasks[name] = task
        return task

    def workflow(
        self, *, version: int, name: str | None = None, durability: Durability = "every_step"
    ) -> Callable[[Callable[[Context, I], Coroutine[Any, Any, O]]], Workflow[I, O]]:
        """Declare a version of a workflow: a pure async function of a context and one input.

        `durability="pipelined"` lets its tasks that are `pure=True` run while the commit of what came before is under
        way. Nothing that anybody could see leaves before it: docs/durability.md.
        """

        def declare(function: Callable[[Context, I], Coroutine[Any, Any, O]]) -> Workflow[I, O]:
            chosen = check_name("workflow", name or function.__name__)
            if not inspect.iscoroutinefunction(function) or len(inspect.signature(function).parameters) != 2:
                message = f"workflow {chosen!r}: write `async def {function.__name__}(ctx: Context, input: SomeType)`"
                raise TypeError(message)
            annotations = self.learn_function(function)
            input_name = list(inspect.signature(function).parameters)[1]
            workflow: Workflow[I, O] = Workflow(
                chosen,
                version,
                function,
                annotations.get(input_name, Any),
                annotations.get("return", Any),
                fingerprint(function),
                check_durability(f"workflow {chosen!r}", durability),
            )
            self._define(workflow)
            return workflow

        return declare

    def graph(self, name: str, *, state: type[S], version: int, durability: Durability = "every_step") -> Graph[S]:
        """Declare a version of a graph with a typed state. `durability` is that of `workflow`."""
        check_durability(f"graph {name!r}", durability)
        graph: Graph[S] = Graph(self, check_name("graph", name), state, version, durability)
        self.annotations.append(state)
        self._define(graph)
        return graph

    def signal(self, name: str, type: type[T], /) -> Signal[T]:
        """Declare a signal that runs may receive."""
        self._signals[check_name("signal", name)] = type
        self.annotations.append(type)
        return Signal(name, type)

    @overload
    def effect(self, name: str, type: type[E], /, *, retry: Retry | None = None) -> Effect[E, None]: ...
    @overload
    def effect(self, name: str, type: type[E], /, *, reply: type[Y], retry: Retry | None = None) -> Effect[E, Y]: ...
    def effect(self, name: str, type: Any, /, *, reply: Any = None, retry: Retry | None = None) -> Any:
        """Declare an effect, which gets a topic of its own.

        `reply` is the type that completes a `ctx.request` of it; without it a request is completed by None. `retry`
        bounds how often a request is sent again that ran out of time, or was answered by a retryable error.
        """
        if check_name("effect", name).endswith(".dead"):
            message = f"effect {name!r}: no effect name ends in '.dead', which is for what subscribers gave up on"
            raise ValueError(message)
        if retry is not None and retry.terminal:
            message = f"effect {name!r}: a reply brings no exception, so leave terminal= out; it says itself if it is"
            raise ValueError(message)
        if name in self._effects and (self._effects[name], self._replies[name]) != (type, reply):
            message = f"effect {name!r} is declared already, with another type or reply; give this one another name"
            raise ValueError(message)
        self._effects[name], self._replies[name] = type, reply
        self.annotations += [type] if reply is None else [type, reply]
        return Effect(name, type, reply, make_policy(retry, None)._replace(timeout=None))

    @overload
    def subscriber(
        self,
        effect: Effect[E, Y],
        /,
        *,
        reconcile: LookUp[E, Y] | None = None,
        retry: Retry | None = None,
        timeout: float | timedelta | None = None,
        idempotent: bool = False,
        transactional: bool = False,
        many: Literal[False] = False,
        batch: int = 500,
        looks: Retry | None = None,
        name: str | None = None,
    ) -> SubscriptionDecorator[E, Y]: ...
    @overload
    def subscriber(
        self,
        effect: Effect[E, Y],
        /,
        *,
        retry: Retry | None = None,
        timeout: float | timedelta | None = None,
        transactional: Literal[True],
        many: Literal[True],
        batch: int = 500,
        name: str | None = None,
    ) -> BatchDecorator[E, Y]: ...
    def subscriber(
        self,
        effect: Effect[Any, Any],
        /,
        *,
        reconcile: LookUp[Any, Any] | None = None,
        retry: Retry | None = None,
        timeout: float | timedelta | None = None,
        idempotent: bool = False,
        transactional: bool = False,
        many: bool = False,
        batch: int = 500,
        looks: Retry | None = None,
        name: str | None = None,
    ) -> Any:
        """Declare who carries an effect out: an async function of a context and a payload, or a plain one.

        What it returns is the reply. `Fail`, exceptions that `retry` names as terminal, and `TryAgain` say that nothing
        was done. After any other exception, a crash, or `timeout` (60 s unless given) it may have been: `reconcile`
        looks it up then and gives Found, NotFound or Unknown, as often as `looks` says. Without it, `idempotent=True`
        repeats under the same key, and otherwise a person is asked. A `transactional` handler writes in the ledger's
        own transaction, up to `batch` messages in one, so whatever it raises is rolled back. With `many` it is called
        once for all of them, with a `BatchContext` and their payloads, and returns as many results in their order.
        """
        options = {"reconcile": reconcile, "idempotent": idempotent, "transactional": transactional, "batch": batch}
        policies = {"policy": make_policy(retry, timeout), "looks": make_policy(looks or LOOKS, timeout)}
        return lambda function: self._subscribe(effect, function, name, {**options, **policies, "many": many})

    def _subscribe(
        self, effect: Effect[Any, Any], function: Callable[..., Any], name: str | None, options: dict[str, Any]
    ) -> Subscription[Any, Any]:
        chosen = check_name("subscriber", name or getattr(function, "__name__", ""))
        what = f"subscriber {chosen!r} of effect {effect.name!r}"
        if effect.name not in self._effects:
            message = f"{what}: app {self.name!r} has no effect of this name; declare it with app.effect first"
            raise ValueError(message)
        if effect.name in self._subscriptions:
            other = self._subscriptions[effect.name].name
            message = f"{what}: {other!r} subscribes already. An effect has one subscriber; call the other from it"
            raise ValueError(message)
        if options["transactional"] and (options["reconcile"] or options["idempotent"]):
            message = f"{what}: a transactional handler is rolled back, so it takes neither reconcile nor idempotent"
            raise ValueError(message)
        if options["many"] and not options["transactional"]:
            message = (
                f"{what}: many=True is for transactional=True. Outside the ledger's transaction each message has an "
                "outcome of its own, so write a handler of one payload: up to 1,000 of its calls run at once"
            )
            raise ValueError(message)
        if options["batch"] < 1:
            message = f"{what}: batch={options['batch']!r}; a batch holds at least one message"
            raise ValueError(message)
        check_handler(what, function, many=options["many"])
        self.learn_function(function)
        if options["reconcile"] is not None:
            check_handler(f"the look-up of {what}", options["reconcile"])
            self.learn_function(options["reconcile"])
        is_async = inspect.iscoroutinefunction(function)
        found: Subscription[Any, Any] = Subscription(effect, chosen, function, is_async=is_async, **options)
        self._subscriptions[effect.name] = found
        return found

    def types(self, *types: Any, **named: type[Any]) -> None:
        """Make types known whose values are stored but that no annotation reaches; by keyword under another name."""
        self.annotations.extend(types)
        self.named_types.update(named)

    def learn_function(self, function: Callable[..., Any]) -> dict[str, Any]:
        """Make the types of a function's annotations known, and return them."""
        where = f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', function)}"
        annotations = annotations_of(function, where)
        engine = (BatchContext, Context, EffectContext, TaskContext)
        self.annotations.extend(hint for hint in annotations.values() if hint not in engine)
        return annotations

    def _define(self, definition: Definition) -> None:
        version: object = definition.version
        if not isinstance(version, int) or version < 1:
            message = f"{definition.name!r}: version={version!r}; versions are whole numbers from 1 on"
            raise ValueError(message)
        versions = self._definitions.setdefault(definition.name, {})
        if version in versions:
            message = f"app {self.name!r} defines version {version} of {definition.name!r} twice"
            raise ValueError(message)
        versions[definition.version] = definition

    # -- what the kernel looks up --------------------------------------------------------------------------------

    def find(self, name: str, version: int | None) -> Definition | None:
        """The given version of a workflow or graph, or the latest."""
        versions = self._definitions.get(name)
        if not versions:
            return None
        return versions.get(max(versions) if version is None else version)

    def versions(self, name: str) -> Iterable[int]:
        """The versions that are defined."""
        return tuple(self._definitions.get(name, {}))

    def is_pipelined(self, name: str, version: int) -> bool:
        """Whether this version of a workflow or graph is declared `durability="pipelined"`."""
        return getattr(self.find(name, version), "durability", EVERY_STEP) == PIPELINED

    def task_named(self, name: str) -> Task[Any, Any] | None:
        """A task by its name."""
        return self._tasks.get(name)

    @property
    def signals(self) -> Mapping[str, Any]:
        """The declared signals and their types."""
        return self._signals

    @property
    def effects(self) -> Mapping[str, Any]:
        """The declared effects and their payload types."""
        return self._effects

    def subscription(self, name: str) -> Subscription[Any, Any] | None:
        """The subscriber of the effect of this name, if it has one here."""
        return self._subscriptions.get(name)

    @property
    def subscriptions(self) -> Mapping[str, Subscription[Any, Any]]:
        """The subscribers by the names of their effects."""
        return self._subscriptions

    @property
    def replies(self) -> Mapping[str, Any]:
        """The declared effects and the types of the replies to their requests."""
        return self._replies


class AppDefinitions:
    """An app as the kernel's `Definitions`: `workflow` and `task` declare in the one and look up in the other."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.signals = app.signals
        self.effects = app.effects
        self.replies = app.replies
        self.workflow = app.find
        self.versions = app.versions
        self.task = app.task_named
