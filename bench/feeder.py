"""The load of a worker that is measured alone: starts runs and sees them end, in a process of its own.

Run as `python -m bench.feeder RUNS IN_FLIGHT`. It says `begin` and `end` around the measured runs, then the figures.
"""

from __future__ import annotations

import json
import sys
import time

from bench import app
from bench.broker import broker_url
from bench.child import run_here
from bench.measure import peak_mb, percentile
from streams.kernel.commands import Start
from streams.kernel.run import is_terminal
from streams.log.kafka import open_kafka
from streams.log.port import Log, NewRecord, Reader, TopicPartition
from streams.wire.partitioner import partition_of
from streams.wire.records import Damaged, decode_checkpoint, encode_command
from streams.wire.topics import PARTITIONS_DEFAULT, Topics, topics_of

__all__ = ["Feeder"]

WARM_UP = 2_000
_READ = 5_000
_READ_SECONDS = 0.02


class Feeder:
    """Keeps a number of runs under way. A run has ended when the checkpoint of its end is committed."""

    def __init__(self, log: Log, topics: Topics, reader: Reader) -> None:
        self._log = log
        self._topics = topics
        self._reader = reader
        self._begun: dict[bytes, float] = {}
        self._number = 0

    async def run(self, runs: int, in_flight: int) -> list[float]:
        """Start `runs` runs, at most `in_flight` at once; the seconds of each."""
        times: list[float] = []
        left = runs
        while len(times) < runs:
            free = min(left, in_flight - len(self._begun))
            if free > 0:
                left -= free
                await self._start(free)
            ended = [r.key for r in await self._reader.read(_READ, _READ_SECONDS) if _is_ended(r.value)]
            now = time.perf_counter()
            times += [now - self._begun.pop(key) for key in ended if key in self._begun]
        return times

    async def _start(self, count: int) -> None:
        records = []
        for _ in range(count):
            key = b"run-%d" % self._number
            self._number += 1
            value = encode_command(Start(app.order.name, b'"%s"' % key), command_id=key.decode())
            records.append(NewRecord(self._topics.commands, partition_of(key, PARTITIONS_DEFAULT), key, value))
            self._begun[key] = time.perf_counter()
        await self._log.append(records)


def _is_ended(value: bytes | None) -> bool:
    if value is None:
        return False
    state = decode_checkpoint(value)
    return not isinstance(state, Damaged) and is_terminal(state)


async def _feed(runs: int, in_flight: int) -> None:
    topics = topics_of(app.app.name, ())
    log = await open_kafka(broker_url())
    reader = log.reader({TopicPartition(topics.checkpoints, n): 0 for n in range(PARTITIONS_DEFAULT)})
    feeder = Feeder(log, topics, reader)
    await feeder.run(min(runs, WARM_UP), in_flight)
    print("begin", flush=True)
    began, cpu = time.perf_counter(), time.process_time()
    times = await feeder.run(runs, in_flight)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    print("end", flush=True)
    found = {
        "runs_per_s": runs / seconds,
        "p50_ms": percentile(times, 0.5) * 1e3,
        "p99_ms": percentile(times, 0.99) * 1e3,
        "feeder_cpu_us_per_run": cpu / runs * 1e6,
        "feeder_mb": peak_mb(),
    }
    print(json.dumps(found), flush=True)
    await reader.close()
    await log.close()


if __name__ == "__main__":
    run_here(_feed(int(sys.argv[1]), int(sys.argv[2])))
