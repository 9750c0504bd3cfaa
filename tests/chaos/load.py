"""The sender of the chaos test: starts runs, answers their questions, and keeps what the broker has acknowledged.

A plain client of Kafka with an own consumer of the events, as any program in any language could be.
"""

from __future__ import annotations

import heapq
import itertools
import json
import random
import threading
import time
from collections import Counter
from functools import partial
from typing import Any, NamedTuple
from uuid import uuid4

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from streams.kernel import bodies as ev
from streams.wire.partitioner import partition_of
from streams.wire.records import decode_event
from streams.wire.topics import Topics
from tests.chaos.model import JUNK, Plan, answer_of, draw, encode

__all__ = ["Accepted", "Load"]

OPEN_MAX = 60
"""Runs of one partition that are under way at once."""
STARTS_A_SECOND = 120.0
_ENDS = (ev.RunCompleted, ev.RunFailed, ev.RunCancelled)


class Accepted(NamedTuple):
    """A record that the broker has acknowledged."""

    run_id: str
    type: str
    partition: int
    offset: int
    value: bytes


class Load:
    """Runs in a thread of its own, so that faults do not hold it up."""

    def __init__(self, bootstrap: str, topics: Topics, partitions: int, seed: int) -> None:
        self.plans: dict[str, Plan] = {}
        self.accepted: list[Accepted] = []
        self.unacknowledged = 0
        self.ended: set[str] = set()
        self.started: set[str] = set()
        self.events = 0
        self.starting = True
        """Cleared when no new runs are to be started."""
        self.failure: BaseException | None = None
        self._bootstrap, self._topics, self._partitions = bootstrap, topics, partitions
        self._rng = random.Random(f"load {seed}")
        self._heap: list[tuple[float, int, str, dict[str, Any]]] = []
        self._order = itertools.count()
        self._open: Counter[int] = Counter()
        self._under_way = 0
        self._wanted: set[str] = set()
        """Runs whose start was acknowledged."""
        self._stop = threading.Event()
        self._budget = 0.0
        self._last = time.monotonic()
        self._producer = self._new_producer()
        self._consumer = self._new_consumer()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._stop.set()
        self._thread.join(60)

    @property
    def left(self) -> set[str]:
        """Runs that must end and have not, as far as the events tell."""
        return (self._wanted | self.started) - self.ended

    @property
    def quiet(self) -> bool:
        """Whether nothing is to be sent and everything has ended."""
        return not self.starting and not self._heap and not self._under_way and not self.left

    # -- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._step()
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.failure = error
        finally:
            self._consumer.close()

    def _step(self) -> None:
        self._start()
        self._send_due()
        self._producer.poll(0.002)
        for message in self._consumer.consume(500, 0.01):
            if message.error() is None:
                self._take(message)

    def _start(self) -> None:
        now = time.monotonic()
        self._budget = min(self._budget + (now - self._last) * STARTS_A_SECOND, 50.0)
        self._last = now
        while self.starting and self._budget >= 1:
            self._budget -= 1
            plan = draw(self._rng, len(self.plans))
            partition = partition_of(plan.run_id.encode(), self._partitions)
            if self._open[partition] < OPEN_MAX:
                self._begin(plan, partition, now)

    def _begin(self, plan: Plan, partition: int, now: float) -> None:
        self.plans[plan.run_id] = plan
        if plan.kind != JUNK:
            self._open[partition] += 1
        for delay, command in plan.sends:
            self._later(max(0.0, delay), plan.run_id, command)
        early = 0.2 if any(delay < 0 for delay, _ in plan.sends) else 0.0
        self._later(early, plan.run_id, plan.start)

    def _later(self, delay: float, run_id: str, command: dict[str, Any]) -> None:
        heapq.heappush(self._heap, (time.monotonic() + delay, next(self._order), run_id, command))

    def _send_due(self) -> None:
        now = time.monotonic()
        while self._heap and self._heap[0][0] <= now and self._under_way < 5_000:
            _, _, run_id, command = heapq.heappop(self._heap)
            if command["command_id"].endswith("/conflict") and run_id not in self.started:
                continue  # it would be the first start, and none that is to be refused
            if self.plans[run_id].kind == JUNK:
                value = self._rng.choice([b"\x00nothing", b'{"type": "begin"}', b"{", b'{"type": "start", "x": 1}'])
            else:
                value = encode(command, as_json=self._rng.random() < 0.5)
            self._under_way += 1
            report = partial(self._landed, run_id, command)
            self._producer.produce(self._topics.commands, value, run_id.encode(), on_delivery=report)

    def _landed(self, run_id: str, command: dict[str, Any], error: KafkaError | None, message: Message) -> None:
        self._under_way -= 1
        offset = message.offset()
        # Without an offset the broker has called it a repeat, which is no proof: of two batches on their way to a new
        # partition the first may be refused and the second taken; sent again, the first counts as one that is there.
        if error is None and offset is not None and offset >= 0:
            place = (message.partition() or 0, offset)
            self.accepted.append(Accepted(run_id, command["type"], *place, message.value() or b""))
            if command["type"] == "start" and self.plans[run_id].kind != JUNK:
                self._wanted.add(run_id)
            return
        self.unacknowledged += 1
        if error is not None and error.fatal():
            raise RuntimeError(f"the sender's client is broken: {error}")
        if command["type"] == "start" and self._rng.random() < 0.3:
            # It may be in the log or not: nobody was told that it is, so nobody may rely on it.
            self._settle(run_id)
        else:
            self._later(0.3, run_id, command)

    def _settle(self, run_id: str) -> None:
        """The run counts no more among those under way."""
        partition = partition_of(run_id.encode(), self._partitions)
        self._open[partition] = max(0, self._open[partition] - 1)

    # -- what the events tell ------------------------------------------------------------------------------------

    def _take(self, message: Message) -> None:
        self.events += 1
        event = decode_event(message.value() or b"")
        body, run_id = event.body, event.run_id
        if isinstance(body, ev.RunStarted):
            self.started.add(run_id)
        elif isinstance(body, _ENDS):
            self.ended.add(run_id)
            self._settle(run_id)
        elif isinstance(body, ev.OpScheduled) and body.kind == "interrupt":
            self._answer(run_id, body)

    def _answer(self, run_id: str, body: ev.OpScheduled) -> None:
        """Answer a question, sometimes more than once and late, always under the same command id."""
        number = json.loads(body.args or b"{}")["number"]
        if number < 0:
            return
        command = {"type": "resume", "command_id": f"{run_id}/a{number}", "value": answer_of(run_id, number)}
        if body.name in ("left", "right"):
            command["interrupt"] = body.name
        self._later(self._rng.choice([0.0, 0.05, 0.3]), run_id, command)
        if self._rng.random() < 0.4:
            self._later(self._rng.choice([0.05, 0.4, 0.4, 1.5]), run_id, command)

    # -- clients -------------------------------------------------------------------------------------------------

    def _new_producer(self) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "partitioner": "murmur2",
                "linger.ms": 5,
                # Short, so that an outage leaves commands of which nobody knows whether they are in the log.
                "request.timeout.ms": 3_000,
                "delivery.timeout.ms": 6_000,
                "log_level": 0,
            }
        )

    def _new_consumer(self) -> Consumer:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": f"chaos-{uuid4().hex}",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition(self._topics.events, number, 0) for number in range(self._partitions)])
        return consumer
