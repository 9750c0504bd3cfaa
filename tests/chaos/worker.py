"""A worker process of the chaos test: python worker.py URL MARKS INDEX OWNER SETTINGS_AS_JSON; SIGTERM stops it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from streams.log.kafka import clients, open_kafka
from streams.observer import Observer
from streams.runtime.settings import WorkerSettings
from streams.runtime.worker import Worker
from tests.chaos import app as chaos
from tests.chaos.marks import MarkedProducer, Marks


class Teller(Observer):
    """Says on stdout what it is told."""

    def say(self, *what: object) -> None:
        sys.stdout.write(json.dumps([round(time.time(), 3), *what]) + "\n")
        sys.stdout.flush()

    def partition(self, number, state, epoch, detail):
        self.say("partition", number, state, epoch, detail)

    def redo(self, reason):
        self.say("redo", reason)

    def message(self, text):
        self.say("message", text)

    def skipped(self, partition, commands):
        self.say("skipped", partition, commands)

    def run_blocked(self, run_id, code, message):
        self.say("blocked", run_id, code, message)

    def op_parked(self, run_id, op, code, message):
        self.say("parked", run_id, op, code, message)


async def main(url: str, owner: str, settings: dict[str, object]) -> None:
    log = await open_kafka(url)
    worker = Worker(chaos.app, log, settings=WorkerSettings(**settings), observer=Teller(), owner=owner)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    try:
        await worker.run()
    finally:
        await log.close()


if __name__ == "__main__":
    URL, MARKS, INDEX, OWNER, SETTINGS = sys.argv[1:]
    MarkedProducer.marks = Marks(Path(MARKS), int(INDEX))
    MarkedProducer.marks.clear()
    clients.Producer = MarkedProducer
    chaos.MARKS.append(MarkedProducer.marks)
    asyncio.run(main(URL, OWNER, json.loads(SETTINGS)))
    sys.stdout.flush()
    os._exit(0)  # a task's thread must not hold the process
