"""A worker in a process of its own, to be killed or stopped. It says how many partitions it serves, at each change."""

from __future__ import annotations

import asyncio
import signal

from bench import app
from bench.broker import broker_url
from bench.child import run_here
from bench.streams_target import Watch
from streams.log.kafka import open_kafka
from streams.runtime.collector import calm_collector
from streams.runtime.worker import Worker

__all__: list[str] = []


class _Said(Watch):
    def partition(self, number: int, state: str, epoch: int, detail: str) -> None:
        super().partition(number, state, epoch, detail)
        if state == "closed":
            self.running.discard(number)
        print(len(self.running), flush=True)


async def _work() -> None:
    log = await open_kafka(broker_url())
    calm_collector()
    worker = Worker(app.app, log, observer=_Said())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    await worker.run()
    await log.close()


if __name__ == "__main__":
    run_here(_work())
