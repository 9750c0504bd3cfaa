"""What differs between an execution and the one without a crash, apart from epochs, owners, attempts and times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from streams.authoring.app import App
from streams.authoring.task import NotFound
from streams.client.drafts import Values
from streams.errors import ValueUnreadable
from streams.kernel import bodies as ev
from streams.kernel.events import Event
from streams.kernel.run import OpPhase, Run, Status, status_of
from streams.testing.crash.calls import Call
from streams.testing.crash.compare_effects import effect_differences, parked_effects, without_offset
from streams.testing.crash.world import Execution
from streams.wire.records import EffectMessage

__all__ = ["Comparer", "Difference", "Normal"]

Normal = Callable[[Any], Any]
"""How a value is seen in the comparison, such as without its times; parts of lists and dicts are given to it too."""

CallId = tuple[str, str, str]
_SHOWN_CHARS = 200
_DELIVERED = (ev.OpCompleted, ev.OpFailed, ev.TimerFired, ev.InterruptAnswered, ev.SignalTaken)


class Difference(NamedTuple):
    """One thing that differs; `without` and `found` are both sides in words. `run_id` is empty for the whole."""

    run_id: str
    what: str
    without: str
    found: str


class Comparer:
    """Knows the app, and the execution without a crash."""

    def __init__(self, app: App, base: Execution, normal: Normal) -> None:
        self._app = app
        self._base = base
        self._values = Values(app)
        self._normal = normal

    def differences(self, found: Execution) -> list[Difference]:
        """Everything that must not differ and does."""
        return (
            list(self._whole(found))
            + [
                difference
                for run_id in {**self._base.runs, **found.runs}
                for difference in (*self._run(run_id, found), *self._calls(run_id, found))
            ]
            + [Difference(*said) for said in effect_differences(self._app, self, self._base, found)]
        )

    def parked(self, found: Execution) -> list[tuple[str, str, str]]:
        """Ops that need a person now and did not without a crash: run, op with the task's name, and why."""
        return [
            (run.run_id, f"{op.name} (op {op.id})", op.error.code if op.error is not None else "?")
            for run in found.runs.values()
            for op in run.ops.values()
            if op.phase is OpPhase.PARKED and not _is_parked(self._base.runs.get(run.run_id), op.id)
        ] + list(parked_effects(self._base, found))

    # -- the whole -----------------------------------------------------------------------------------------------

    def _whole(self, found: Execution) -> Iterator[Difference]:
        parked = bool(self.parked(found))  # a person comes first, and then the end, and the check
        for error in (*found.errors, None if parked else found.seen.error):
            if error is not None:
                yield Difference("", "an error", "none", _cut(f"{type(error).__name__}: {error}"))
        if found.stuck and not parked:
            yield Difference("", "the end", "everything came to rest", f"it waits in vain for {_cut(found.stuck)}")
        elif not found.stuck and not parked and not found.errors and not found.seen.same:
            yield Difference(
                "", "what the check returned", *(_cut(side.words) for side in (self._base.seen, found.seen))
            )

    # -- a run ---------------------------------------------------------------------------------------------------

    def _run(self, run_id: str, found: Execution) -> Iterator[Difference]:
        before, after = self._base.runs.get(run_id), found.runs.get(run_id)
        if before is None or after is None:
            yield Difference(run_id, "the run", *("is there" if run else "is missing" for run in (before, after)))
            return
        if any(run == run_id for run, _, _ in self.parked(found)):
            return  # it needs a person first
        status = status_of(before), status_of(after)
        if status[0] != status[1]:
            yield Difference(run_id, "the status", *(_status(run) for run in (before, after)))
        elif self.differ(before.result, after.result):
            yield Difference(run_id, "the result", self.shown(before.result), self.shown(after.result))
        elif _error(before) != _error(after):
            yield Difference(run_id, "the error", *map(str, (_error(before), _error(after))))
        if status[1] is not Status.BLOCKED:
            yield from self._effects(run_id, found)
            yield from self._ops(run_id, found)

    def _effects(self, run_id: str, found: Execution) -> Iterator[Difference]:
        before, after = ([*execution.effects.get(run_id, ())] for execution in (self._base, found))
        if _deliveries(self._base, run_id) != _deliveries(found, run_id):
            # What came in another order may go out in another order: branches that run at once.
            before.sort(key=_effect_order)
            after.sort(key=_effect_order)
        for number in range(max(len(before), len(after))):
            pair = [side[number] if number < len(side) else None for side in (before, after)]
            if self._effects_differ(*pair):
                what = f"effect {number + 1}"
                yield Difference(run_id, what, *(self._effect(message) for message in pair))
                return

    def _effects_differ(self, before: EffectMessage | None, after: EffectMessage | None) -> bool:
        if before is None or after is None:
            return True
        same = before.effect == after.effect and self._same_key(before, after)
        return not same or self.differ(before.payload, after.payload)

    @staticmethod
    def _same_key(before: EffectMessage, after: EffectMessage) -> bool:
        keys = [without_offset(side.idempotency_key, side.run_id) for side in (before, after)]
        return keys[0] == keys[1]

    def _effect(self, message: EffectMessage | None) -> str:
        if message is None:
            return "missing"
        return f"{message.effect} {self.shown(message.payload)} with key {message.idempotency_key!r}"

    def _ops(self, run_id: str, found: Execution) -> Iterator[Difference]:
        """Ops as they were issued, and what became of them; then everything else that reached the run."""
        before, after = (_issued(execution.events.get(run_id, ())) for execution in (self._base, found))
        ends = [_outcomes(execution.events.get(run_id, ())) for execution in (self._base, found)]
        for op in {**before, **after}:
            sides = [side.get(op) for side in (before, after)]
            outcomes = [side.get(op) for side in ends]
            if any(isinstance(body, ev.OpWithdrawn) for body in outcomes):
                continue  # it lost a race, or was not needed any more
            name = next(side.name for side in sides if side is not None)
            if self._ops_differ(run_id, *sides):
                yield Difference(run_id, f"{name} (op {op})", *(self._op(side) for side in sides))
                return
            if self._outcomes_differ(*outcomes):
                what = f"the outcome of {name} (op {op})"
                yield Difference(run_id, what, *(self._outcome(body) for body in outcomes))
                return
        others = [_others(execution.events.get(run_id, ())) for execution in (self._base, found)]
        if others[0] != others[1]:
            yield Difference(run_id, "what reached it", *(_cut(", ".join(map(str, side))) for side in others))

    def _ops_differ(self, run_id: str, before: ev.OpScheduled | None, after: ev.OpScheduled | None) -> bool:
        if before is None or after is None:
            return True
        same = (before.kind, before.name) == (after.kind, after.name)
        same &= without_offset(before.key, run_id) == without_offset(after.key, run_id)
        return not same or self.differ(before.args, after.args)

    def _op(self, issued: ev.OpScheduled | None) -> str:
        if issued is None:
            return "missing"
        key = f" with key {issued.key!r}" if issued.key else ""
        return f"{issued.kind} {issued.name}{key} of {self.shown(issued.args)}"

    def _outcomes_differ(self, before: ev.Body | None, after: ev.Body | None) -> bool:
        if type(before) is not type(after):
            return True
        if isinstance(before, ev.OpFailed) and isinstance(after, ev.OpFailed):
            return (before.error.code, before.error.message) != (after.error.code, after.error.message)
        return self.differ(getattr(before, "value", None), getattr(after, "value", None))

    def _outcome(self, body: ev.Body | None) -> str:
        if isinstance(body, ev.OpFailed):
            return f"failed with {body.error.code}: {_cut(body.error.message)}"
        value = getattr(body, "value", None)
        return "none" if body is None else type(body).__name__ if value is None else self.shown(value)

    # -- calls of user code --------------------------------------------------------------------------------------

    def _calls(self, run_id: str, found: Execution) -> Iterator[Difference]:
        """At most one more call for each crash; none where the outcome was committed, or where it must not be."""
        before, after = (_counted(execution.calls, run_id) for execution in (self._base, found))
        ops = {issued.key: op for op, issued in _issued(found.events.get(run_id, ())).items()}
        for id_, called in after.items():
            _, name, key = id_
            op = ops.get(key, "")
            late = [call for call in self._late(found, run_id, op) if _id(call) == id_]
            if late:
                what = f"task {name} ({key}) after its outcome was committed"
                yield Difference(run_id, what, "no call", f"{len(late)} calls")
                continue
            task = self._app.task_named(name)
            if task is not None and not task.idempotent:
                parked = any(isinstance(e.body, ev.OpParked) and e.body.op == op for e in found.events.get(run_id, ()))
                more, rule = len(found.calls) if parked else _not_found(found, id_), ", as idempotent=False demands"
            else:
                more, rule = sum((run_id, op) not in strike.settled for strike in found.strikes), ""
            if called > before[id_] + more:
                allowed = f"at most {before[id_] + more} calls{rule}"
                yield Difference(run_id, f"task {name} ({key})", allowed, f"{called} calls")

    def _late(self, found: Execution, run_id: str, op: str) -> list[Call]:
        return [
            call
            for strike in found.strikes
            if (run_id, op) in strike.settled
            for call in found.calls[strike.calls :]
            if not call.look_up
        ]

    # -- values --------------------------------------------------------------------------------------------------

    def seen(self, value: Any) -> Any:
        """A value as it is compared."""
        return _seen(value, self._normal)

    def differ(self, before: bytes | None, after: bytes | None) -> bool:
        """Whether two stored values are not equal."""
        if before == after:
            return False
        if before is None or after is None:
            return True
        try:
            sides = [_seen(self._values.decode(data), self._normal) for data in (before, after)]
        except ValueUnreadable:
            return True
        return bool(sides[0] != sides[1])

    def shown(self, data: bytes | None) -> str:
        """A stored value for people."""
        return "none" if data is None else _cut(repr(self._values.codec.to_plain(data)))


def _seen(value: Any, normal: Normal) -> Any:
    """The outcome of a graph's node is a list that begins with its update, so a value may lie inside another."""
    value = normal(value)
    if isinstance(value, list):
        return [_seen(part, normal) for part in value]
    if isinstance(value, dict):
        return {name: _seen(part, normal) for name, part in value.items()}
    return value


def _cut(text: str) -> str:
    """One line, and no long one."""
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def _status(run: Run) -> str:
    failure = run.blocked or run.error
    return f"{status_of(run)}" + (f" ({failure.code}: {_cut(failure.message)})" if failure is not None else "")


def _error(run: Run) -> tuple[str, str] | None:
    return None if run.error is None else (run.error.code, run.error.message)


def _is_parked(run: Run | None, op: str) -> bool:
    return run is not None and op in run.ops and run.ops[op].phase is OpPhase.PARKED


def _effect_order(message: EffectMessage) -> tuple[str, str, bytes]:
    return message.effect, message.idempotency_key, message.payload


def _deliveries(execution: Execution, run_id: str) -> list[tuple[str, str]]:
    bodies = (event.body for event in execution.events.get(run_id, ()))
    return [(type(body).__name__, body.op) for body in bodies if isinstance(body, _DELIVERED)]


def _issued(events: Iterable[Event]) -> dict[str, ev.OpScheduled]:
    return {event.body.op: event.body for event in events if isinstance(event.body, ev.OpScheduled)}


def _outcomes(events: Iterable[Event]) -> dict[str, ev.Body]:
    bodies = (event.body for event in events)
    return {body.op: body for body in bodies if isinstance(body, (*_DELIVERED, ev.OpWithdrawn))}


def _others(events: Iterable[Event]) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for body in (event.body for event in events):
        if isinstance(body, ev.SignalReceived):
            found.append(("signal", body.name, body.value))
        elif isinstance(body, ev.CancelRequested):
            found.append(("cancel", body.force))
        elif isinstance(body, ev.UpdateReceived):
            found.append(("update", body.name, body.value))
    return found


def _id(call: Call) -> CallId:
    return call.run_id, call.task, call.key


def _counted(calls: Iterable[Call], run_id: str) -> Counter[CallId]:
    return Counter(_id(call) for call in calls if call.run_id == run_id and not call.look_up and not call.effect)


def _not_found(found: Execution, id_: CallId) -> int:
    """How often a look-up has said that the work was not done, and so may be done."""
    return sum(call.look_up and _id(call) == id_ and isinstance(call.answer, NotFound) for call in found.calls)
