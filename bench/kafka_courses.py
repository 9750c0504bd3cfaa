"""What is measured on Kafka alone: a worker under load from outside, a restore, and a take-over after kill -9."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process, create_subprocess_exec
from pathlib import Path
from typing import Any

from bench import app
from bench.broker import broker_cpu_seconds, broker_url
from bench.measure import Meter, percentile
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

__all__ = ["fed", "restore_checkpoints", "take_over"]

ROOT = Path(__file__).resolve().parent.parent
_APPEND = 5_000


async def fed(folder: Path, runs: int, in_flight: int) -> dict[str, float]:
    """A worker alone in this process, its load in another one; CPU of worker and broker for each run."""
    target = StreamsTarget("kafka", lambda _: broker_url())
    await target.start(folder)
    feeder = await _python("-m", "bench.feeder", str(runs), str(in_flight))
    assert feeder.stdout is not None
    await _line(feeder, "begin")
    meter, broker = Meter(), broker_cpu_seconds()
    await _line(feeder, "end")
    worker_cpu = meter.per_run(runs)["cpu_us_per_run"]
    broker_cpu = (broker_cpu_seconds() - broker) / runs * 1e6
    found = json.loads(await feeder.stdout.readline())
    await feeder.wait()
    await target.stop()
    return {**found, "cpu_us_per_run": worker_cpu, "broker_cpu_us_per_run": broker_cpu, **target.facts()}


async def restore_checkpoints(runs: int) -> dict[str, float]:
    """A fresh worker on `runs` checkpoints, until it serves all partitions; from the first claim to the last."""
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
    target = StreamsTarget("kafka", lambda _: broker_url())
    meter, began = Meter(), time.perf_counter()
    await target.start(ROOT)
    seconds = time.perf_counter() - began
    cpu = meter.per_run(runs)["cpu_us_per_run"]
    await target.settled(runs)
    await target.stop()
    return {"restore_s": seconds, "restored_per_s": runs / seconds, "cpu_us_per_checkpoint": cpu}


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
    workers = [await _python("-m", "bench.worker") for _ in range(2)]
    client = Client(log, app.app)
    try:
        await asyncio.gather(*(_line(worker, str(PARTITIONS_DEFAULT // 2)) for worker in workers))
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


async def _python(*arguments: str) -> Process:
    return await create_subprocess_exec(sys.executable, *arguments, cwd=ROOT, stdout=PIPE)


async def _line(process: Process, wanted: str) -> None:
    assert process.stdout is not None
    async for line in process.stdout:
        if line.decode().strip() == wanted:
            return
    raise AssertionError(f"a process ended without having said {wanted!r}")
