"""Topics, ends and group offsets, as the brokers tell them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
    Uuid,
)
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic  # type: ignore[attr-defined]

from streams.errors import LogUnavailable, UsageError
from streams.log.kafka.ends import Ends
from streams.log.kafka.failures import MISSING, OLDEST, STALE, UNSTABLE, code_of, error_of, sort
from streams.log.port import Isolation, NewRecord, Span, TopicInfo, TopicSpec

__all__ = ["Admin"]

T = TypeVar("T")

REPLICAS = "replication.factor"
NO_ID = str(Uuid(0, 0))
REQUEST_SECONDS = 10.0
APPEAR_SECONDS = 10.0
STABLE_SECONDS = 60.0
"""A pending transaction ends by its time-out, ten seconds, plus up to ten until the broker looks."""
_LOOK_SECONDS = 0.02
_ASK_SECONDS = 1.0
_LEADERS = {
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError._NOENT,  # what the client says where it finds no leader
}


class Admin:
    """Asks the cluster. The client's calls return at once and are answered by its own thread."""

    def __init__(self, make: Callable[[], AdminClient], replication_factor: int, ends: Ends) -> None:
        self._make = make
        self._client = make()
        self._ends = ends
        self._replication_factor = replication_factor
        self._known: dict[str, TopicInfo] = {}

    def ask(self, seconds: float) -> None:
        """Raise KafkaException unless a broker answers. Blocks."""
        try:
            self._client.list_topics(timeout=seconds)
        finally:
            self._client.poll(0)  # the client's own words go to its error callback

    def renew(self, old: AdminClient | None = None) -> None:
        """Go on with a fresh client; with `old` only where that one is still in use.

        A broker that was away for a moment is forgotten by the client, but not by its memory of coordinators: from
        then on no question about a group is answered, until the process ends (seen with librdkafka 2.16).
        """
        if old is None or old is self._client:
            self._client = self._make()

    # -- topics --------------------------------------------------------------------------------------------------

    async def create(self, specs: Sequence[TopicSpec]) -> None:
        """Create what is missing and wait until a broker knows it."""
        if not specs:
            return
        wanted = [_new_topic(spec, self._replication_factor) for spec in specs]
        for name, future in self._client.create_topics(wanted, request_timeout=REQUEST_SECONDS).items():
            try:
                await _answer(future)
            except KafkaException as error:
                if code_of(error) != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise _refused(error, f"topic {name} cannot be created") from error
        await self._until_led({spec.name for spec in specs})

    async def describe(self, names: Collection[str]) -> dict[str, TopicInfo]:
        """Those of the named topics that exist."""
        found = {name: topic for name, topic in (await self._topics(names)).items() if topic is not None}
        if not found:
            return {}
        _refuse_without_ids(found)
        resources = {name: ConfigResource(ConfigResource.Type.TOPIC, name) for name in found}
        futures = self._client.describe_configs(list(resources.values()), request_timeout=REQUEST_SECONDS)
        configs: dict[str, dict[str, str]] = {}
        for resource, future in futures.items():
            try:
                entries = await _answer(future)
            except KafkaException as error:
                if code_of(error) not in MISSING:
                    raise sort(error_of(error), f"reading the settings of topic {resource.name}") from error
            else:
                configs[resource.name] = {name: str(entry.value) for name, entry in entries.items()}
        infos = {name: _info(name, found[name], config) for name, config in configs.items()}
        self._known.update(infos)
        return {name: infos[name] for name in names if name in infos}

    async def known_for(self, records: Sequence[NewRecord]) -> Mapping[str, TopicInfo]:
        """What was described before, asked for anew where a record's topic or partition is not known."""
        known = self._known
        last = _last_partitions(records)
        unknown = [name for name, number in last.items() if name not in known or known[name].partitions <= number]
        if unknown:
            await self.describe(unknown)
        return known

    async def forget_missing(self, records: Sequence[NewRecord]) -> None:
        """Ask anew for those topics of the records that are gone, or have too few partitions by now.

        Where no broker answers, nobody can tell, and all stay known: `describe` must not meet a broker that is away.
        """
        try:
            found = (await asyncio.to_thread(lambda: self._client.list_topics(timeout=_ASK_SECONDS))).topics
        except KafkaException:
            return
        for name, number in _last_partitions(records).items():
            if name not in found or (found[name].error is None and len(found[name].partitions) <= number):
                self._known.pop(name, None)

    async def names(self) -> list[str]:
        """The names of all topics but the brokers' own."""
        names = await self._blocking(lambda: list(self._client.list_topics(timeout=REQUEST_SECONDS).topics))
        return sorted(name for name in names if not name.startswith("__"))

    async def _topics(self, names: Collection[str]) -> dict[str, Any]:
        if not names:
            return {}
        found: dict[str, Any] = {}
        futures = self._client.describe_topics(TopicCollection(list(names)), request_timeout=REQUEST_SECONDS)
        for name, future in futures.items():
            try:
                found[name] = await _answer(future)
            except KafkaException as error:
                if code_of(error) not in MISSING:
                    raise sort(error_of(error), f"asking for topic {name}") from error
                found[name] = None
        return found

    async def _until_led(self, names: set[str]) -> None:
        """The answer to the creation may be ahead of what the broker tells to readers and writers."""
        deadline = time.monotonic() + APPEAR_SECONDS
        while True:
            found = await self._topics(names)
            late = [name for name, topic in found.items() if topic is None or not _is_led(topic)]
            if not late:
                return
            if time.monotonic() > deadline:
                raise LogUnavailable(f"topic {late[0]} was created, but no broker serves it yet; try again")
            await asyncio.sleep(_LOOK_SECONDS)

    # -- ends ----------------------------------------------------------------------------------------------------

    async def span(self, topic: str, partition: int, isolation: Isolation) -> Span:
        """The ends of a partition now."""
        deadline = time.monotonic() + APPEAR_SECONDS
        while True:
            try:
                return await self._ends.span(topic, max(partition, 0), isolation)
            except KafkaException as error:
                if code_of(error) not in _LEADERS | MISSING or time.monotonic() > deadline:
                    raise sort(error_of(error), f"asking for the ends of {topic}[{partition}]") from error
            await self.require(topic, partition)
            await asyncio.sleep(_LOOK_SECONDS)

    async def require(self, topic: str, partition: int) -> None:
        """Raise UsageError for a topic or partition that does not exist."""
        # Of all topics: asked for one that is missing, some brokers would create it.
        found = (await self._blocking(lambda: self._client.list_topics(timeout=REQUEST_SECONDS))).topics.get(topic)
        if found is None:
            raise UsageError(f"there is no topic {topic}: create it first")
        if not 0 <= partition < len(found.partitions):
            raise UsageError(f"topic {topic} has no partition {partition}; it has {len(found.partitions)}")

    # -- groups --------------------------------------------------------------------------------------------------

    async def group_offsets(self, group: str, topic: str) -> dict[int, int]:
        """The group's stable offsets. Pending ones are waited for, for `STABLE_SECONDS`; then `LogUnavailable`."""
        deadline = time.monotonic() + STABLE_SECONDS
        while True:
            mine = [place for place in await self._committed(group) if place.topic == topic]
            pending = [place.partition for place in mine if place.error is not None and place.error.code() == UNSTABLE]
            if not pending:
                return {place.partition: place.offset for place in mine if place.offset >= 0}
            if time.monotonic() > deadline:
                raise LogUnavailable(
                    f"the offsets of group {group} for {topic}{sorted(pending)} are pending in an open transaction; "
                    "it ends by its time-out, or when its owner comes back"
                )
            await asyncio.sleep(_LOOK_SECONDS)

    async def rewind(self, group: str, topic: str, offsets: Mapping[int, int | None]) -> None:
        """Set a group's offsets, None deletes one. Refused with `LogUnavailable` while the group has members."""
        await self._refuse_members(group)
        removed = [partition for partition, offset in offsets.items() if offset is None]
        wanted = {(topic, partition): offset for partition, offset in offsets.items() if offset is not None}
        if removed:
            # The client cannot delete a single offset: all are deleted, then the others are written again. A worker
            # that starts in between finds none and begins at what it has applied, so nothing is lost.
            found = await self._committed(group)
            kept = {(place.topic, place.partition): place.offset for place in found if place.offset >= 0}
            wanted = {key: at for key, at in {**kept, **wanted}.items() if key[0] != topic or key[1] not in removed}
            await self._delete_group(group)
        if wanted:
            places = [TopicPartition(name, partition, offset) for (name, partition), offset in wanted.items()]
            request = [ConsumerGroupTopicPartitions(group, places)]
            futures = self._client.alter_consumer_group_offsets(request, request_timeout=REQUEST_SECONDS)
            answer = await self._of_group(futures[group], group, "setting the offsets")
            for place in answer.topic_partitions:
                if place.error is not None:
                    raise _has_members_or(place.error, group, "setting the offsets")

    async def _committed(self, group: str) -> list[TopicPartition]:
        request = [ConsumerGroupTopicPartitions(group)]
        client = self._client
        futures = client.list_consumer_group_offsets(request, require_stable=True, request_timeout=REQUEST_SECONDS)
        try:
            answer = await _answer(futures[group])
        except KafkaException as error:
            if code_of(error) == KafkaError.GROUP_ID_NOT_FOUND:
                return []
            if code_of(error) == KafkaError._TIMED_OUT:
                self.renew(client)
            raise sort(error_of(error), f"asking for the offsets of group {group}") from error
        return list(answer.topic_partitions)

    async def _refuse_members(self, group: str) -> None:
        futures = self._client.describe_consumer_groups([group], request_timeout=REQUEST_SECONDS)
        try:
            answer = await _answer(futures[group])
        except KafkaException as error:
            if code_of(error) == KafkaError.GROUP_ID_NOT_FOUND:
                return
            raise sort(error_of(error), f"asking for the members of group {group}") from error
        if answer.members:
            named = ", ".join(sorted(f"{member.client_id} ({member.host})" for member in answer.members))
            raise LogUnavailable(f"the group {group} has members: {named}; stop them first")

    async def _delete_group(self, group: str) -> None:
        futures = self._client.delete_consumer_groups([group], request_timeout=REQUEST_SECONDS)
        try:
            await _answer(futures[group])
        except KafkaException as error:
            if code_of(error) != KafkaError.GROUP_ID_NOT_FOUND:
                raise _has_members_or(error_of(error), group, "deleting the offsets") from error

    async def _of_group(self, future: Future[T], group: str, doing: str) -> T:
        try:
            return await _answer(future)
        except KafkaException as error:
            raise _has_members_or(error_of(error), group, doing) from error

    async def close(self) -> None:
        """Free what was made for questions. The admin client itself goes with the last reference."""
        await self._ends.close()

    # -- calls that block ----------------------------------------------------------------------------------------

    async def _blocking(self, call: Callable[[], T]) -> T:
        try:
            return await asyncio.to_thread(call)
        except KafkaException as error:
            raise sort(error_of(error), "asking for the topics") from error


def _answer(future: Future[T]) -> Awaitable[T]:
    return asyncio.wrap_future(future)


def _last_partitions(records: Sequence[NewRecord]) -> dict[str, int]:
    """The highest partition that the records of each topic are for."""
    last: dict[str, int] = {}
    for record in records:
        if record.partition > last.get(record.topic, -1):
            last[record.topic] = record.partition
    return last


def _new_topic(spec: TopicSpec, replication_factor: int) -> NewTopic:
    if spec.partitions < 1:
        raise ValueError(f"topic {spec.name} needs at least one partition, not {spec.partitions}")
    config = dict(spec.config)
    replicas = int(config.pop(REPLICAS, replication_factor))
    return NewTopic(spec.name, spec.partitions, replicas, config=config)


def _is_led(topic: Any) -> bool:
    return all(partition.leader is not None and partition.leader.id >= 0 for partition in topic.partitions)


def _refuse_without_ids(topics: Mapping[str, Any]) -> None:
    """A topic without an id cannot be told from one that was created again under its name.

    Such a broker may also be one that ignores the group metadata of a commit: then nothing fences.
    """
    for name, topic in topics.items():
        if str(topic.topic_id) == NO_ID:
            raise UsageError(
                f"the broker gives topic {name} no id, as brokers before version {OLDEST} do; streams needs brokers of "
                f"version {OLDEST} or later (and inter.broker.protocol.version not set to an earlier one)"
            )


def _info(name: str, topic: Any, config: Mapping[str, str]) -> TopicInfo:
    replicas = min((len(partition.replicas) for partition in topic.partitions), default=0)
    return TopicInfo(name, str(topic.topic_id), len(topic.partitions), {**config, REPLICAS: str(replicas)})


def _refused(error: KafkaException, doing: str) -> Exception:
    sorted_ = sort(error_of(error), doing)
    unavailable = isinstance(sorted_, LogUnavailable) and not error_of(error).retriable()
    local = error_of(error).code() < 0
    return UsageError(str(sorted_)) if unavailable and not local else sorted_


def _has_members_or(error: KafkaError, group: str, doing: str) -> Exception:
    if error.code() in {KafkaError.NON_EMPTY_GROUP, *STALE}:
        return LogUnavailable(f"the group {group} has members ({error.name()}); stop them first")
    return sort(error, f"{doing} of group {group}")
