"""Workers as processes of their own: how their number scales, and what a restart on many waiting runs takes."""

from __future__ import annotations

import asyncio
import signal
import time
from asyncio.subprocess import Process

from bench.kafka_courses import feed, python, write_waiting
from bench.processes import cpu_seconds, memory_mb
from streams.wire.topics import PARTITIONS_DEFAULT

__all__ = ["restart", "scaled"]


class _Worker:
    """`python -m bench.worker`, and how many partitions it serves now."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.serves = 0
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for said in self.process.stdout:
            self.serves = int(said)

    def check(self) -> None:
        """Raise when it has ended by itself."""
        if self.process.returncode is not None:
            raise AssertionError(f"a worker ended with exit code {self.process.returncode}")

    async def stop(self) -> float:
        """Gracefully; the seconds that it took."""
        began = time.perf_counter()
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        await self.process.wait()
        await self._reading
        return time.perf_counter() - began


async def _workers(count: int) -> list[_Worker]:
    """One after another, each when those before serve all partitions.

    So no rebalance is left for the time that is measured.
    """
    workers: list[_Worker] = []
    for _ in range(count):
        workers.append(_Worker(await python("-m", "bench.worker")))
        while sum(worker.serves for worker in workers) != PARTITIONS_DEFAULT or not all(w.serves for w in workers):
            for worker in workers:
                worker.check()
            await asyncio.sleep(0.05)
    return workers


async def scaled(runs: int, in_flight: int, processes: int) -> dict[str, float]:
    """So many worker processes under the load of one feeder."""
    workers = await _workers(processes)
    found = await feed(runs, in_flight, [worker.process.pid for worker in workers])
    for worker in workers:
        worker.check()
        await worker.stop()
    return {**found, "processes": float(processes)}


async def restart(runs: int) -> dict[str, float]:
    """A worker process with nothing of its own on disk, on the checkpoints of runs that wait."""
    await write_waiting(runs)
    began = time.perf_counter()
    (worker,) = await _workers(1)
    seconds = time.perf_counter() - began
    found = {
        "cold_restart_s": seconds,
        "cold_restart_cpu_s": cpu_seconds(worker.process.pid),
        "rest_mb": memory_mb(worker.process.pid),
    }
    return {**found, "stop_s": await worker.stop()}
