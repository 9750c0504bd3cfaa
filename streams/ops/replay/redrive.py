"""Drives new code through the recorded history of one run, and compares what it does event by event.

The recorded deliveries go in: outcomes of tasks, answers, signals, timers, cancels. What the code does in answer, and
what the kernel makes of it, is held against the recorded events; then the recorded ones are folded, so that every
decision begins where the recorded one began. Time, seed and identity are the recorded ones; the fingerprint of the
code, the epoch, and whether a slot was free are no part of the comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from streams.errors import Refused
from streams.kernel import bodies as ev
from streams.kernel import commands as cmd
from streams.kernel.bodies import Body, Failure
from streams.kernel.changes import UNCHECKED
from streams.kernel.commands import Command
from streams.kernel.decide import decide
from streams.kernel.definition import Definitions
from streams.kernel.draft import Draft
from streams.kernel.drive import cancel_body, conform_answer, conform_reply, deliver, follow, next_signal, unblock
from streams.kernel.driver import Driver
from streams.kernel.events import Event
from streams.kernel.fault import FAULTS, Fault, as_fault, text_of
from streams.kernel.inputs import Env
from streams.kernel.run import Phase, Run, Status, is_terminal, status_of
from streams.ops.replay.attempts import judged_anew
from streams.ops.replay.held_against import (
    BlockedThen,
    Differs,
    NotComparable,
    ShadowDraft,
    WouldBlock,
    difference,
    fold,
)
from streams.ops.replay.verdict import Block, Difference, Shadowed, Verdict
from streams.runtime.guard import DriveGuard, DriveTooLong
from streams.wire.values import ValueCodec

__all__ = ["World", "redrive"]

Pairs = tuple[tuple[str, bytes], ...]
_WithValue = ev.OpCompleted | ev.InterruptAnswered | ev.SignalReceived
SOFT_MAX = 3
"""Differences that do not end a comparison, of which a run keeps so many."""

_ENDS_OF_ATTEMPTS = (ev.AttemptFailed, ev.AttemptReturned, ev.OpParked)
_JUDGED = (*_ENDS_OF_ATTEMPTS, ev.OpFailed)
_FACTS = (
    *_ENDS_OF_ATTEMPTS,
    ev.RunOwned,
    ev.AttemptStarted,
    ev.AttemptNoted,
    ev.RunBlocked,
    ev.InputHeld,
    ev.RunExpired,
)
"""What happened on a worker, and what the old code could not go on from: it is folded as it is."""
_MENDED = (ev.RunRewound, ev.RunRepaired, ev.RunForked, ev.RunMigrated)


@dataclass(frozen=True, slots=True)
class World:
    """The new code, its codec, and the guard that bounds its drives."""

    definitions: Definitions
    codec: ValueCodec
    guard: DriveGuard


def redrive(world: World, history: Sequence[Event], flaw: str = "") -> Shadowed:
    """Compare the new code with the history of one run, from its first event on.

    `flaw` says why the history cannot be compared, where whoever read it knows.
    """
    with world.guard.hidden():
        return _Redrive(world, history).shadow(flaw)


class _Redrive:
    def __init__(self, world: World, history: Sequence[Event]) -> None:
        self.world = world
        self.history = history
        self.at = 0
        first = history[0]
        self.run = Run(first.run_id, first.identity)
        self.live: Driver | None = None
        self.differences: list[Difference] = []
        self.block: Block | None = None
        self.after = ""

    # -- the whole run -------------------------------------------------------------------------------------------

    def shadow(self, flaw: str) -> Shadowed:
        """The verdict."""
        try:
            if flaw:
                raise NotComparable(flaw)
            self._check()
            self._compare()
            self._fold_rest()
            ahead = self._ahead()
        except NotComparable as error:
            return self._verdict(Verdict.NOT_COMPARABLE, reason=str(error))
        finally:
            self._close()
        if self.block is not None:
            return self._verdict(Verdict.WOULD_BLOCK, ahead=ahead)
        return self._verdict(Verdict.DIFFERS if self.differences else Verdict.SAME, ahead=ahead)

    def _verdict(self, verdict: Verdict, *, reason: str = "", ahead: str = "") -> Shadowed:
        run, first = self.run, self.history[0]
        started = next((e.body for e in self.history if isinstance(e.body, ev.RunStarted)), None)
        return Shadowed(
            first.run_id,
            first.identity,
            started.workflow if started is not None else run.workflow,
            run.version or (started.version if started is not None else 0),
            status_of(run).value if verdict is not Verdict.NOT_COMPARABLE else _last_status(self.history[-1]),
            len(self.history),
            verdict,
            tuple(self.differences),
            self.block if verdict is Verdict.WOULD_BLOCK else None,
            reason,
            ahead,
        )

    def _check(self) -> None:
        first = self.history[0]
        if first.seq != 1:
            raise NotComparable("its first events are gone: the retention of the events has cut its history")
        for event in self.history:
            if isinstance(event.body, _MENDED):
                raise NotComparable(f"its history was mended by hand ({event.type})")

    def _compare(self) -> None:
        try:
            while self.at < len(self.history):
                self._next()
        except Differs as found:
            self._note(found.difference)
        except WouldBlock as blocked:
            self.block = Block(blocked.error.code, blocked.error.message, self._seq())

    def _fold_rest(self) -> None:
        """Where the run stands now, whatever the new code made of its past."""
        self._close()
        while self.at < len(self.history):
            self._fold()

    def _fold(self) -> None:
        self.run = fold(self.run, self.history[self.at])
        self.at += 1

    def _note(self, difference: Difference) -> None:
        if len(self.differences) <= SOFT_MAX:
            self.differences.append(difference)

    def _seq(self) -> int:
        return self.history[min(self.at, len(self.history) - 1)].seq or 0

    def _close(self) -> None:
        if self.live is not None:
            live, self.live = self.live, None
            _close(self.world, live)

    # -- what comes next -----------------------------------------------------------------------------------------

    def _ahead(self) -> str:
        """What the new code does with a run that has not ended: it goes on, or it blocks at the next delivery."""
        run = self.run
        if run.phase is not Phase.ACTIVE:
            return ""
        if run.blocked is not None:
            return self._after_retry()
        draft = Draft(self.world.definitions, run, None, self._env(run.at, run.epoch))
        fault: Fault | None = None
        try:
            with self.world.guard.timed():
                draft.driver()
        except FAULTS as error:
            fault = as_fault(error)
        except DriveTooLong as error:
            fault = Fault("WORKFLOW_BUG", str(error))
        finally:
            self.live = draft.live
            self._close()
        if fault is None:
            return "goes on"
        self.block = self.block or Block(fault.code, fault.message, run.seq)
        return "would block at the next delivery"

    def _after_retry(self) -> str:
        run = self.run
        command = Command(run.run_id, cmd.Retry(), "shadow", run.offset)
        try:
            with self.world.guard.timed():
                decision = decide(self.world.definitions, run, None, command, self._env(run.at, run.epoch))
        except (DriveTooLong, Exception) as error:  # noqa: BLE001 - user code outside a drive: types, keys, reducers
            return f"is blocked; a retry would block it again: {text_of(error)}"
        self.live = decision.live
        self._close()
        again = decision.run.blocked
        if again is None:
            return "is blocked; a retry would let it go on"
        return f"is blocked; a retry would block it again: {again.code}: {again.message}"

    def _env(self, now: int, epoch: int) -> Env:
        return Env(now, epoch, "shadow", self.world.codec, {})

    # -- one decision --------------------------------------------------------------------------------------------

    def _next(self) -> None:
        event = self.history[self.at]
        if isinstance(event.body, _JUDGED):
            self._judge(event)
        if is_terminal(self.run) or isinstance(event.body, _FACTS):
            if isinstance(event.body, (ev.RunBlocked, ev.InputHeld)):
                self._close()
            self._fold()
            return
        definitions, env = self.world.definitions, self._env(event.at, event.epoch)
        draft = ShadowDraft(self.live, env, definitions, self.run, self.history, self.at, self.after)
        self.live = None
        try:
            self._decide(draft, event)
        except BlockedThen:
            draft.drop_live()
            self._pass_block()
            return
        except BaseException:
            draft.drop_live()
            raise
        for recorded, now in draft.changed:
            self._note(self._difference(recorded, now))
        self.run, self.live, self.after = draft.run, draft.live, draft.after
        self.at += len(draft.events)

    def _decide(self, draft: ShadowDraft, event: Event) -> None:
        """One decision, with whatever user code may raise in it told as the reason of a block."""
        try:
            with self.world.guard.timed():
                self._drive(draft, event)
        except (BlockedThen, Differs, NotComparable, WouldBlock):
            raise
        except FAULTS as error:
            fault = as_fault(error)
            raise WouldBlock(Failure("code", fault.code, fault.message)) from error
        except (DriveTooLong, SystemExit) as error:
            raise WouldBlock(Failure("code", "WORKFLOW_BUG", text_of(error))) from error
        except Exception as error:  # user code outside a drive: types, keys, reducers
            message = f"{type(error).__name__} while deciding: {text_of(error)}"
            raise WouldBlock(Failure("code", "WORKFLOW_BUG", message)) from error

    def _pass_block(self) -> None:
        """The recorded run was blocked in this decision: its events are facts up to there."""
        while not isinstance(self.history[self.at].body, ev.RunBlocked):
            self._fold()
        self._fold()

    def _drive(self, draft: ShadowDraft, event: Event) -> None:
        body = event.body
        if isinstance(body, ev.RunStarted):
            self._start(draft, event, body)
        elif isinstance(body, ev.OpCompleted):
            op = draft.run.ops.get(body.op)
            if op is not None and op.kind == "request":
                self._conform(event, body, "reply", lambda: conform_reply(draft, op.name, body.value))
            deliver(draft, body)
        elif isinstance(body, (ev.OpFailed, ev.TimerFired)):
            deliver(draft, body)
        elif isinstance(body, ev.InterruptAnswered):
            self._answer(draft, event, body)
        elif isinstance(body, ev.SignalReceived):
            self._signal(draft, event, body)
        elif isinstance(body, ev.CancelRequested):
            self._cancel(draft, body)
        elif isinstance(body, ev.RunUnblocked):
            unblock(draft, body.operator)
        elif isinstance(body, ev.RunCancelled) and body.forced:
            raise NotComparable("it was damaged, and ended by force")
        else:  # nothing from outside leads to it: it was the answer of the old code to the delivery before
            raise Differs(self._difference(event, None, after=self.after))

    def _start(self, draft: ShadowDraft, event: Event, body: ev.RunStarted) -> None:
        if self.run.cancel_requested:
            draft.emit(body, code=body.code)
            draft.emit(ev.RunCancelled())
            return
        definition = self.world.definitions.workflow(body.workflow, body.version or None)
        if definition is not None and not (body.base and body.base[0][0] == UNCHECKED):
            try:
                base, active = definition.base(self._input(body), self.world.codec)
            except Refused as refused:
                self._soft(event, f"the input is refused: {refused.code}: {refused.message}")
            else:
                if active != body.active or not self._same_base(body.base, base):
                    self._note(self._difference(event, body._replace(base=base, active=active)))
        deliver(draft, body)

    def _input(self, body: ev.RunStarted) -> bytes:
        """The input of the start, of which the log keeps the fields."""
        if not body.active and len(body.base) == 1:
            return body.base[0][1]
        codec = self.world.codec
        return codec.encode({name: codec.decode(value) for name, value in body.base})

    def _same_base(self, recorded: Pairs, now: Pairs) -> bool:
        """Whether the code gets the same input. A field that was not there then has its default, for old runs too."""
        fields = dict(now)
        return all(name in fields and self._same_value(value, fields[name]) for name, value in recorded)

    def _same_value(self, recorded: bytes, now: bytes) -> bool:
        """Whether both read as the same value today: a field that has come with a default changes no old value."""
        codec = self.world.codec
        return recorded == now or codec.encode(codec.decode(recorded)) == now

    def _answer(self, draft: ShadowDraft, event: Event, body: ev.InterruptAnswered) -> None:
        self._conform(event, body, "answer", lambda: conform_answer(draft, body.op, body.value))
        deliver(draft, body)

    def _conform(self, event: Event, body: _WithValue, what: str, conform: Callable[[], bytes]) -> None:
        """What the new code makes of a value that came in."""
        try:
            value = conform()
        except Refused as refused:
            self._soft(event, f"the {what} is refused: {refused.code}: {refused.message}")
        else:
            if not self._same_value(body.value, value):
                self._note(self._difference(event, body._replace(value=value)))

    def _signal(self, draft: ShadowDraft, event: Event, body: ev.SignalReceived) -> None:
        def conform() -> bytes:
            wanted = self.world.definitions.signals.get(body.name, _GONE)
            if wanted is _GONE:
                raise Refused("UNKNOWN_SIGNAL", f"no signal {body.name!r} is declared")
            return self.world.codec.conform(body.value, wanted)

        self._conform(event, body, "signal", conform)
        draft.emit(body)
        run = draft.run
        if run.phase is Phase.ACTIVE and run.blocked is None and next_signal(draft) is not None:
            follow(draft)

    def _cancel(self, draft: ShadowDraft, body: ev.CancelRequested) -> None:
        if body.force:
            draft.emit(body)
            draft.emit(ev.RunCancelled(forced=True))
            draft.drop_live()
        elif self.run.phase is Phase.PENDING:
            draft.emit(body)
        else:
            deliver(draft, cancel_body(draft, body.command_id))

    # -- differences ---------------------------------------------------------------------------------------------

    def _judge(self, event: Event) -> None:
        now = judged_anew(self.world.definitions, self.run, event.body, event.at)
        if isinstance(now, str):
            self._soft(event, now)
        elif now is not None:
            self._note(self._difference(event, now))

    def _soft(self, event: Event, note: str) -> None:
        self._note(self._difference(event, event.body, note=note))

    def _difference(self, recorded: Event, now: Body | None, *, after: str = "", note: str = "") -> Difference:
        return difference(recorded, now, self.world.codec, seq=recorded.seq or 0, after=after, note=note)


_GONE: Any = object()
"""Stands for a signal that is not declared."""


def _last_status(last: Event) -> str:
    """Where a run stands whose history cannot be folded, as far as its last event tells."""
    ends = {ev.RunCompleted: Status.COMPLETED, ev.RunFailed: Status.FAILED, ev.RunCancelled: Status.CANCELLED}
    status = ends.get(type(last.body))
    return "unknown" if status is None else status.value


def _close(world: World, live: Driver) -> None:
    try:
        with world.guard.timed():
            live.close()
    except DriveTooLong:  # clean-up code that does not end is left alone
        return
