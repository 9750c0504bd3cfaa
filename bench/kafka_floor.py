"""The floor on Kafka: the raw client in a consume-produce loop, with our settings and the records of a run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from bench.broker import broker_cpu_seconds, broker_url
from bench.measure import percentile
from bench.sample import Sample, sample_run
from streams.log.kafka import open_kafka
from streams.log.kafka.clients import Clients
from streams.log.kafka.settings import parse_url
from streams.log.port import NewRecord
from streams.runtime.topics import ensure_topics
from streams.wire.topics import PARTITIONS_DEFAULT, Topics, topics_of

__all__ = ["kafka_floor"]

BATCHES = (200, 1_000, 5_000)
"""Runs in one transaction."""
_TRANSACTIONS = 200
_APPEND = 5_000


async def kafka_floor(runs: int) -> dict[str, float]:
    """Bare transactions of one event and the offsets, then loops with each batch size."""
    sample = await sample_run()
    topics = await _filled(runs * (len(BATCHES) + 1), sample)
    clients = Clients(parse_url(broker_url()))
    consumer = clients.consumer(topics.group, "floor")(_ignore)
    consumer.subscribe([topics.commands], on_assign=lambda c, parts: c.incremental_assign(_from_start(parts)))
    producer = clients.transactional(f"floor-{uuid4().hex}")()
    producer.init_transactions()
    try:
        _loop(consumer, producer, topics, sample, runs, BATCHES[0])  # warm
        found: dict[str, float] = {}
        for batch in BATCHES:
            broker = broker_cpu_seconds()
            rate, seconds_in_transactions = _loop(consumer, producer, topics, sample, runs, batch)
            found[f"batch_{batch}_runs_per_s"] = rate
            found[f"batch_{batch}_broker_cpu_us_per_run"] = (broker_cpu_seconds() - broker) / runs * 1e6
            found[f"batch_{batch}_transaction_ms"] = seconds_in_transactions * 1e3
        times = [_bare(consumer, producer, topics, sample, number) for number in range(_TRANSACTIONS)]
        found |= {"records_per_run": 2.0 + len(sample.events), "value_bytes_per_run": float(sample.size)}
        return {**found, "p50_ms": percentile(times, 0.5) * 1e3, "p99_ms": percentile(times, 0.99) * 1e3}
    finally:
        consumer.close()


async def _filled(commands: int, sample: Sample) -> Topics:
    topics = topics_of(f"floor-{uuid4().hex[:8]}", ())
    log = await open_kafka(broker_url())
    try:
        await ensure_topics(log, topics, PARTITIONS_DEFAULT)
        for first in range(0, commands, _APPEND):
            numbers = range(first, min(first + _APPEND, commands))
            await log.append(
                [NewRecord(topics.commands, n % PARTITIONS_DEFAULT, b"run-%d" % n, sample.command) for n in numbers]
            )
    finally:
        await log.close()
    return topics


def _loop(
    consumer: Consumer, producer: Producer, topics: Topics, sample: Sample, runs: int, batch: int
) -> tuple[float, float]:
    """Runs a second, and the median seconds of a transaction."""
    done, times = 0, []
    began = time.perf_counter()
    while done < runs:
        messages = consumer.consume(min(batch, runs - done), 1.0)
        if not messages:
            continue
        sent = time.perf_counter()
        producer.begin_transaction()
        for message in messages:
            _produce(producer, topics, sample, message.partition(), message.key())
        _end(consumer, producer, [(m.partition(), m.offset()) for m in messages], topics)
        times.append(time.perf_counter() - sent)
        done += len(messages)
    return runs / (time.perf_counter() - began), percentile(times, 0.5)


def _produce(producer: Producer, topics: Topics, sample: Sample, partition: Any, key: Any) -> None:
    """What a run of three steps leaves: its events and a checkpoint."""
    for value in sample.events:
        _send(producer, topics.events, partition, key, value)
    _send(producer, topics.checkpoints, partition, key, sample.checkpoint)


def _send(producer: Producer, topic: str, partition: int, key: bytes, value: bytes) -> None:
    while True:
        try:
            producer.produce(topic, value, key, partition)
        except BufferError:
            producer.poll(0.01)
        else:
            return


def _bare(consumer: Consumer, producer: Producer, topics: Topics, sample: Sample, number: int) -> float:
    partition = number % PARTITIONS_DEFAULT
    began = time.perf_counter()
    producer.begin_transaction()
    _send(producer, topics.events, partition, b"bare", sample.events[0])
    _end(consumer, producer, [(partition, number)], topics)
    return time.perf_counter() - began


def _end(consumer: Consumer, producer: Producer, read: Sequence[tuple[Any, Any]], topics: Topics) -> None:
    offsets = {partition: offset + 1 for partition, offset in read}
    places = [TopicPartition(topics.commands, partition, offset) for partition, offset in offsets.items()]
    producer.send_offsets_to_transaction(places, consumer.consumer_group_metadata())
    producer.commit_transaction()


def _from_start(parts: Sequence[TopicPartition]) -> list[TopicPartition]:
    return [TopicPartition(part.topic, part.partition, 0) for part in parts]


def _ignore(error: KafkaError) -> None:
    del error
