"""Subscribers: user code that carries an effect out once, with its rules for retries, look-ups and the unknown."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Generic, Protocol, TypeVar, overload

from streams.authoring.declared import Effect
from streams.authoring.task import FencingToken, Reconciled, Retry
from streams.kernel.bodies import Policy

__all__ = [
    "LOOKS",
    "BatchContext",
    "BatchDecorator",
    "EffectContext",
    "LookUp",
    "Subscription",
    "SubscriptionDecorator",
    "check_handler",
]

E = TypeVar("E")
Y = TypeVar("Y")

LOOKS = Retry(max_attempts=8, initial=2.0, factor=2.0, max_delay=300.0)
"""How often, and how fast one after another, an uncertain outcome is looked up before a person is asked."""


class EffectContext:
    """What one delivery of an effect knows of itself. The engine makes it; for a unit test make one by hand."""

    def __init__(
        self,
        effect_id: str = "test",
        *,
        idempotency_key: str = "test",
        run_id: str = "test",
        workflow: str = "test",
        version: int = 1,
        fencing_token: FencingToken = FencingToken(1, 0),  # noqa: B008 - a frozen value
        delivery: int = 1,
        headers: Mapping[str, str] | None = None,
        at: datetime = datetime(2000, 1, 1, tzinfo=UTC),
        resources: Any = None,
        connection: Any = None,
    ) -> None:
        self.effect_id = effect_id
        """The same for every delivery of this message."""
        self.idempotency_key = idempotency_key
        """Give it to the outside system: it is the same however often this is tried."""
        self.run_id = run_id
        self.workflow = workflow
        self.version = version
        self.fencing_token = fencing_token
        """(epoch, attempt): a service that is written to directly refuses an older one of the same effect id."""
        self.delivery = delivery
        """Which try of the subscriber this is, from 1 on; in a look-up, the try that it is about."""
        self.headers: dict[str, str] = dict(headers or {})
        self.at = at
        """When the run asked for it."""
        self.resources = resources
        """What the app's lifespan yielded."""
        self.connection = connection
        """Of a transactional handler: the open transaction of the ledger, which commits with the outcome."""
        self.cancelled = False
        """Set when nobody waits for this any more: the time is up, or the claim is gone."""

    @property
    def attempt(self) -> int:
        """The attempt of a request; 0 where nobody waits for a reply."""
        return self.fencing_token.attempt


class BatchContext:
    """What a handler of many messages is told. The engine makes it; for a unit test make one by hand."""

    def __init__(
        self, deliveries: Sequence[EffectContext] = (), *, resources: Any = None, connection: Any = None
    ) -> None:
        self.deliveries = tuple(deliveries)
        """The context of each message, in the order of the payloads."""
        self.resources = resources
        """What the app's lifespan yielded."""
        self.connection = connection
        """The open transaction of the ledger, which commits with the outcomes of all of them."""


@dataclass(frozen=True, slots=True)
class Subscription(Generic[E, Y]):
    """The subscriber of an effect; made by `@app.subscriber`. Called directly, it is the plain function."""

    effect: Effect[E, Y]
    name: str
    function: Callable[..., Any]
    policy: Policy
    looks: Policy
    reconcile: Callable[..., Any] | None = field(default=None)
    idempotent: bool = False
    transactional: bool = False
    batch: int = 500
    is_async: bool = True
    """Whether the function runs on the event loop; others run in threads."""
    many: bool = False
    """Whether the function takes all payloads of a batch at once."""

    @overload
    async def __call__(self, ctx: EffectContext, payload: E, /) -> Y: ...
    @overload
    async def __call__(self, ctx: BatchContext, payloads: Sequence[E], /) -> Sequence[Y] | None: ...
    async def __call__(self, ctx: Any, payload: Any, /) -> Any:
        """Call the function itself, without the engine."""
        outcome = self.function(ctx, payload)
        return await outcome if inspect.isawaitable(outcome) else outcome


LookUp = Callable[[EffectContext, E], Coroutine[Any, Any, Reconciled[Y]]] | Callable[[EffectContext, E], Reconciled[Y]]


class SubscriptionDecorator(Protocol[E, Y]):
    """What `@app.subscriber(effect)` gives: the handler takes the effect's payload and returns its reply."""

    @overload
    def __call__(self, function: Callable[[EffectContext, E], Coroutine[Any, Any, Y]], /) -> Subscription[E, Y]: ...
    @overload
    def __call__(self, function: Callable[[EffectContext, E], Y], /) -> Subscription[E, Y]: ...


class BatchDecorator(Protocol[E, Y]):
    """What `@app.subscriber(effect, transactional=True, many=True)` gives: one result for each payload, in order.

    None stands for all of them where the effect has no reply.
    """

    @overload
    def __call__(
        self, function: Callable[[BatchContext, Sequence[E]], Coroutine[Any, Any, Sequence[Y] | None]], /
    ) -> Subscription[E, Y]: ...
    @overload
    def __call__(
        self, function: Callable[[BatchContext, Sequence[E]], Sequence[Y] | None], /
    ) -> Subscription[E, Y]: ...


def check_handler(what: str, function: Callable[..., Any], *, many: bool = False) -> None:
    """Raise TypeError unless it takes a context and a payload, or a batch of them."""
    try:
        inspect.signature(function).bind(None, None)
    except TypeError as error:
        name = getattr(function, "__name__", "handler")
        taken = "ctx: BatchContext, payloads: Sequence[SomeType]" if many else "ctx: EffectContext, payload: SomeType"
        message = f"{what}: write `async def {name}({taken})`, sync or async"
        raise TypeError(message) from error
