"""`python -m bench.pure`: the processor time of a three-step run in the pure code alone, without log and event loop.

Each run goes through what a worker does for it: its command is decoded, four decisions are made, their eight events and
the last checkpoint are encoded, and the values of its tasks are read and written. The runs go in waves, so that each
decision finds its run as cold as it is with so many under way. Then the events are decoded and folded again.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bench.app import app
from bench.jobs import step_result
from streams.authoring.app import AppDefinitions
from streams.kernel.commands import Command, Start
from streams.kernel.decide import Decision, decide
from streams.kernel.driver import Driver
from streams.kernel.evolve import evolve
from streams.kernel.inputs import Env, Input, Outcome
from streams.kernel.run import Run, blank, is_terminal
from streams.runtime.outgoing import encode_events
from streams.wire.app_codec import make_codec
from streams.wire.partitioner import partition_of
from streams.wire.records import decode_command, decode_event, encode_checkpoint, encode_command

__all__ = ["Pure"]

_BATCH = 200
_BEGAN_US = 1_700_000_000_000_000

Work = tuple[Run, Driver | None, Input]


class Pure:
    """The runs, and the seconds of processor time that each stage has taken."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._definitions = AppDefinitions(app)
        self._codec = make_codec(app.annotations, app.named_types)
        self._now = _BEGAN_US

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        began = time.process_time()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.process_time() - began

    def runs(self, name: str, count: int, in_flight: int) -> list[bytes]:
        """Run `count` of them to their end, a wave at a time; give their events."""
        events: list[bytes] = []
        for begin in range(0, count, in_flight):
            ids = [f"{name}-{number:06d}" for number in range(begin, min(count, begin + in_flight))]
            sent = [self._start(run_id) for run_id in ids]
            with self._timed("commands"):
                commands = [_taken(*parts, offset) for offset, parts in enumerate(sent, begin)]
            work: list[Work] = [(blank(command.run_id, command.offset), None, command) for command in commands]
            while work:
                ready = [self._turn(work[at : at + _BATCH], events) for at in range(0, len(work), _BATCH)]
                work = [item for batch in ready for item in batch]
        return events

    def _start(self, run_id: str) -> tuple[bytes, bytes]:
        request = Start("order", self._codec.encode(run_id), 1)
        return run_id.encode(), encode_command(request, command_id=f"{run_id}-command")

    def _turn(self, work: Sequence[Work], events: list[bytes]) -> list[Work]:
        self._now += 20_000
        env = Env(self._now, 1, "worker", self._codec, {"loop": 1_000_000}, b"sixteen bytes of")
        with self._timed("decide"):
            decisions = [decide(self._definitions, *item, env) for item in work]
        with self._timed("encode"):
            for decision in decisions:
                events += encode_events(decision.events)
        with self._timed("checkpoint"):
            for decision in decisions:
                if is_terminal(decision.run):
                    encode_checkpoint(decision.run)
        with self._timed("values"):
            return [self._attempt(decision) for decision in decisions if not is_terminal(decision.run)]

    def _attempt(self, decision: Decision) -> Work:
        (op,) = decision.run.ops.values()
        (order_id,) = self._codec.decode(op.args or b"")[0]
        value = self._codec.encode(step_result(op.name, order_id))
        return decision.run, decision.live, Outcome(op.id, op.attempt, value)

    def fold(self, events: Sequence[bytes]) -> None:
        """Decode and fold the events, as `rebuild` does."""
        with self._timed("decode again"):
            found = [decode_event(data) for data in events]
        states: dict[str, Run] = {}
        with self._timed("fold again"):
            for event in found:
                run = states.get(event.run_id) or blank(event.run_id, int(event.identity.rpartition("@")[2]))
                states[event.run_id] = evolve(run, event)


def _taken(key: bytes, value: bytes, offset: int) -> Command:
    partition_of(key, 12)
    return decode_command(key, value, default_id=f"topic/0/{offset}", offset=offset)


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.pure", description=__doc__)
    parser.add_argument("--runs", type=int, default=4_000)
    parser.add_argument("--in-flight", type=int, default=2_000)
    args = parser.parse_args()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    pure = Pure()
    pure.runs("warm", 1_000, args.in_flight)
    pure.seconds.clear()
    pure.fold(pure.runs("run", args.runs, args.in_flight))
    for stage, seconds in pure.seconds.items():
        print(f"{stage:<16}{seconds / args.runs * 1e6:8.1f} µs a run")
    worked = sum(seconds for stage, seconds in pure.seconds.items() if not stage.endswith("again"))
    print(f"{'all but again':<16}{worked / args.runs * 1e6:8.1f} µs a run")


if __name__ == "__main__":
    _main()
