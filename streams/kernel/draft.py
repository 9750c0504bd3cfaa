"""A decision in the making: events with the state that follows on them, and the way back where code fails."""

from __future__ import annotations

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
    slots: dict[str, int]


class Draft:
    """Collects the events of one decision. Run values are frozen, so going back is taking the older one."""

    def __init__(self, definitions: Definitions, run: Run, live: Driver | None, env: Env) -> None:
        self.definitions = definitions
        self.run = run
        self.live = live
        self.env = env
        self.events: list[Event] = []
        self.now = max(env.now, run.at)
        self.slots = dict(env.slots)
        self.offset: int | None = None

    def emit(self, body: Body, *, cause: int | None = None, code: str | None = None) -> None:
        """Add an event and fold it. The offset of the command goes to the first event that it leads to."""
        run = self.run
        if run.seq > 0 and run.epoch != self.env.epoch and not isinstance(body, (CommandRejected, OutcomeLate)):
            self._append(RunOwned(self.env.owner), run.seq + 1, None, None)
        seq = None if isinstance(body, (CommandRejected, OutcomeLate)) else self.run.seq + 1
        self._append(body, seq, cause, code)

    def _append(self, body: Body, seq: int | None, cause: int | None, code: str | None) -> None:
        run = self.run
        event = Event(run.run_id, run.identity, seq, self.now, cause, self.offset, self.env.epoch, body, code)
        self.offset = None
        self.events.append(event)
        self.run = evolve(run, event)

    def issue(self, command: Issue, cause: int) -> None:
        """Add what the code did in answer to the delivery `cause`; a task takes a free slot, else it queues.

        Raises `Fault` for the key of a message that no subscriber could take. Here and not where the code sets it: a
        replay of what has left already must not fail by it.
        """
        if isinstance(command, EffectEmitted) or (isinstance(command, OpScheduled) and command.kind == "request"):
            _check_key(command)
        if isinstance(command, OpScheduled) and command.kind == "task":
            spec = self.definitions.task(command.name)
            pool = spec.pool if spec is not None else "loop"
            if self.slots.get(pool, 0) > 0:
                self.slots[pool] -= 1
                command = command._replace(attempt=1)
        self.emit(command, cause=cause)

    def mark(self) -> Mark:
        """Where the decision stands now."""
        return Mark(self.run, len(self.events), self.offset, dict(self.slots))

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
