"""What is measured on Kafka alone: a worker under load from outside, a restore, and a take-over after kill -9."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process, create_subprocess_exec
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import app
from bench.broker import broker_cpu_seconds, broker_mb, broker_url, topic_bytes
from bench.measure import Meter, percentile
from bench.processes import cpu_seconds, peak_mb_of
from bench.streams_target import StreamsTarget, Watch
from streams.client import Client
from streams.log.kafka import open_kafka
from streams.log.port import Log, NewRecord, TopicPartition
from streams.runtime.settings import WorkerSettings
from streams.runtime.topics import ensure_topics
from streams.runtime.worker import Worker
from streams.wire.partitioner import partition_of
from streams.wire.records import Damaged, decode_checkpoint, encode_checkpoint
from streams.wire.topics import PARTITIONS_DEFAULT, topics_of

__all__ = ["fed", "feed", "line", "python", "restore_checkpoints", "take_over", "write_waiting"]

ROOT = Path(__file__).resolve().parent.parent
_APPEND = 5_000
_WORDS = ("commands", "events", "checkpoints", "")
"""Which topics grow with runs; the empty word stands for Kafka's own."""


async def fed(folder: Path, runs: int, in_flight: int) -> dict[str, float]:
    """A worker alone in this process, its load in another one; CPU, memory and bytes of each process for each run."""
    target = StreamsTarget("kafka", lambda _: broker_url())
    await target.start(folder)
    found = await feed(runs, in_flight, [os.getpid()])
    await target.stop()
    return {**found, **target.facts()}


async def feed(runs: int, in_flight: int, workers: Sequence[int]) -> dict[str, float]:
    """Let the feeder put load on workers, given by their pids, and see what it takes."""
    feeder = await python("-m", "bench.feeder", str(runs), str(in_flight))
    assert feeder.stdout is not None
    await line(feeder, "begin")
    cpu, broker, stored = _cpu(workers), broker_cpu_seconds(), topic_bytes(app.app.name)
    await line(feeder, "end")
    found = {
        "cpu_us_per_run": (_cpu(workers) - cpu) / runs * 1e6,
        "broker_cpu_us_per_run": (broker_cpu_seconds() - broker) / runs * 1e6,
        "worker_mb": max(peak_mb_of(pid) for pid in workers),
        "broker_mb": broker_mb(),
    }
    grown = {word: (size - stored.get(word, 0)) / runs for word, size in topic_bytes(app.app.name).items()}
    sizes = {f"{word or 'transactions'}_bytes_per_run": grown.get(word, 0.0) for word in _WORDS}
    told = json.loads(await feeder.stdout.readline())
    await feeder.wait()
    return {**told, **found, **sizes, "kafka_bytes_per_run": sum(sizes.values())}


def _cpu(pids: Sequence[int]) -> float:
    return sum(cpu_seconds(pid) for pid in pids)


async def restore_checkpoints(runs: int) -> dict[str, float]:
    """A fresh worker on `runs` checkpoints, until it serves all partitions; from the first claim to the last."""
    await write_waiting(runs)
    target = StreamsTarget("kafka", lambda _: broker_url())
    meter, began = Meter(), time.perf_counter()
    await target.start(ROOT)
    seconds = time.perf_counter() - began
    cpu = meter.per_run(runs)["cpu_us_per_run"]
    await target.settled(runs)
    await target.stop()
    return {"restore_s": seconds, "restored_per_s": runs / seconds, "cpu_us_per_checkpoint": cpu}


async def write_waiting(runs: int) -> None:
    """Checkpoints of so many waiting runs with 500 bytes of state, as a worker would have written them."""
    topics = topics_of(app.app.name, ())
    log = await open_kafka(broker_url())
    await ensure_topics(log, topics, PARTITIONS_DEFAULT)
    sample = await _sample(log)
    for first in range(0, runs, _APPEND):
        records = []
        for number in range(first, min(first + _APPEND, runs)):
            run_id = f"restored-{number}"
            value = encode_checkpoint(sample._replace(run_id=run_id, identity=f"{run_id}@0"))
            partition = partition_of(run_id.encode(), PARTITIONS_DEFAULT)
            records.append(NewRecord(topics.checkpoints, partition, run_id.encode(), value))
        await log.append(records)
    await log.close()


async def _sample(log: Log) -> Any:
    """The state of a waiting run, as a worker has written it."""
    worker = Worker(app.app, log, observer=Watch(), settings=WorkerSettings(checkpoint_bytes_min=1))
    working = asyncio.create_task(worker.run())
    client = Client(log, app.app)
    await client.start(app.waiting, {"order_id": "sample", "note": "x" * 468}, run_id="sample")
    place = TopicPartition(topics_of(app.app.name, ()).checkpoints, partition_of(b"sample", PARTITIONS_DEFAULT))
    reader = log.reader({place: 0})
    records = await reader.read(1, 60.0)
    await reader.close()
    await client.close()
    worker.stop()
    await working
    state = decode_checkpoint(records[0].value or b"")
    assert not isinstance(state, Damaged)
    return state


async def take_over(runs: int) -> dict[str, float]:
    """Two workers, one killed with -9: how long until each of `runs` waiting runs has moved to its end."""
    log = await open_kafka(broker_url())
    await ensure_topics(log, topics_of(app.app.name, ()), PARTITIONS_DEFAULT)
    workers = [await python("-m", "bench.worker") for _ in range(2)]
    client = Client(log, app.app)
    try:
        await asyncio.gather(*(line(worker, str(PARTITIONS_DEFAULT // 2)) for worker in workers))
        ids = [f"take-{number}" for number in range(runs)]
        sends = [await client.start(app.waiting, {"order_id": id_}, run_id=id_) for id_ in ids]
        await asyncio.gather(*(client.accepted(sent) for sent in sends))
        workers[0].send_signal(signal.SIGKILL)
        began = time.perf_counter()
        times = await asyncio.gather(*(_answered(client, id_, began) for id_ in ids))
        return {"takeover_p50_s": percentile(times, 0.5), "takeover_s": max(times)}
    finally:
        await client.close()
        for worker in workers:
            if worker.returncode is None:
                worker.send_signal(signal.SIGKILL)
            await worker.wait()
        await log.close()


async def _answered(client: Client, run_id: str, began: float) -> float:
    await client.resume(run_id, True)  # noqa: FBT003 - the answer itself
    await client.result(run_id)
    return time.perf_counter() - began


async def python(*arguments: str) -> Process:
    """A process of ours, whose lines can be read."""
    return await create_subprocess_exec(sys.executable, *arguments, cwd=ROOT, stdout=PIPE)


async def line(process: Process, wanted: str) -> None:
    """Read until it has said this."""
    assert process.stdout is not None
    async for line in process.stdout:
        if line.decode().strip() == wanted:
            return
    raise AssertionError(f"a process ended without having said {wanted!r}")
