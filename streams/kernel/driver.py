"""The coroutine driver: moves workflow code by one delivery at a time, and records what the code does in answer.

A driver is a cache of the journal: `replay` builds the same one again, or says where the code differs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Coroutine, Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from streams.errors import Cancelled, Evicted, Fail, OpError, StreamsError
from streams.kernel import combine
from streams.kernel.bodies import EffectEmitted, OpKind, OpScheduled, OpWithdrawn, Policy
from streams.kernel.closing import close_quietly
from streams.kernel.fault import (
    FAULTS,
    Command,
    Fault,
    as_fault,
    bug,
    difference,
    foreign,
    hash_of,
    is_withdrawal,
    mark_of,
)
from streams.kernel.ops import Branch, Group, Leaf, Op
from streams.kernel.run import WORKED_ON, Delivered, Issued, Run
from streams.kernel.times import as_datetime, span_us

if TYPE_CHECKING:
    from streams.kernel.codec import Codec
    from streams.kernel.definition import Definition, Definitions, TaskSpec

__all__ = ["COMMANDS_MAX", "DEAD_CALLS_MAX", "Driver"]

COMMANDS_MAX = 10_000
"""Commands that code may issue in answer to one delivery; more is a loop that never waits."""

DEAD_CALLS_MAX = 100
"""Calls after eviction until a coroutine that swallows every exception is abandoned."""


class Driver:
    """Drives the coroutines of one generation of one run."""

    __deletable__ = ["main"]  # noqa: RUF012 - for mypyc, which knows no other form

    def __init__(self, definitions: Definitions, definition: Definition, run: Run, codec: Codec) -> None:
        self.codec = codec
        self.run_id = run.run_id
        self.identity = run.identity
        self.version = run.version
        self.generation = run.generation
        self.code = definition.code
        self._definitions = definitions
        self._seed = run.seed
        self._at = 0
        self._leaves: dict[str, Leaf[Any]] = {}
        self._branches: list[Branch[Any]] = []
        self._ready: list[tuple[Branch[Any], Op[Any] | None, BaseException | None]] = []
        self._issued: list[Command] = []
        self._current: Branch[Any] | None = None
        self._dead_calls = -1
        self._living = 0
        self._settled = 0
        self._cancelled_at = 0
        self._recalling = False
        self._fault: Fault | None = None
        prefix = "" if run.generation == 1 else f"g{run.generation}."
        self.main = self._branch("", prefix, definition.enter(self, run))

    # -- deliveries ----------------------------------------------------------------------------------------------

    def deliver(self, entry: Delivered) -> list[Command]:
        """Hand one delivery to the code, drive it until it waits, and return what it did in answer."""
        issued: list[Command] = []
        self._issued = issued
        self._at = max(self._at, entry.at)
        if entry.kind == "cancel.requested":
            self._cancel((entry.value or b"").decode().split("\n"))
        elif entry.op is not None:
            self._leaves[entry.op].deliver(entry.value, entry.error)
        self._run()
        return issued

    def replay(self, journal: Iterable[Delivered | Issued]) -> None:
        """Drive the code through the journal. Raises `Fault` NON_DETERMINISM where the code does something else."""
        expected: list[Issued] = []
        entry: Delivered | None = None
        for item in journal:
            if isinstance(item, Issued):
                expected.append(item)
                continue
            if entry is not None:
                self._compare(entry, expected)
            entry, expected = item, []
        if entry is not None:
            self._compare(entry, expected)

    def _compare(self, entry: Delivered, expected: list[Issued]) -> None:
        try:
            issued = [mark_of(command) for command in self.deliver(entry)]
        except KeyError as error:
            raise Fault("NON_DETERMINISM", f"the journal settles op {error}, which the code never created") from error
        fault = difference(entry, expected, issued)
        if fault is not None:
            raise fault

    def outcome(self) -> tuple[Any, BaseException | None]:
        """What the main branch returned or raised."""
        return self.main.value, self.main.failed()

    @property
    def finished(self) -> bool:
        """Whether every branch has ended."""
        return self._living == 0

    def unawaited_failure(self, *, in_clean_up: bool = False) -> BaseException | None:
        """The first failure that nobody awaited; of those after the run was cancelled if `in_clean_up`."""
        since = self._cancelled_at if in_clean_up else 0
        for op in (*self._branches[1:], *self._leaves.values()):
            if op.done and not op.retrieved and op.order > since:
                error = op.failed()
                if error is not None and not isinstance(error, Cancelled) and not is_withdrawal(error):
                    return error
        return None

    def leaf(self, op: str) -> Leaf[Any] | None:
        """The live op with this id."""
        return self._leaves.get(op)

    def next_order(self) -> int:
        """The place of an op that settles now."""
        self._settled += 1
        return self._settled

    # -- driving -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            for branch, awaited, thrown in self._ready:  # what is driven may add to it
                if branch.done or (thrown is None and branch.waiting is not awaited):
                    continue
                self._step(branch, thrown)
                if self._fault is not None:
                    raise self._fault
        finally:
            self._ready.clear()

    def _step(self, branch: Branch[Any], thrown: BaseException | None) -> None:
        self._current = branch
        branch.waiting = None
        if thrown is not None:
            branch.retrieved = False  # what fails from here on is a failure of clean-up, which must not vanish
        try:
            awaited = branch.coro.send(None) if thrown is None else branch.coro.throw(thrown)
        except StopIteration as stop:
            self._end(branch, stop.value, None)
        except (Fail, OpError, Cancelled) as error:
            self._end(branch, None, error)
        except (Fault, KeyboardInterrupt):
            raise
        except FAULTS as error:
            raise as_fault(error) from error
        except BaseException as error:
            raise Fault("WORKFLOW_BUG", bug(error)) from error
        else:
            self._wait(branch, awaited)
        finally:
            self._current = None

    def _wait(self, branch: Branch[Any], awaited: Any) -> None:
        if not isinstance(awaited, Op):
            raise foreign(awaited)
        branch.waiting = awaited
        awaited.watch(lambda op: self._ready.append((branch, op, None)))

    def _end(self, branch: Branch[Any], value: Any, error: BaseException | None) -> None:
        self._living -= 1
        branch.end(value, error)

    def _cancel(self, withdrawn: Iterable[str]) -> None:
        self._cancelled_at = self._settled
        for branch in self._branches[::-1]:
            self._throw(branch)
        for leaf in self._leaves.values():
            leaf.retrieved = leaf.retrieved or not leaf.done  # that a task stops when it is asked to is no failure
        self._end_waits([self._leaves[op] for op in withdrawn if op and not self._leaves[op].done])

    def _throw(self, branch: Branch[Any]) -> None:
        if not branch.done and not branch.asked:
            branch.asked = True
            self._ready.append((branch, None, Cancelled()))

    def _end_waits(self, leaves: list[Leaf[Any]]) -> None:
        """Withdraw leaves of cancelled code. The groups that this ends leave their other ops to the clean-up."""
        for leaf in leaves:
            leaf.mark_withdrawn()
        self._recalling = True
        for leaf in leaves:
            leaf.withdraw()
        self._recalling = False

    # -- what code may do ----------------------------------------------------------------------------------------

    def check(self) -> Branch[Any]:
        """The branch being driven. Raises outside a drive, and `Evicted` once the run has left memory."""
        if self._current is None:
            if self._dead_calls < 0:
                raise StreamsError("ops are created and awaited only by workflow code while the engine drives it")
            # Code that swallows Evicted would never end; after some calls it may wait, and closing it then gives up.
            self._dead_calls += 1
            if self._dead_calls > DEAD_CALLS_MAX:
                return self.main
            raise Evicted
        return self._current

    def now(self) -> datetime:
        """The time of the current delivery: it stands still between awaits and never goes back."""
        self.check()
        return as_datetime(self._at)

    def draw(self, bytes_count: int) -> bytes:
        """Bytes that look random and are the same at every replay."""
        branch = self.check()
        branch.draws += 1
        place = f"{self.generation}/{branch.id}/{branch.draws}".encode()
        return hashlib.blake2b(place, key=self._seed[:64], digest_size=bytes_count).digest()

    def uuid(self) -> UUID:
        """A version 4 UUID from `draw`."""
        return UUID(bytes=self.draw(16), version=4)

    def task(
        self,
        spec: TaskSpec,
        args: bytes | None,
        *,
        key: str | None = None,
        ref: str | None = None,
        policy: Policy | None = None,
    ) -> Leaf[Any]:
        """Schedule a task. `args` are encoded; `ref` stands for the state of this generation instead."""
        if self._definitions.task(spec.name) is None:
            raise self.fault(f"task {spec.name!r} belongs to another app; define it with this app's @app.task")
        content = hash_of((args or b"") + (ref or "").encode())
        return self._leaf("task", spec.name, args, content, key=key, ref=ref, policy=policy)

    def timer(self, due_us: int) -> Leaf[None]:
        """A wait until `due_us`, in microseconds since the epoch."""
        return self._leaf("timer", "timer", None, hash_of(str(due_us).encode()), due=due_us)

    def due_after(self, delay: float | timedelta) -> int:
        """Now + `delay` (seconds or timedelta), in microseconds since the epoch; less than now counts as now."""
        return self._at + span_us(delay)

    def interrupt(self, question: bytes, answer: Any, key: str | None, due: int | None) -> Leaf[Any]:
        """A question to a person or system; `answer` is the type that an answer must fit."""
        self.codec.learn(answer)
        name = key or "interrupt"
        type_name = getattr(answer, "__name__", "")
        content = hash_of(question + f"|{type_name}|{name}".encode())
        ref = None if answer is Any else type_name or None
        return self._leaf("interrupt", name, question, content, answer=answer, due=due, ref=ref)

    def receive(self, name: str) -> Leaf[Any]:
        """The next signal of this name."""
        if name not in self._definitions.signals:
            message = f"signal {name!r} is not declared; write {name} = app.signal({name!r}, SomeType)"
            raise self.fault(message)
        return self._leaf("receive", name, None, hash_of(name.encode()))

    def emit(self, effect: str, payload: bytes, key: str | None) -> None:
        """Publish an effect with the state change that this drive commits."""
        branch = self.check()
        self._check_effect(effect)
        op = branch.next_id()
        key = key if key is not None else f"{self.identity}/{op}"
        self._issue(EffectEmitted(op, effect, payload, key, hash_of(payload + key.encode("utf-8", "surrogatepass"))))

    def request(self, effect: str, payload: bytes, key: str | None, policy: Policy) -> Leaf[Any]:
        """Publish an effect as `emit` does, and wait for its reply; the time-out of the policy counts from now."""
        self._check_effect(effect)
        due = None if policy.timeout is None else self.due_after(policy.timeout)
        content = hash_of(payload + (key or "").encode("utf-8", "surrogatepass"))
        return self._leaf("request", effect, payload, content, due=due, key=key, policy=policy)

    def spawn(self, body: Coroutine[Any, Any, Any]) -> Branch[Any]:
        """Start a concurrent branch; it is driven when the current one waits."""
        if not isinstance(body, Coroutine):
            message = f"ctx.spawn takes a coroutine, such as branch(item); it was given {type(body).__name__!r}"
            raise TypeError(message)
        parent = self.check()
        id_ = parent.next_id()
        branch = self._branch(id_, f"{id_}/", body)
        parent.owned.append(branch)
        return branch

    def group(self, ops: Sequence[Op[Any]], count: int, finish: combine.Finish) -> Group[Any]:
        """An op that settles when `count` of `ops` have."""
        self.check()
        for op in ops:
            if not isinstance(op, Op):
                raise TypeError(f"expected ops, such as ctx.run(...) gives; got {type(op).__name__!r}")
        return Group(self, ops, count, finish)

    def withdraw(self, op: Op[Any]) -> None:
        """Take an op back with all that hangs on it. One that has settled stays; its failure is of no interest now."""
        if self._recalling:
            return
        op.retrieved = True
        if isinstance(op, Group):
            for child in op.children:
                if child.done or not op.done:
                    self.withdraw(child)
            op.withdraw()
        elif isinstance(op, Branch):
            waits: list[Leaf[Any]] = []
            self._recall(op, waits)
            self._end_waits(waits)
        elif isinstance(op, Leaf) and not op.done:
            self._issue(OpWithdrawn(op.id))
            op.withdraw()

    def _recall(self, branch: Branch[Any], waits: list[Leaf[Any]]) -> None:
        """Cancel a branch after those that it has spawned. Its waits end; what is worked on settles later."""
        if branch.done or branch.asked:
            return
        for op in branch.owned:
            if isinstance(op, Branch):
                self._recall(op, waits)
            elif isinstance(op, Leaf) and not op.done:
                self._issue(OpWithdrawn(op.id))
                op.retrieved = True
                if op.kind not in WORKED_ON:
                    waits.append(op)
        self._throw(branch)

    def _branch(self, id_: str, prefix: str, body: Coroutine[Any, Any, Any]) -> Branch[Any]:
        branch: Branch[Any] = Branch(self, id_, prefix, body)
        self._branches.append(branch)
        self._living += 1
        self._ready.append((branch, None, None))
        return branch

    def _leaf(
        self,
        kind: OpKind,
        name: str,
        args: bytes | None,
        content: bytes,
        *,
        answer: Any = None,
        due: int | None = None,
        key: str | None = None,
        ref: str | None = None,
        policy: Policy | None = None,
    ) -> Leaf[Any]:
        branch = self.check()
        op = branch.next_id()
        if key is None and kind in WORKED_ON:
            key = f"{self.identity}/{op}"
        begun = int(kind in WORKED_ON)  # a task too: where no slot is free, the draft makes it wait
        self._issue(OpScheduled(op, kind, name, args, content, due, begun, key, ref, policy))
        leaf = self._leaves[op] = Leaf(self, op, kind, name, answer)
        branch.owned.append(leaf)
        return leaf

    def _check_effect(self, effect: str) -> None:
        if effect not in self._definitions.effects:
            raise self.fault(f"effect {effect!r} is not declared; write {effect} = app.effect({effect!r}, SomeType)")

    def fault(self, message: str) -> Fault:
        """A bug of the workflow; it blocks the run even if the code swallows the exception."""
        self._fault = Fault("WORKFLOW_BUG", message)
        return self._fault

    def _issue(self, command: Command) -> None:
        if len(self._issued) >= COMMANDS_MAX:
            text = f"the workflow issued more than {COMMANDS_MAX} commands without waiting; is there an endless loop?"
            raise self.fault(text)
        self._issued.append(command)

    # -- eviction ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Drop the coroutines. Users' `finally` blocks run, and every op they try raises `Evicted`."""
        self._dead_calls = 0
        self._current = None
        closed = [close_quietly(branch.coro) for branch in self._branches[::-1] if not branch.done]
        if self._branches and all(closed):  # a second call finds nothing to do
            # Nothing can call any more. Ops point back here; letting go of them spares the collector of cycles.
            self._leaves.clear()
            self._ready.clear()
            self._branches.clear()
            del self.main
