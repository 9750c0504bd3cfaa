"""Drives one run through the kernel as a partition would, and checks after every decision what must always hold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from streams import App, Fail, TaskContext
from streams.authoring.app import AppDefinitions
from streams.kernel import bodies as ev
from streams.kernel import commands as cmd
from streams.kernel.changes import base_bytes, decode_base
from streams.kernel.commands import Command
from streams.kernel.decide import Decision, decide, stop_run
from streams.kernel.driver import Driver
from streams.kernel.events import DELIVERIES, Event, event_id
from streams.kernel.evolve import evolve
from streams.kernel.inputs import Due, Env, Input, Outcome, Recover, Returned
from streams.kernel.run import (
    LEGAL_NEXT,
    SEEN_MAX,
    Delivered,
    OpPhase,
    OpState,
    Phase,
    Run,
    Status,
    blank,
    is_terminal,
    status_of,
)
from streams.wire.messages import EffectMessage
from streams.wire.outbox import message_of
from streams.wire.values import ValueCodec

__all__ = ["SECOND", "Harness", "failure", "weigh"]

SECOND = 1_000_000
_ENTRY = 64


def failure(code: str = "BOOM", kind: str = "retryable", message: str = "it failed") -> ev.Failure:
    return ev.Failure(kind, code, message)


def weigh(run: Run) -> int:
    """`run.size`, from scratch."""
    if is_terminal(run):
        return len(run.result or b"")

    def error(e: ev.Failure | None) -> int:
        return 0 if e is None else len(e.message) + len(e.details or b"")

    total = base_bytes(run.base) + sum(len(a.arg or b"") for a in run.active)
    for entry in run.journal:
        total += _ENTRY
        if isinstance(entry, Delivered):
            total += len(entry.value or b"") + error(entry.error)
        elif entry.kind != "withdraw":
            total += len(entry.op) + len(entry.name)
    for op in run.ops.values():
        names = len(op.id) + len(op.name) + len(op.key or "")
        total += _ENTRY + names + len(op.args or b"") + len(op.noted or b"") + error(op.error)
    for item in run.inbox:
        total += _ENTRY + len(item.value)
    for held in run.held:
        total += _ENTRY + len(held.value or b"") + error(held.error)
    return total


class Harness:
    """One run with its log. Every input goes through `feed`."""

    def __init__(self, app: App, run_id: str = "r", *, slots: int = 1_000, checked: bool = True) -> None:
        self.run_id = run_id
        self.slots = {"loop": slots, "thread": slots}
        self.checked = checked
        self.log: list[Event] = []
        self.records: list[Event] = []
        self.run = blank(run_id, 0)
        self.live: Driver | None = None
        self.offset = 0
        self.now = 1_700_000_000 * SECOND
        self.epoch = 1
        self._frozen: list[tuple[Run, str]] = []
        self._deliveries: set[int] = set()
        self._scheduled: set[str] = set()
        self.messages: dict[tuple[str, int], EffectMessage] = {}
        """What has left for the outbox, by op and attempt."""
        self._ids: set[str] = set()
        self.deploy(app)

    def deploy(self, app: App) -> None:
        """Other code: what was live is gone with the old process."""
        self.evict()
        self.app = app
        self.definitions = AppDefinitions(app)
        self.codec = ValueCodec()
        for annotation in app.annotations:
            self.codec.learn(annotation)

    # -- inputs --------------------------------------------------------------------------------------------------

    def env(self) -> Env:
        return Env(self.now, self.epoch, f"w{self.epoch}", self.codec, self.slots, b"entropy")

    def peek(self, input_: Input, *, cached: bool = True) -> Decision:
        """Decide, and keep nothing. The state before is as it was; the coroutine is spent."""
        run = self.run
        if run.seq == 0 and isinstance(input_, Command):
            run = blank(self.run_id, input_.offset)
        return decide(self.definitions, run, self.live if cached else None, input_, self.env())

    def feed(self, input_: Input) -> list[Event]:
        """Decide with the coroutine that is live and once more by replay; keep what both must agree on."""
        before = self.run
        replayed = self.peek(input_, cached=False) if self.checked else None
        decision = self.peek(input_)
        if replayed is not None:
            assert replayed.events == decision.events, "the cached coroutine and the replay differ"
            assert replayed.run == decision.run
            if replayed.live is not None:
                replayed.live.close()
        self.live = decision.live
        return self._adopt(before, input_, decision)

    def stop(self, input_: Input, code: str = "VALUE_TOO_LARGE") -> list[Event]:
        """What the runtime does when a decision could not be written."""
        self.evict()
        before = self.run
        return self._adopt(
            before, input_, stop_run(self.definitions, before, input_, self.env(), code, "it could not be written")
        )

    def _adopt(self, before: Run, input_: Input, decision: Decision) -> list[Event]:
        self.run = decision.run
        if isinstance(input_, Command):
            assert decision.events, "a command left no record"
            assert decision.events[0].offset == input_.offset
            assert all(event.offset is None or event.seq is None for event in decision.events[1:])
        self._check_events(before, decision.events)
        self._check_state()
        return decision.events

    def command(self, request: cmd.Request, command_id: str | None = None, *, operator: str = "") -> list[Event]:
        offset, self.offset = self.offset, self.offset + 1
        return self.feed(Command(self.run_id, request, command_id or f"c{offset}", offset, operator))

    def start(self, workflow: str, value: Any = None, *, version: int | None = None, raw: bytes | None = None) -> Any:
        return self.command(cmd.Start(workflow, self.codec.encode(value) if raw is None else raw, version))

    def resume(self, value: Any, interrupt: str | None = None, command_id: str | None = None) -> list[Event]:
        return self.command(cmd.Resume(self.codec.encode(value), interrupt), command_id)

    def signal(self, name: str, value: Any = None, command_id: str | None = None) -> list[Event]:
        return self.command(cmd.Signal(name, self.codec.encode(value)), command_id)

    def cancel(self, *, force: bool = False) -> list[Event]:
        return self.command(cmd.Cancel(force))

    def retry(self, op: str | None = None) -> list[Event]:
        return self.command(cmd.Retry(op), operator="ann")

    def skip(self, op: str) -> list[Event]:
        return self.command(cmd.Skip(op), operator="ann")

    def complete(self, op: str, value: Any) -> list[Event]:
        return self.command(cmd.Complete(op, self.codec.encode(value)), operator="ann")

    def done(self, op: str, value: Any = None) -> list[Event]:
        """The running attempt of `op` has succeeded."""
        return self.feed(Outcome(op, self.run.ops[op].attempt, self.codec.encode(value)))

    def fail(self, op: str, error: ev.Failure | None = None) -> list[Event]:
        """The running attempt of `op` has failed."""
        return self.feed(Outcome(op, self.run.ops[op].attempt, None, error or failure()))

    def reply(self, op: str, value: Any = None, *, error: tuple[str, str, str] | None = None, **other: Any) -> Any:
        """A subscriber answers the current attempt of a request; `other` says something else than the message does."""
        state = self.run.ops.get(op)
        token = (1, 1) if state is None else (state.attempt, state.epoch)
        data = None if error is not None else self.codec.encode(value)
        reply = cmd.Reply(op, f"{self.run.identity}/{op}", *token, data, error)
        return self.command(reply._replace(**other))

    def due(self, op: str) -> list[Event]:
        return self.feed(Due(op))

    def returned(self, op: str) -> list[Event]:
        return self.feed(Returned(op, self.run.ops[op].attempt, "the worker stops"))

    # -- what happens to workers ---------------------------------------------------------------------------------

    def evict(self) -> None:
        if self.live is not None:
            self.live.close()
            self.live = None

    def abort(self, input_: Input) -> None:
        """The commit of a decision fails: nothing of it counts, and the coroutine that saw it is dropped."""
        decision = self.peek(input_)
        if decision.live is not None:
            decision.live.close()
        self.live = None

    def take_over(self) -> list[Event]:
        """Another worker folds the log and sorts what was running."""
        self.evict()
        self.epoch += 1
        rebuilt = self.fold()
        assert rebuilt == self.run
        self.run = rebuilt
        return self.feed(Recover())

    def fold(self) -> Run:
        run = blank(self.run_id, int(self.run.identity.rpartition("@")[2]))
        for event in self.log:
            run = evolve(run, event)
        return run

    # -- doing what the run waits for ----------------------------------------------------------------------------

    def ops(self, *phases: OpPhase) -> list[OpState]:
        return [op for op in self.run.ops.values() if op.phase in phases]

    def execute(self, op: OpState) -> Outcome:
        """Run the task's function, which must not wait for anything."""
        task = self.app.task_named(op.name)
        assert task is not None
        if op.ref == "state":
            definition: Any = self.app.find(self.run.workflow, self.run.version)
            args: list[Any] = [definition.build(decode_base(self.run.base, self.codec))]
            args += [] if op.args is None else [self.codec.decode(op.args)]
            kwargs: dict[str, Any] = {}
        else:
            decoded = self.codec.decode(op.args or b"[[]]")
            args, kwargs = decoded[0], decoded[1] if len(decoded) > 1 else {}
        context = TaskContext(self.run_id, attempt=op.attempt, idempotency_key=op.key or "")
        try:
            value = task.function(context, *args, **kwargs)
            if task.is_async:
                value = _finish(value)
        except Fail as error:
            details = None if error.details is None else self.codec.encode(error.details)
            return Outcome(op.id, op.attempt, None, ev.Failure("terminal", error.code, error.message, details))
        except Exception as error:  # noqa: BLE001 - whatever a task raises is its outcome
            return Outcome(op.id, op.attempt, None, ev.Failure("retryable", type(error).__name__, str(error)))
        return Outcome(op.id, op.attempt, self.codec.encode(value))

    def step(self) -> bool:
        """Do the first thing that the run waits for and that needs nobody: an attempt, a slot, or the next time."""
        running = self.ops(OpPhase.RUNNING)
        if running:
            self.feed(self.execute(running[0]))
            return True
        queued = self.ops(OpPhase.QUEUED)
        if queued:
            self.due(queued[0].id)
            return True
        timed = [op for op in self.ops(OpPhase.BACKOFF, OpPhase.WAITING) if op.due is not None]
        if timed and self.run.blocked is None:
            first = min(timed, key=lambda op: op.due or 0)
            self.now = max(self.now, first.due or 0)
            self.due(first.id)
            return True
        return False

    def settle(self, steps: int = 1_000) -> Harness:
        """Work until the run has ended or waits for somebody."""
        for _ in range(steps):
            if is_terminal(self.run) or not self.step():
                return self
        message = f"the run is not at rest after {steps} steps"
        raise AssertionError(message)

    # -- what came of it -----------------------------------------------------------------------------------------

    @property
    def status(self) -> Status:
        return status_of(self.run)

    @property
    def result(self) -> Any:
        assert self.run.phase is Phase.COMPLETED, (self.run.phase, self.run.error, self.run.blocked)
        assert self.run.result is not None
        return self.codec.decode(self.run.result)

    @property
    def blocked(self) -> str | None:
        return None if self.run.blocked is None else self.run.blocked.code

    def open(self) -> dict[str, str]:
        """The open ops: id -> kind."""
        return {op.id: op.kind for op in self.run.ops.values()}

    def of(self, *kinds: type) -> list[Any]:
        """The bodies of these kinds in the log, in order."""
        return [event.body for event in self.log if isinstance(event.body, kinds)]

    def types(self) -> list[str]:
        return [event.type for event in self.log]

    # -- what must always hold -----------------------------------------------------------------------------------

    def _check_events(self, before: Run, events: Iterable[Event]) -> None:
        run = before
        for event in events:
            assert event.run_id == self.run_id
            assert event.epoch == self.epoch
            if event.seq is None:
                ids = {event_id(record) for record in self.records if isinstance(record.body, ev.CommandRejected)}
                assert event_id(event) not in ids
                self.records.append(event)
                assert isinstance(event.body, (ev.CommandRejected, ev.OutcomeLate))
                continue
            if run.seq == 0:
                run = blank(self.run_id, int(event.identity.rpartition("@")[2]))
            assert event.seq == run.seq + 1
            assert event.at >= run.at
            assert event_id(event) not in self._ids
            self._ids.add(event_id(event))
            if run.seq > 0 and run.epoch != event.epoch:
                assert isinstance(event.body, ev.RunOwned)
            after = evolve(run, event)
            assert not is_terminal(run)
            assert status_of(after) in LEGAL_NEXT[status_of(run)] | {status_of(run)}
            self._check_event(event, after)
            self.log.append(event)
            run = after
        assert run == self.run if self.run.seq else True
        if is_terminal(before):
            assert self.run == before

    def _check_event(self, event: Event, after: Run) -> None:
        if type(event.body) in DELIVERIES or isinstance(event.body, ev.RunUnblocked):
            assert event.seq is not None
            self._deliveries.add(event.seq)
        if event.cause is not None:
            assert event.cause in self._deliveries
        if isinstance(event.body, ev.OpScheduled):
            assert event.cause is not None
            assert event.body.op not in self._scheduled, "an op id was used twice"
            assert (after.generation == 1) == (not event.body.op.startswith("g"))
            self._scheduled.add(event.body.op)
        message = message_of(event, after)
        if message is not None:
            assert (message.op, message.attempt) not in self.messages, "a message was sent twice"
            first = self.messages.get((message.op, 1), message)
            again = first._replace(attempt=message.attempt, epoch=message.epoch, at=message.at)
            assert message == again, "an attempt differs in more than its number"
            self.messages[message.op, message.attempt] = message
        assert not self.checked or after.size == weigh(after), (
            f"{event.type}: size {after.size}, weighed {weigh(after)}"
        )

    def _check_state(self) -> None:
        run = self.run
        for old, shown in self._frozen:
            assert repr(old) == shown, "a run value was changed after it was given out"
        if self.checked:
            self._frozen = [*self._frozen[-2:], (run, repr(run))]
        assert len(run.seen) <= SEEN_MAX
        assert run.blocked is not None or not run.held
        if is_terminal(run):
            assert not run.ops
            assert not run.held
            assert len(run.journal) == 0
            assert self.live is None
        elif run.phase is Phase.ACTIVE and run.blocked is None:
            assert run.ops, "an active run waits for nothing"
        for id_, op in run.ops.items():
            assert id_ == op.id
            assert (op.phase is OpPhase.BACKOFF) <= (op.due is not None)
            assert (op.phase is OpPhase.RUNNING) <= (op.kind == "task" and op.attempt > 0)
            assert op.spent <= op.attempt


def _finish(coroutine: Any) -> Any:
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    message = "a task of a test waited"
    raise AssertionError(message)
