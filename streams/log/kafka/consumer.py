"""The C client of a group member and everything that must happen on its own thread."""

from __future__ import annotations

import asyncio
import itertools
import struct
import time
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from streams.errors import LogDamaged, LogUnavailable, StreamsError, UsageError
from streams.log.kafka.failures import MISSING, RAISED, error_of, sort, words
from streams.log.kafka.messages import record_of
from streams.log.kafka.patience import Patience
from streams.log.port import Record

__all__ = ["Cursor", "GroupConsumer", "generation"]

SLICE_SECONDS = 0.02
"""How long a poll sits in the client before it looks at what was asked of it meanwhile."""
ASK_SECONDS = 0.5
"""How long a poll waits for any broker while none is there."""
_METADATA_SECONDS = 5.0
_MAGIC = b"CGMDv2:"


class Cursor:
    """Where a partition goes on from, moved on by what has come; identity tells one resume from the next."""

    __slots__ = ("incarnation", "offset")

    def __init__(self, incarnation: int, offset: int) -> None:
        self.incarnation = incarnation
        self.offset = offset


class Fetched(NamedTuple):
    """A record, and the cursor under which it was fetched."""

    cursor: Cursor
    record: Record


class Listener(Protocol):
    """What is told about changes, on the event loop; each runs to its end before the group moves on."""

    async def on_assigned(self, token: bytes | None, partitions: Mapping[int, int]) -> None: ...

    async def on_revoked(self, token: bytes | None, partitions: Mapping[int, int]) -> None: ...

    async def on_lost(self, token: bytes | None, partitions: Mapping[int, int]) -> None: ...


class GroupConsumer:
    """Lives on the member's thread; what it shares with the event loop are the attributes without an underscore."""

    def __init__(
        self, topic: str, make: Callable[[Callable[[KafkaError], None]], Consumer], listener: Listener
    ) -> None:
        self.orders: deque[tuple[int, Cursor | None]] = deque()
        self.ready: deque[Fetched] = deque()
        self.interrupted = False
        self.silent = False
        self.returned = False
        """Whether the brokers were away since somebody last looked."""
        self.patience = Patience()
        self._topic = topic
        self._make = make
        self._listener = listener
        self._client: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._incarnations = itertools.count(1)
        self._held: dict[int, int] = {}
        self._active: dict[int, Cursor] = {}
        self._token: bytes | None = None
        self._failure: BaseException | None = None
        self._trouble: StreamsError | None = None
        self._damage: dict[int | None, LogDamaged] = {}
        """What is still to be told, by partition: each is fetched no more, so nothing would tell it again."""
        self._away: str | None = None
        self._changed = False
        self._held_back = False
        """Whether the client has nothing to fetch, since nothing is wanted."""

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Make the client and ask to enter the group."""
        self._loop = loop
        self._client = self._make(self._on_trouble)
        self._client.subscribe(
            [self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def poll(self, records_max: int, timeout: float) -> bytes | None:
        """Serve the group, then put what has arrived into `ready`. Returns the group metadata of this poll."""
        deadline = time.monotonic() + timeout
        self._changed = False
        self._wait_for_broker(timeout)
        while True:
            self._follow_orders()
            self._hold_back(not records_max)
            # Before anything else is fetched: on a busy topic something always arrives.
            if self._damage:
                raise self._damage.pop(next(iter(self._damage)))
            left = deadline - time.monotonic()
            self._fetch(records_max, min(max(left, 0.0), SLICE_SECONDS))
            self._raise_failure()
            if self._trouble is not None and not (records_max and self.ready):
                trouble, self._trouble = self._trouble, None
                raise trouble
            if (records_max and self.ready) or self._changed or left <= 0 or self.interrupted:
                return self._fresh_token()

    def _wait_for_broker(self, timeout: float) -> None:
        """Raise for as long as no broker is there: the client says so now and then, and is silent in between."""
        if self._away is None:
            return
        try:
            self._client.list_topics(self._topic, timeout=max(timeout, ASK_SECONDS))
        except KafkaException as raised:
            raise LogUnavailable(self._away) from raised
        self._away = self._trouble = None
        self.returned = True

    def _fetch(self, records_max: int, timeout: float) -> None:
        try:
            message = self._client.poll(timeout)
            if message is not None:
                self._put(message)
                for more in self._client.consume(max(records_max, 1), 0):
                    self._put(more)
        except RAISED as raised:
            self._note(sort(error_of(raised), f"polling {self._topic}"))

    def close(self) -> None:
        """Leave the group; what is held is revoked first."""
        client, self._client = self._client, None
        if client is None:
            return
        # It leaves all the same; what went wrong in its callbacks comes out wrapped, if it comes out at all.
        with suppress(*RAISED):
            client.close()
        self._raise_failure()

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    # -- what the loop asked for ---------------------------------------------------------------------------------

    def _follow_orders(self) -> None:
        while self.orders:
            partition, cursor = self.orders.popleft()
            try:
                self._follow(partition, cursor)
            except KafkaException as raised:
                raise sort(error_of(raised), f"moving to an offset of {self._topic}[{partition}]") from raised

    def _follow(self, partition: int, cursor: Cursor | None) -> None:
        if partition not in self._held or (cursor is not None and cursor.incarnation != self._held[partition]):
            return
        self._stop(self._client, [partition])
        if cursor is not None:
            if not self._held_back:
                self._client.incremental_assign([TopicPartition(self._topic, partition, cursor.offset)])
            self._active[partition] = cursor

    def _hold_back(self, wanted: bool) -> None:  # noqa: FBT001
        """Let the client fetch nothing for a while, or go on where it was. Each of its polls would bring a record."""
        if wanted == self._held_back:
            return
        places = [TopicPartition(self._topic, partition, cursor.offset) for partition, cursor in self._active.items()]
        try:
            (self._client.incremental_unassign if wanted else self._client.incremental_assign)(places)
        except KafkaException as raised:
            raise sort(error_of(raised), f"moving to an offset of {self._topic}") from raised
        self._held_back = wanted

    def _stop(self, client: Consumer, partitions: Collection[int]) -> None:
        """Fetch nothing of these any more; what the client has fetched ahead does not come out."""
        for partition in partitions:
            self._damage.pop(partition, None)  # it goes on elsewhere, or not here
        stopped = [p for p in partitions if self._active.pop(p, None) is not None]
        fetched = [] if self._held_back else stopped
        client.incremental_unassign([TopicPartition(self._topic, partition) for partition in fetched])

    # -- what the client brings ----------------------------------------------------------------------------------

    def _put(self, message: Message) -> None:
        error = message.error()
        cursor = self._active.get(message.partition() or 0)
        if error is not None:
            self._failed(error, message.partition(), cursor)
        elif cursor is not None:
            record = record_of(message)
            cursor.offset = record.offset + 1
            self.ready.append(Fetched(cursor, record))

    def _failed(self, error: KafkaError, partition: int | None, cursor: Cursor | None) -> None:
        if error.code() in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET):
            if cursor is not None and partition is not None:
                self._stop(self._client, [partition])
                place = f"{self._topic}[{partition}]"
                self._note(LogDamaged(f"the next offset of {place} is outside the log: {words(error)}", partition))
        elif error.code() in MISSING:
            self._trouble = UsageError(f"there is no topic {self._topic} (any more): {words(error)}")
        elif error.code() != KafkaError._MAX_POLL_EXCEEDED:  # `on_lost` says the same
            found = sort(error, f"reading {self._topic}")
            if isinstance(found, UsageError) or error.fatal():
                self._trouble = found

    def _note(self, found: StreamsError) -> None:
        if isinstance(found, LogDamaged):
            self._damage[found.partition] = found
        else:
            self._trouble = found

    def _on_trouble(self, error: KafkaError) -> None:
        # An idle worker would not notice otherwise: a poll without a broker brings nothing, as one without news does.
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._away = f"no broker of Kafka answers: {words(error)}"
            self._trouble = LogUnavailable(self._away)

    # -- what the group says -------------------------------------------------------------------------------------

    # What the group assigns and what the client fetches are two things. A partition is fetched from its resume on,
    # from the offset given there. Assigned at the end, paused, and moved with `seek`, one partition in about four
    # hundred stood still for good (seen once in 34 starts of 12; why was not found out).

    def _on_assign(self, client: Consumer, places: Sequence[TopicPartition]) -> None:
        assigned = {place.partition: next(self._incarnations) for place in places}
        client.incremental_assign([])  # the answer that the client waits for
        self._held.update(assigned)
        if assigned:
            self._tell(self._listener.on_assigned(self._fresh_token(client), assigned))

    def _on_revoke(self, client: Consumer, places: Sequence[TopicPartition]) -> None:
        leaving = self._leaving(places)
        if leaving:
            self._tell(self._listener.on_revoked(self._fresh_token(client), leaving))
        self._stop(client, leaving)

    def _on_lost(self, client: Consumer, places: Sequence[TopicPartition]) -> None:
        leaving = self._leaving(places)
        if leaving:
            self._tell(self._listener.on_lost(self._fresh_token(client), leaving))
        self._stop(client, leaving)

    def _leaving(self, places: Sequence[TopicPartition]) -> dict[int, int]:
        return {place.partition: self._held.pop(place.partition) for place in places if place.partition in self._held}

    def _tell(self, call: Coroutine[Any, Any, None]) -> None:
        """Run `call` on the event loop and wait: the partitions go to nobody else before this returns."""
        self._changed = True
        assert self._loop is not None
        if self.silent:
            call.close()
            return
        try:
            asyncio.run_coroutine_threadsafe(call, self._loop).result()
        except BaseException as raised:  # noqa: BLE001 - `poll` raises it; here it would go into the client's C code
            self._failure = raised

    def _fresh_token(self, client: Consumer | None = None) -> bytes | None:
        """The group metadata now, or the last good one.

        Metadata without a generation fences nothing at the broker: a member that was thrown out would write on.
        With the last good one its commits are refused, as they have to be.
        """
        try:
            metadata = self.patience.within(_METADATA_SECONDS, (client or self._client).consumer_group_metadata)
        except RuntimeError:  # it has none to give, as one that closes after it was thrown out: the call said nothing
            metadata = None
        if metadata is not None and generation(metadata) >= 0:
            self._token = bytes(metadata)
        return self._token


def generation(metadata: object) -> int:
    """The generation in group metadata, -1 before a member has joined. The layout is the client's own."""
    data = bytes(metadata) if isinstance(metadata, bytes | bytearray) else b""
    if not data.startswith(_MAGIC) or len(data) < len(_MAGIC) + 4:
        raise LogUnavailable(
            "this version of confluent-kafka writes group metadata in another way, so streams cannot tell whether a "
            "member has joined: use the version in pyproject.toml"
        )
    number: int = struct.unpack_from("<i", data, len(_MAGIC))[0]
    return number
