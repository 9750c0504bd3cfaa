"""A decision in the making: events with the state that follows on them, and the way back where code fails."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from streams.kernel.bodies import Body, CommandRejected, EffectEmitted, OpScheduled, OutcomeLate, RunOwned
from streams.kernel.definition import Definition, Definitions
from streams.kernel.driver import Driver
from streams.kernel.events import Event
from streams.kernel.evolve import evolve
from streams.kernel.fault import Command as Issue
from streams.kernel.fault import Fault
from streams.kernel.inputs import Env
from streams.kernel.names import NAME_BYTES_MAX, flaw_of
from streams.kernel.run import RUN_BYTES_MAX, Run

__all__ = ["Draft", "Mark"]


class Mark(NamedTuple):
    """A place to roll back to."""

    run: Run
    events: int
    offset: int | None
    slots: Mapping[str, int]


class Draft:
    """Collects the events of one decision. Run and slots are never changed, so going back is taking the older ones."""

    def __init__(self, definitions: Definitions, run: Run, live: Driver | None, env: Env) -> None:
        self.definitions = definitions
        self.run = run
        self.live = live
        self.env = env
        self.events: list[Event] = []
        self.now = max(env.now, run.at)
        self.slots = env.slots
        self.offset: int | None = None

    def emit(self, body: Body, *, cause: int | None = None, code: str | None = None) -> None:
        """Add an event and fold it. The offset of the command goes to the first event that it leads to."""
        run = self.run
        if isinstance(body, (CommandRejected, OutcomeLate)):
            self._append(body, None, cause, code)
            return
        if run.seq > 0 and run.epoch != self.env.epoch:
            self._append(RunOwned(self.env.owner), run.seq + 1, None, None)
        self._append(body, self.run.seq + 1, cause, code)

    def _append(self, body: Body, seq: int | None, cause: int | None, code: str | None) -> None:
        run = self.run
        event = tuple.__new__(  # what Event(...) does, at half its cost
            Event, (run.run_id, run.identity, seq, self.now, cause, self.offset, self.env.epoch, body, code)
        )
        self.offset = None
        self.events.append(event)
        self.run = evolve(run, event)

    def issue(self, command: Issue, cause: int) -> None:
        """Add what the code did in answer to the delivery `cause`; a task takes a free slot, else it queues.

        Raises `Fault` for the key of a message that no subscriber could take. Here and not where the code sets it: a
        replay of what has left already must not fail by it.
        """
        if isinstance(command, OpScheduled):
            if command.kind == "task":
                command = self._placed(command)
            elif command.kind == "request":
                _check_key(command)
        elif isinstance(command, EffectEmitted):
            _check_key(command)
        self.emit(command, cause=cause)

    def _placed(self, task: OpScheduled) -> OpScheduled:
        """The task with the slot that it takes, or without an attempt where there is none."""
        spec = self.definitions.task(task.name)
        pool = spec.pool if spec is not None else "loop"
        free = self.slots.get(pool, 0)
        if free <= 0:
            return task._replace(attempt=0)
        self.slots = {**self.slots, pool: free - 1}
        return task

    def mark(self) -> Mark:
        """Where the decision stands now."""
        return Mark(self.run, len(self.events), self.offset, self.slots)

    def take_back(self, mark: Mark) -> None:
        """Take back everything since `mark`. The coroutine stays: nothing was delivered to it since."""
        self.run, self.offset, self.slots = mark.run, mark.offset, mark.slots
        del self.events[mark.events :]

    def roll_back(self, mark: Mark) -> None:
        """Take back everything since `mark`, and drop the coroutine that has seen it."""
        self.take_back(mark)
        self.drop_live()

    def drop_live(self) -> None:
        """Close the cached coroutine."""
        if self.live is not None:
            self.live.close()
            self.live = None

    def definition(self) -> Definition:
        """The run's definition. Raises `Fault` where it is not loaded."""
        run = self.run
        found = self.definitions.workflow(run.workflow, run.version or None)
        if found is not None:
            return found
        loaded = sorted(self.definitions.versions(run.workflow))
        if loaded:
            message = f"version {run.version} of workflow {run.workflow!r} is not loaded here, only {loaded}"
            raise Fault("VERSION_UNSUPPORTED", message)
        message = f"no workflow {run.workflow!r} is loaded here"
        raise Fault("WORKFLOW_UNKNOWN", message)

    def driver(self) -> Driver:
        """The live coroutine, rebuilt from the journal where it was evicted."""
        if self.live is None:
            driver = Driver(self.definitions, self.definition(), self.run, self.env.codec)
            self.live = driver
            driver.replay(self.run.journal)
        return self.live

    def enter(self) -> Driver:
        """A driver for a generation that nothing has entered yet."""
        if self.live is not None:
            self.live.close()
        self.live = Driver(self.definitions, self.definition(), self.run, self.env.codec)
        return self.live

    def check_size(self) -> None:
        """Raise `Fault` when the run has grown over what a checkpoint can hold."""
        if self.run.size > RUN_BYTES_MAX:
            message = (
                f"the values that the run keeps have grown to {self.run.size} bytes, over the limit of "
                f"{RUN_BYTES_MAX}. Store large values elsewhere and keep references, or make it a graph, which "
                "drops its journal at each step"
            )
            raise Fault("VALUE_TOO_LARGE", message)


def _check_key(message: EffectEmitted | OpScheduled) -> None:
    if flaw := flaw_of(message.key, NAME_BYTES_MAX):
        effect = message.effect if isinstance(message, EffectEmitted) else message.name
        text = f"the idempotency key of a message of effect {effect!r} (op {message.op}) {flaw}"
        raise Fault("WORKFLOW_BUG", f"{text}; make it of facts of the business, such as f'pay/{{order_id}}'")
