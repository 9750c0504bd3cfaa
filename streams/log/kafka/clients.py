"""Builds the C clients, each with the settings that its role needs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar
from uuid import uuid4

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from streams.errors import LogUnavailable, UsageError
from streams.log.kafka.admin import Admin
from streams.log.kafka.ends import Ends
from streams.log.kafka.failures import error_of, sort, words
from streams.log.kafka.settings import (
    BATCH_BYTES_MAX,
    CONSUMERS_ONLY,
    MEMBERS_ONLY,
    MESSAGE_BYTES_MIN,
    PRODUCERS_ONLY,
    Settings,
    is_secret,
)
from streams.log.port import Isolation

__all__ = ["Clients", "OnError"]

# The client's own lines are for whoever sets up logging; without that they must not land on a user's terminal.
_LINES = logging.getLogger("streams.log.kafka.client")
_LINES.addHandler(logging.NullHandler())

T = TypeVar("T")

OnError = Callable[[KafkaError], None]

_ASK_SECONDS = 1.0
_SAY_SECONDS = 2.0

_NO_CONSUMER = CONSUMERS_ONLY | MEMBERS_ONLY
_PRODUCER: Mapping[str, Any] = {
    "acks": "all",
    "enable.idempotence": True,
    "batch.size": BATCH_BYTES_MAX,
    "message.max.bytes": MESSAGE_BYTES_MIN,
    "linger.ms": 5,
    # The default of 100 makes each transaction wait for the coordinator to complete the one before.
    "retry.backoff.ms": 5,
}
_TRANSACTIONAL: Mapping[str, Any] = {
    **_PRODUCER,
    # It spans one commit and never user code; a dead owner's transaction blocks its readers for so long.
    "transaction.timeout.ms": 10_000,
}
_CONSUMER: Mapping[str, Any] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    # An offset that is gone is an error to be told, never a place to go on from.
    "auto.offset.reset": "error",
    "allow.auto.create.topics": False,
    "fetch.queue.backoff.ms": 20,
    "fetch.error.backoff.ms": 100,
}
_MEMBER: Mapping[str, Any] = {
    **_CONSUMER,
    "isolation.level": "read_committed",
    "partition.assignment.strategy": "cooperative-sticky",
    "session.timeout.ms": 6_000,
    "heartbeat.interval.ms": 1_000,
    # A resumed partition waits for the fetch that is under way to come back.
    "fetch.wait.max.ms": 100,
    "queued.max.messages.kbytes": 32_768,
}
_READER: Mapping[str, Any] = {
    **_CONSUMER,
    "enable.partition.eof": True,
    # The end of a partition is told with an empty answer, which the broker holds back for so long.
    "fetch.wait.max.ms": 20,
    "fetch.message.max.bytes": 4 * 1024 * 1024,
}


_ISOLATIONS: tuple[Isolation, ...] = ("read_committed", "read_uncommitted")


class Clients:
    """The clients of one log."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._said = ""
        self._denied: UsageError | None = None
        ends = Ends({isolation: self.reader(isolation) for isolation in _ISOLATIONS})
        self.admin = Admin(self._administrator, settings.replication_factor, ends)

    def _administrator(self) -> AdminClient:
        # Nobody polls it, so its lines would only pile up.
        return self._checked(lambda: AdminClient(self._conf({"log_level": 0}, frozenset(), "streams-admin")))

    def appender(self) -> Producer:
        """A client for appends outside transactions."""
        conf = self._conf(_PRODUCER, _NO_CONSUMER, "streams-appender")
        return self._checked(lambda: Producer(conf, logger=_LINES))

    def transactional(self, id: str) -> Callable[[], Producer]:
        """Makes clients of a transactional id."""
        conf = self._conf({**_TRANSACTIONAL, "transactional.id": id}, _NO_CONSUMER, id)
        return lambda: self._checked(lambda: Producer(conf, logger=_LINES))

    def consumer(self, group: str, client_id: str) -> Callable[[OnError], Consumer]:
        """Makes the client of a group member, which is told of the client's own troubles."""
        conf = self._conf({**_MEMBER, "group.id": group}, PRODUCERS_ONLY, client_id)
        return lambda on_error: self._checked(lambda: Consumer({**conf, "error_cb": on_error}, logger=_LINES))

    def reader(self, isolation: Isolation) -> Callable[[], Consumer]:
        """Makes clients of readers. They commit nothing; the group's name is only there because it must be."""
        role = {**_READER, "group.id": f"streams-reader-{uuid4().hex}", "isolation.level": isolation}
        conf = self._conf(role, PRODUCERS_ONLY | MEMBERS_ONLY, "streams-reader")
        return lambda: self._checked(lambda: Consumer(conf, logger=_LINES))

    async def wait_for_broker(self, say: Callable[[str], None]) -> None:
        """Return when a broker answers."""
        began = time.monotonic()
        said = False
        while (problem := await asyncio.to_thread(self._ask)) is not None:
            waited = time.monotonic() - began
            if waited > self.settings.connect_seconds:
                raise LogUnavailable(
                    f"no broker of Kafka answers at {self.settings.servers} after {waited:.0f} s: {problem}; "
                    "start one (streams dev up), or correct the address"
                )
            if not said and waited > _SAY_SECONDS:
                said = True
                say(f"waiting for Kafka at {self.settings.servers}: {problem}")

    def _ask(self) -> str | None:
        """Why no broker answers, or None when one did."""
        try:
            self.admin.ask(_ASK_SECONDS)
        except KafkaException as raised:
            found = sort(error_of(raised), f"asking Kafka at {self.settings.servers}")
            if self._denied is not None or isinstance(found, UsageError):
                raise self._denied or found from raised
            return self._said or f"nothing that speaks Kafka answers there ({words(error_of(raised))})"
        return None

    def _conf(self, role: Mapping[str, Any], leave_out: AbstractSet[str], client_id: str) -> dict[str, Any]:
        return {**self.settings.conf(role, leave_out, client_id=client_id), "error_cb": self._on_error}

    def _on_error(self, error: KafkaError) -> None:
        self._said = words(error)
        if error.code() == KafkaError._BAD_MSG:
            self._said = f"what answers there does not speak Kafka ({self._said})"
        if error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL):
            self._denied = UsageError(f"Kafka at {self.settings.servers} does not let this client in: {self._said}")

    def _checked(self, make: Callable[[], T]) -> T:
        """The client, or one line about a setting that it does not take."""
        try:
            return make()
        except KafkaException as raised:
            raise UsageError(self._complaint(error_of(raised))) from raised

    def _complaint(self, error: KafkaError) -> str:
        text = error.str()
        for name, value in self.settings.client.items():
            # The client repeats a value that it refuses.
            if is_secret(name) and value:
                text = text.replace(value, "…")
        return f"Kafka's client does not take a setting: {text}"
