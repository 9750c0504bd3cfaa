"""Rules of state: events fold, checkpoints are the fold, and each op went as its task allows.

One pass over the events of a partition. The state before and after each event is the measure of everything here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from streams.authoring.app import AppDefinitions
from streams.authoring.task import Task
from streams.kernel import bodies as ev
from streams.kernel.codec import Codec
from streams.kernel.driver import Driver
from streams.kernel.events import Event
from streams.kernel.evolve import evolve
from streams.kernel.fault import FAULTS, Fault
from streams.kernel.run import OpPhase, OpState, Run, is_terminal, stub_of
from streams.log.port import Record
from streams.testing.sim.history import History, Judged
from streams.testing.sim.rules_log import where
from streams.wire.app_codec import make_codec
from streams.wire.records import Damaged, encode_checkpoint

__all__ = ["Folds", "replayed"]

_LATE_US = 3_500_000
"""How late a timer may fire when nothing goes wrong any more: ends of transactions may still be on their way."""
_OF_ATTEMPT = (ev.OpCompleted, ev.OpFailed, ev.AttemptFailed, ev.AttemptReturned, ev.AttemptNoted)


class Folds:
    """Folds all events; `check` yields what is wrong, and `runs` then holds the states."""

    def __init__(self, history: History, world: Judged) -> None:
        self.runs: dict[str, Run] = {}
        self.first: dict[str, int] = {}
        """Where the first event of a run lies that no checkpoint covers."""
        self.bodies: dict[str, ev.Body] = {}
        """The last event of each run."""
        self.broken: set[str] = set()
        """Runs that cannot be folded."""
        self.forgotten: dict[str, tuple[Run, ev.Body]] = {}
        """The last state and event of runs that have expired since."""
        self.expired: set[str] = set()
        """Identities that have been forgotten."""
        self._history, self._app = history, world.app
        self._definitions = AppDefinitions(world.app)
        self._codec = make_codec(world.app.annotations, world.app.named_types)
        self._last: dict[str, Event] = {}
        self._calm_us = world.calm_us
        self._claims: dict[tuple[int, int], int] = {}
        """When each epoch began, in milliseconds."""
        for number, leases in enumerate(history.leases):
            for record, lease in leases:
                self._claims.setdefault((number, lease.epoch), record.timestamp)
        self._returned: dict[tuple[str, str], int] = {}
        """Attempts of each op that do not count."""

    def check(self) -> Iterator[str]:
        """All partitions."""
        for number in range(self._history.partitions):
            yield from self._check_partition(number)

    def _check_partition(self, number: int) -> Iterator[str]:
        events, left = self._history.events[number], dict[tuple[str, int], tuple[Record, Run]]()
        for record, state in self._history.checkpoints[number]:
            yield from self._note_checkpoint(record, state, left)
        places: dict[str, list[tuple[int, int]]] = {}
        released = {lease.epoch for _, lease in self._history.leases[number] if lease.released}
        epoch, mine = 0, set[str]()
        for record, event in events:
            if event.epoch != epoch:
                if epoch in released:
                    yield from self._check_release(number, epoch, mine)
                epoch = event.epoch
            if event.seq is None or event.run_id in self.broken:
                continue
            mine.add(event.run_id)
            places.setdefault(event.run_id, []).append((event.seq, record.offset))
            yield from self._fold(record, event, left)
        for (run_id, seq), (record, _) in left.items():
            if run_id not in self.broken and seq > 0:
                yield f"the checkpoint of run {run_id} at {number}/{record.offset}, seq {seq}, has no event"
        yield from self._check_cover(number, places)

    def _check_release(self, number: int, epoch: int, run_ids: set[str]) -> Iterator[str]:
        """What was given up in good order left no attempt behind as running: it would look like one that died."""
        for run_id in sorted(run_ids & set(self.runs)):
            running = [op.id for op in self.runs[run_id].ops.values() if op.phase is OpPhase.RUNNING]
            if running:
                yield f"partition {number} was released under epoch {epoch}, and {running} of run {run_id} still ran"

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def _note_checkpoint(
        self, record: Record, state: Run | Damaged | None, left: dict[tuple[str, int], tuple[Record, Run]]
    ) -> Iterator[str]:
        place = f"the checkpoint at {record.partition}/{record.offset}"
        if isinstance(state, Damaged):
            yield f"{place} says that run {state.run_id} is damaged: {state.reason}"
        elif state is not None:
            if record.key != state.run_id.encode():
                yield f"{place} of run {state.run_id} lies under the key {record.key!r}"
            other = left.setdefault((state.run_id, state.seq), (record, state))[1]
            if other != state and state != stub_of(other):
                yield f"{place} of run {state.run_id} differs from another one at seq {state.seq}"

    def _check_cover(self, number: int, places: dict[str, list[tuple[int, int]]]) -> Iterator[str]:
        """Below the tail of each lease every event was in a checkpoint no younger than the lease."""
        at, latest = 0, dict[str, int]()
        checkpoints, told = self._history.checkpoints[number], set[str]()
        for record, lease in self._history.leases[number]:
            while at < len(checkpoints) and checkpoints[at][0].timestamp <= record.timestamp:
                self._cover(*checkpoints[at], latest)
                at += 1
            for run_id, seqs in places.items():
                covered = latest.get(run_id, 0)
                bare = [offset for seq, offset in seqs if seq > covered and offset < lease.tail]
                if bare and run_id not in told and run_id not in self.broken:
                    told.add(run_id)
                    place = f"the event at {number}/{bare[0]}"
                    yield f"{place} lies below the tail {lease.tail} and in no checkpoint of {run_id} so far"
        for checkpoint in checkpoints[at:]:
            self._cover(*checkpoint, latest)
        for run_id, seqs in places.items():
            bare = [offset for seq, offset in seqs if seq > latest.get(run_id, 0)]
            if bare:
                self.first[run_id] = bare[0]

    def _cover(self, record: Record, state: Run | Damaged | None, latest: dict[str, int]) -> None:
        run_id = (record.key or b"").decode()
        latest[run_id] = state.seq if isinstance(state, Run) else 1 << 60

    # -- one event -----------------------------------------------------------------------------------------------

    def _fold(self, record: Record, event: Event, left: dict[tuple[str, int], tuple[Record, Run]]) -> Iterator[str]:
        run_id = event.run_id
        before = self.runs.get(run_id) or Run(run_id, event.identity)
        try:
            run = self.runs[run_id] = evolve(before, event)
        except ValueError as error:
            self.broken.add(run_id)
            yield f"{where(record, event)} cannot be folded: {error}"
            return
        yield from self._check_op(record, event, before)
        if isinstance(event.body, ev.RunExpired) and before.workflow:
            self.forgotten[run_id] = (before, self.bodies[run_id])
        self.bodies[run_id] = event.body
        self._last[run_id] = event
        found = left.pop((run_id, run.seq), None)
        if isinstance(event.body, ev.RunExpired):
            self.expired.add(event.identity)
            del self.runs[run_id]
            return
        if found is not None and found[0].value != encode_checkpoint(run):
            stub = stub_of(run) if is_terminal(run) else run
            if found[1] not in (run, stub):
                fields = [name for name in Run._fields if getattr(run, name) != getattr(found[1], name)]
                yield f"the checkpoint of run {run_id} at seq {run.seq} is not its fold: {', '.join(fields)} differ"
            elif found[1] == run and stub != run:
                yield f"the checkpoint of run {run_id} at seq {run.seq} is its fold in other bytes"
        if is_terminal(run):
            yield from self._check_end(before, run, covered=found is not None)

    def _check_end(self, before: Run, run: Run, *, covered: bool) -> Iterator[str]:
        name = f"run {run.run_id} at seq {run.seq}"
        if not covered:
            yield f"{name} has ended without a checkpoint of its end"
        body = self.bodies[run.run_id]
        if isinstance(body, ev.RunCancelled) and (body.forced or len(before.journal) <= 1):
            return  # by force, or before its code ran
        if any(op.kind == "task" for op in before.ops.values()):
            yield f"{name} has ended while a task of it was open"
        if before.blocked is None and before.workflow and len(before.journal):
            driver, fault = replayed(self._definitions, before, self._codec)
            if fault is not None:
                yield f"{name}: its journal cannot be replayed up to its end: {fault}"
            if driver is not None:
                if not driver.finished:
                    yield f"{name} has ended, and the replay of its journal still waits"
                driver.close()

    # -- ops -----------------------------------------------------------------------------------------------------

    def _check_op(self, record: Record, event: Event, before: Run) -> Iterator[str]:
        body: Any = event.body
        op = before.ops.get(getattr(body, "op", None) or "")
        if op is None:
            return
        name = f"{where(record, event)}, op {op.id} ({op.name})"
        if isinstance(body, ev.TimerFired):
            yield from self._check_timer(name, record, event, op)
        if isinstance(body, (*_OF_ATTEMPT, ev.InputHeld)) and op.kind == "task":
            yield from _check_attempt(name, event, body, op)
        if op.kind == "task":
            task = self._app.task_named(op.name)
            if task is not None:
                yield from self._check_policy(name, event, before, op, task)

    def _check_timer(self, name: str, record: Record, event: Event, op: OpState) -> Iterator[str]:
        """Never early; and once nothing goes wrong any more, soon after its time or after somebody owns its run."""
        due, calm = op.due or 0, self._calm_us
        if event.at < due:
            yield f"{name} fired {due - event.at} µs before its time"
        claimed = self._claims.get((record.partition, event.epoch), 0) * 1000
        late = record.timestamp * 1000 - max(due, calm or 0, claimed)
        if calm is not None and late > _LATE_US:
            yield f"{name} fired {late} µs after its time"

    def _check_policy(self, name: str, event: Event, before: Run, op: OpState, task: Task[Any, Any]) -> Iterator[str]:
        """The budget is kept, a back-off is waited for, and what may have happened is never repeated blindly."""
        body, policy = event.body, op.policy or task.policy
        key = (before.identity, op.id)
        blind = not task.idempotent and task.reconcile is None
        most = policy.max_attempts * (2 if task.reconcile is not None else 1)
        if isinstance(body, ev.AttemptReturned):
            self._returned[key] = self._returned.get(key, 0) + 1
        now = self.runs[before.run_id].ops.get(op.id)
        if isinstance(body, (ev.AttemptFailed, ev.AttemptReturned)) and now is not None:
            spent = op.attempt - self._returned.get(key, 0)
            if now.spent != spent:
                yield f"{name} leaves {now.spent} attempts as used up, and it was {spent}"
        if isinstance(body, (ev.AttemptFailed, ev.AttemptReturned)) and blind:
            yield f"{name} is tried again, and nobody knows whether it has happened"
        elif isinstance(body, ev.AttemptStarted):
            spent = body.attempt - self._returned.get(key, 0)
            if body.attempt != op.attempt + 1:
                yield f"{name} follows on attempt {op.attempt}"
            if op.phase is OpPhase.PARKED:
                self._returned[key] = body.attempt - 1  # an operator gives a fresh budget
            elif spent > most:
                yield f"{name} is start {spent} of {most}"
            elif event.at < (op.due or 0) and not self._by_command(event):
                yield f"{name} begins {(op.due or 0) - event.at} µs before its back-off is over"
            if op.phase is OpPhase.RUNNING:
                yield f"{name} begins while attempt {op.attempt} runs"
        elif isinstance(body, ev.OpFailed) and body.error.code == "RETRIES_EXHAUSTED":
            spent = op.attempt - self._returned.get(key, 0)
            if spent < policy.max_attempts:
                yield f"{name} has used up {spent} attempts of {policy.max_attempts}, and failed for want of more"

    def _by_command(self, event: Event) -> bool:
        """Whether an operator asked for it. `run.owned` takes the offset where it comes first."""
        last = self._last.get(event.run_id)
        owned = last is not None and isinstance(last.body, ev.RunOwned) and last.offset is not None
        return event.offset is not None or owned


def _check_attempt(name: str, event: Event, body: Any, op: OpState) -> Iterator[str]:
    """What an attempt leads to counts only under its own number and epoch, while it runs."""
    lost = body.error.code in ("WORKER_LOST", "WITHDRAWN") if getattr(body, "error", None) else False
    by_person = isinstance(body, ev.OpCompleted) and body.operator is not None
    by_person |= isinstance(body, ev.OpFailed) and body.error.code == "SKIPPED"
    if by_person or op.phase is OpPhase.HELD:
        return
    if body.attempt != op.attempt:
        yield f"{name} is of attempt {body.attempt}, and attempt {op.attempt} was the last"
    elif op.phase is not OpPhase.RUNNING and not (lost or op.asked):
        yield f"{name} ends an attempt while the op is {op.phase}"
    elif op.epoch != event.epoch and not lost and not _is_old(body):
        yield f"{name} is of epoch {event.epoch}, and its attempt was started under {op.epoch}"


def _is_old(body: Any) -> bool:
    """Whether it is the end of an op whose worker was lost: its last failure stands for all."""
    error = getattr(body, "error", None)
    return error is not None and "WORKER_LOST" in error.message


def replayed(definitions: AppDefinitions, run: Run, codec: Codec) -> tuple[Driver | None, str | None]:
    """A coroutine built from the journal alone, and why it cannot be."""
    definition = definitions.workflow(run.workflow, run.version)
    if definition is None:
        return None, f"workflow {run.workflow!r} is not there"
    driver = Driver(definitions, definition, run, codec)
    try:
        driver.replay(run.journal)
    except (Fault, *FAULTS) as error:
        driver.close()
        return None, str(error)
    return driver, None
