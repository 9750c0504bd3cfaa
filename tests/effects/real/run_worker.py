"""A worker process of these tests: python run_worker.py MODULE URL SETTINGS_AS_JSON; SIGTERM stops it gracefully."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from streams.cli.logs import open_log
from streams.runtime.settings import WorkerSettings
from streams.runtime.worker import Worker
from tests.system.run_worker import Teller, freeze_at


async def main(module: str, url: str, settings: dict[str, object]) -> None:
    if wanted := os.environ.get("FREEZE_AT"):
        freeze_at(wanted)
    log = await open_log(url)
    app = import_module(module).app
    teller = Teller()
    worker = Worker(app, log, settings=WorkerSettings(**settings), observer=teller, owner=f"w{os.getpid()}")
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    teller.say("ready")
    try:
        await worker.run()
    finally:
        await log.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
    os._exit(0)  # a hung task thread must not hold the process
