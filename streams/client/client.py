"""The client of an app: sends commands, and waits for what becomes of them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Self, TypeVar, overload
from uuid import uuid4

from streams.authoring.app import App
from streams.authoring.declared import Signal
from streams.authoring.graph import Graph
from streams.authoring.workflow import Workflow
from streams.client.answers import END_MARKS, START_MARKS, End, end_after, end_of_started, end_of_view, verdict
from streams.client.drafts import AnyWorkflow, Attributes, Draft, Drafts, Values
from streams.client.fold import RunView
from streams.client.follower import Follower
from streams.client.partition_view import PartitionView, RunLoader
from streams.client.reading import Progress, StoredEvent, scan, stored_event
from streams.client.sender import BATCH_MAX, Sender, Sent
from streams.errors import Refused, RunCancelled, UnknownRun, UsageError, WireError
from streams.kernel import bodies as ev
from streams.kernel import commands as cmd
from streams.kernel.replies import CLASSES
from streams.kernel.run import Status
from streams.log.port import Log
from streams.wire.messages import EffectMessage
from streams.wire.topics import topics_of

__all__ = ["ACCEPT_SECONDS", "Client"]

I = TypeVar("I")  # noqa: E741 - input
O = TypeVar("O")  # noqa: E741 - output
T = TypeVar("T")

ACCEPT_SECONDS = 30.0
"""How long `accepted` waits for a worker unless told otherwise."""

_STARTED_MAX = 10_000
_STARTED_SECONDS = 3600.0
"""Starts whose place in the log is remembered, so that their results need no search: some 400 bytes each."""


class Client:
    """Talks to the runs of one app through its log; there is no server to ask.

    With an `App`, values come back as its types. With only its name, they come back as plain JSON data.
    """

    def __init__(self, log: Log, app: App | str, *, new_id: Callable[[], str] = lambda: uuid4().hex) -> None:
        """`new_id` makes command ids, by which a repeat of one and the same request is known."""
        name = app if isinstance(app, str) else app.name
        self.log = log
        self.app = None if isinstance(app, str) else app
        self.topics = topics_of(name, () if isinstance(app, str) else app.effects)
        self.values = Values(app)
        self._drafts = Drafts(self.values, new_id)
        self._follower = Follower(log, self.topics.events)
        self._sender = Sender(log, self.topics, self._follower.position)
        self._loaders: dict[int, RunLoader] = {}
        self._started: OrderedDict[str, tuple[float, Sent]] = OrderedDict()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop following. The log stays open: it belongs to whoever opened it."""
        await self._sender.close()
        await self._follower.close()
        for loader in self._loaders.values():
            await loader.close()

    async def partitions(self) -> int:
        """The partition count of the app. Raises `UsageError` where its topics do not exist."""
        return await self._sender.partitions()

    async def partition(self, run_id: str) -> int:
        """Where the run lives."""
        return await self._sender.partition(run_id)

    # -- commands ------------------------------------------------------------------------------------------------

    @overload
    async def start(
        self,
        workflow: Workflow[I, Any],
        input: I,
        /,
        *,
        run_id: str,
        version: int | None = ...,
        attributes: Attributes | None = ...,
        command_id: str | None = ...,
    ) -> Sent: ...
    @overload
    async def start(
        self,
        workflow: Graph[Any] | str,
        input: Any,
        /,
        *,
        run_id: str,
        version: int | None = ...,
        attributes: Attributes | None = ...,
        command_id: str | None = ...,
    ) -> Sent: ...
    async def start(
        self,
        workflow: AnyWorkflow,
        input: Any,
        /,
        *,
        run_id: str,
        version: int | None = None,
        attributes: Attributes | None = None,
        command_id: str | None = None,
    ) -> Sent:
        """Start a run. `input` is a value of the workflow's input type, or plain JSON data of the same shape.

        (Type checkers ask for the type where a workflow object is given, and take anything with its name.)

        Starting again with the same run id and input changes nothing. A workflow object starts its own version, a
        name the newest one that the worker has. "Sent" means durable in the log; `accepted` says what became of it.
        """
        draft = self._drafts.start(
            workflow, input, run_id=run_id, version=version, attributes=attributes, command_id=command_id
        )
        return self._remember(await self._sender.send(draft))

    async def start_many(
        self,
        workflow: AnyWorkflow,
        items: Iterable[tuple[str, Any]] | AsyncIterable[tuple[str, Any]],
        /,
        *,
        version: int | None = None,
        attributes: Attributes | None = None,
        window: int = BATCH_MAX,
    ) -> AsyncIterator[Sent]:
        """Start a run for each (run_id, input), `window` of them to an append; yields them in the same order."""
        batch: list[Draft] = []
        async for run_id, input_ in _each(items):
            draft = self._drafts.start(workflow, input_, run_id=run_id, version=version, attributes=attributes)
            batch.append(draft)
            if len(batch) >= window:
                for sent in await self._sender.send_all(batch):
                    yield self._remember(sent)
                batch = []
        if batch:
            for sent in await self._sender.send_all(batch):
                yield self._remember(sent)

    async def resume(
        self, run_id: str, value: Any, /, *, interrupt: str | None = None, command_id: str | None = None
    ) -> Sent:
        """Answer an open interrupt, named by its id or key; without a name, the only one that is open."""
        data = self.values.encode(value, f"the answer for run {run_id!r}")
        return await self._send(run_id, cmd.Resume(data, interrupt), command_id)

    @overload
    async def signal(self, run_id: str, signal: Signal[T], value: T, /, *, command_id: str | None = ...) -> Sent: ...
    @overload
    async def signal(self, run_id: str, signal: str, value: Any, /, *, command_id: str | None = ...) -> Sent: ...
    async def signal(
        self, run_id: str, signal: Signal[Any] | str, value: Any, /, *, command_id: str | None = None
    ) -> Sent:
        """Send a signal. A repeat with the same `command_id` is received once."""
        name = signal if isinstance(signal, str) else signal.name
        data = self.values.encode(value, f"signal {name!r} for run {run_id!r}")
        return await self._send(run_id, cmd.Signal(name, data), command_id)

    async def reply(
        self,
        message: EffectMessage,
        value: Any = None,
        /,
        *,
        error: tuple[str, str, str] | None = None,
        command_id: str | None = None,
    ) -> Sent:
        """Answer the request that a message of the outbox makes: with a value, or with an `error` (class, code, text).

        The class is "retryable" (surely not done: it is asked for again), "terminal" (not done, and never will be) or
        "unknown" (nobody can tell: a person is asked). `accepted` gives False where the request had its outcome before.
        """
        if error is not None and (error[0] not in CLASSES or value is not None):
            raise UsageError(f"a reply takes a value, or an error whose class is one of {', '.join(CLASSES)}")
        if not message.attempt:
            raise UsageError(f"effect {message.effect_id} was emitted by ctx.emit: nobody waits for a reply to it")
        data = None if error else self.values.encode(value, f"the reply to effect {message.effect_id}")
        request = cmd.Reply(message.op, message.effect_id, message.attempt, message.epoch, data, error)
        return await self._send(message.run_id, request, command_id)

    async def cancel(self, run_id: str, /, *, force: bool = False, operator: str = "") -> Sent:
        """Ask a run to end, so that its code can clean up; `force` ends it at once, without clean-up."""
        return await self._send(run_id, cmd.Cancel(force), None, operator)

    async def retry(self, run_id: str, /, *, op: str | None = None, operator: str = "") -> Sent:
        """Let a blocked run, a parked op or one in back-off go on now."""
        return await self._send(run_id, cmd.Retry(op), None, operator)

    async def skip(self, run_id: str, op: str, /, *, operator: str = "") -> Sent:
        """Fail an op with the code SKIPPED, so that the code decides how to go on without it."""
        return await self._send(run_id, cmd.Skip(op), None, operator)

    async def complete(self, run_id: str, op: str, value: Any, /, *, operator: str = "") -> Sent:
        """Complete a task or request with a value that an operator vouches for."""
        data = self.values.encode(value, f"the value for op {op} of run {run_id!r}")
        return await self._send(run_id, cmd.Complete(op, data), None, operator)

    async def repair(self, run_id: str, request: cmd.Repair, /, *, operator: str = "") -> Sent:
        """Give a damaged run the state that `request` holds; `streams.ops.repair` makes one of what can be read."""
        return await self._send(run_id, request, None, operator)

    async def answer(self, run_id: str, request: cmd.Reply, /, *, operator: str = "") -> Sent:
        """Answer a request in the place of its subscriber, with a value that is encoded already."""
        return await self._send(run_id, request, None, operator)

    # -- what became of it ---------------------------------------------------------------------------------------

    async def accepted(self, sent: Sent, /, *, timeout: float | None = ACCEPT_SECONDS) -> bool:
        """Wait until the owner of the run has decided on the command; False where it was known before.

        Raises:
            Refused: the command was turned down, with the subclass that fits.
            TimeoutError: no worker has taken it in time. It stays in the log and will be taken later.
        """
        wait = self._follower.wait(
            sent.partition, sent.run_id, sent.events_from, lambda stored: verdict(stored, sent.offset)
        )
        message = (
            f"no worker has taken the command for run {sent.run_id!r} in {timeout} s; it is kept. Is a worker of app "
            f"{self.topics.app!r} running? Start one with `streams worker MODULE:APP`"
        )
        return await _within(timeout, wait, message)

    async def result(self, run_id: str, /, *, timeout: float | None = None) -> Any:
        """Wait for the end of the run and return its result.

        Raises:
            RunFailed: the run has failed; the error has its code and details.
            RunCancelled: the run was cancelled.
            ResultExpired: it ended so long ago that its result is not kept any more.
            UnknownRun: no such run has been started, as far as any worker has decided, or it has been forgotten since.
            TimeoutError: it has not ended in time; it goes on.
        """
        message = f"run {run_id!r} has not ended in {timeout} s; it goes on. `streams diagnose {run_id}` says why"
        return self._result(await _within(timeout, self._end(run_id), message), run_id)

    async def _end(self, run_id: str) -> End:
        if run_id in self._started:
            _, sent = self._started[run_id]
            seen: list[bool] = []

            def judge(stored: StoredEvent, offset: int = sent.offset) -> End | bool | None:
                return end_of_started(stored, offset, seen)

            found: End | bool = await self._follower.wait(sent.partition, run_id, sent.events_from, judge, START_MARKS)
            self._started.pop(run_id, None)
            if not isinstance(found, bool):
                return found
        return await self._end_of_known(run_id)

    async def _end_of_known(self, run_id: str) -> End:
        partition = await self._sender.partition(run_id)
        view, read_to = await self._loader(partition).load(run_id)
        if view is None:
            raise UnknownRun("UNKNOWN_RUN", f"no run {run_id!r} has been started in app {self.topics.app!r}")
        end = end_of_view(view)
        if end is not None:
            return end
        if view.damage is not None:
            raise Refused(view.damage.code, f"run {run_id!r} cannot be read: {view.damage.message}")
        identity = view.run.identity if view.run is not None else ""
        return await self._follower.wait(
            partition, run_id, read_to, lambda stored: end_after(stored, identity), END_MARKS
        )

    def _result(self, end: End, run_id: str) -> Any:
        if isinstance(end, ev.RunCompleted):
            return self.values.decode(end.result)
        if isinstance(end, ev.RunFailed):
            raise self.values.failure(end.error)
        raise RunCancelled(f"run {run_id!r} was cancelled")

    # -- looking -------------------------------------------------------------------------------------------------

    async def get(self, run_id: str, /) -> RunView | None:
        """The run as it stands now, or None where there is none."""
        partition = await self._sender.partition(run_id)
        view, _ = await self._loader(partition).load(run_id)
        return view

    async def runs(
        self,
        *,
        status: Status | str | None = None,
        attributes: Attributes | None = None,
        progress: Progress | None = None,
    ) -> AsyncIterator[RunView]:
        """All runs, partition by partition, that have this status and all of these attributes."""
        if status is not None and status not in [*Status]:
            raise UsageError(f"there is no status {str(status)!r}; choose one of {', '.join(Status)}")
        for partition in range(await self._sender.partitions()):
            loaded = await PartitionView.load(self.log, self.topics, partition, progress=progress)
            for view in loaded.runs.values():
                if (status is None or view.status == status) and _has(view, attributes or {}):
                    yield view

    async def history(
        self,
        run_id: str,
        /,
        *,
        progress: Progress | None = None,
        unreadable: Callable[[int, WireError], None] | None = None,
    ) -> list[StoredEvent]:
        """All events of the run in order. The log has no index: the whole partition is read.

        `unreadable` is called with the offset of each record that is no event; without it, one raises `WireError`.
        """
        partition = await self._sender.partition(run_id)
        span = await self.log.span(self.topics.events, partition)
        key = run_id.encode()
        records = scan(self.log, self.topics.events, partition, span.start, span.end, progress=progress)
        found = []
        async for record in records:
            if record.key == key:
                try:
                    found.append(stored_event(record))
                except WireError as error:
                    if unreadable is None:
                        raise
                    unreadable(record.offset, error)
        return found

    # -- parts ---------------------------------------------------------------------------------------------------

    def _remember(self, sent: Sent) -> Sent:
        now = asyncio.get_running_loop().time()
        self._started[sent.run_id] = (now, sent)
        self._started.move_to_end(sent.run_id)
        while len(self._started) > _STARTED_MAX or now - next(iter(self._started.values()))[0] > _STARTED_SECONDS:
            self._started.popitem(last=False)
        return sent

    async def _send(self, run_id: str, request: cmd.Request, command_id: str | None, operator: str = "") -> Sent:
        return await self._sender.send(self._drafts.request(run_id, request, command_id, operator))

    def _loader(self, partition: int) -> RunLoader:
        loader = self._loaders.get(partition)
        if loader is None:
            loader = self._loaders[partition] = RunLoader(self.log, self.topics, partition)
        return loader


async def _within(timeout: float | None, wait: Awaitable[T], message: str) -> T:
    if timeout is None:
        return await wait
    limit = asyncio.timeout(timeout)
    try:
        async with limit:
            return await wait
    except TimeoutError:
        if limit.expired():
            raise TimeoutError(message) from None
        raise


async def _each(items: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


def _has(view: RunView, attributes: Attributes) -> bool:
    own = {} if view.run is None else dict(view.run.attributes)
    return all(own.get(name) == value for name, value in attributes.items())
