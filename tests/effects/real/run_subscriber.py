"""A subscriber process: python run_subscriber.py MODULE LOG_URL LEDGER_URL SETTINGS_AS_JSON; SIGTERM stops it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from streams.cli.ledgers import open_ledger
from streams.cli.logs import open_log
from streams.effects.subscriber import Subscriber, SubscriberSettings
from streams.runtime import crash
from tests.system.run_worker import Teller


class EffectTeller(Teller):
    """What a subscriber is told beside that."""

    def effect_partition(self, effect, number, state, detail):
        self.say("effect partition", effect, number, state, detail)

    def effect_refused(self, effect, what, run_id, code, message):
        self.say("refused", effect, what, run_id, code, message)

    def claim_lost(self, effect, effect_id, run_id):
        self.say("claim lost", effect, effect_id, run_id)

    def ledger_away(self, url, reason):
        self.say("ledger away", url, reason)

    def ledger_back(self, url):
        self.say("ledger back", url)


def strike_at(wanted: str, armed: Path, number: int) -> None:
    """Get a signal at this crash point (`POINT/EFFECT`) once the file is there: before, the process works in peace."""

    def hook(passed: str) -> None:
        if passed == wanted and armed.exists():
            armed.unlink()
            os.kill(os.getpid(), number)

    crash.install(hook)


async def main(module: str, url: str, ledger_url: str, settings: dict[str, object]) -> None:
    if wanted := settings.pop("strike_at", None):
        strike_at(str(wanted), Path(str(settings.pop("armed"))), int(str(settings.pop("signal"))))
    only = settings.pop("only", None)
    log, ledger = await open_log(url), await open_ledger(ledger_url)
    try:
        app = import_module(module).app
        told = SubscriberSettings(**settings)
        teller = EffectTeller()
        subscriber = Subscriber(app, log, ledger, settings=told, observer=teller, only=only)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, subscriber.stop)
        teller.say("ready")
        await subscriber.run()
    finally:
        await ledger.close()
        await log.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4], json.loads(sys.argv[4])))
    os._exit(0)  # a hung handler's thread must not hold the process
