"""A worker process of the system tests: python run_worker.py URL SETTINGS_AS_JSON; SIGTERM stops it gracefully."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from streams.cli.logs import open_log
from streams.observer import Observer
from streams.runtime import crash
from streams.runtime.settings import WorkerSettings
from streams.runtime.worker import Worker
from tests.system import shop


class Teller(Observer):
    """Says on stdout what it is told."""

    def say(self, *what: object) -> None:
        sys.stdout.write(json.dumps(what) + "\n")
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


def freeze_at(wanted: str) -> None:
    """POINT:N stops the process, as SIGSTOP does, the N-th time that it passes this crash point."""
    point, _, count = wanted.partition(":")
    left = int(count)

    def hook(passed: str) -> None:
        nonlocal left
        left -= passed == point
        if passed == point and not left:
            os.kill(os.getpid(), signal.SIGSTOP)

    crash.install(hook)


async def main(url: str, settings: dict[str, object]) -> None:
    if wanted := os.environ.get("FREEZE_AT"):
        freeze_at(wanted)
    log = await open_log(url)
    worker = Worker(shop.app, log, settings=WorkerSettings(**settings), observer=Teller(), owner=f"w{os.getpid()}")
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    try:
        await worker.run()
    finally:
        await log.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
    os._exit(0)  # a hung task thread must not hold the process
