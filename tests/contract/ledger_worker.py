"""A process that uses a ledger, for tests that let several share it, or kill one.

    python ledger_worker.py URL migrate | race SEED | claim | handler

It says `ready`, waits for a line on stdin, and then prints what came of it, one JSON line each. `claim` and `handler`
never end: they hold a claim, or stand inside a transactional handler that has already written.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from streams.effects.port import Ledger, Word
from streams.effects.postgres import open_postgres_ledger
from streams.effects.sqlite import open_sqlite_ledger
from tests.contract.ledgers import LEASE, ask, claim_one, done

KEYS = [ask(f"k{n:03}") for n in range(200)]


def say(what: str, **more: object) -> None:
    sys.stdout.write(json.dumps({"what": what, **more}) + "\n")
    sys.stdout.flush()


async def race(ledger: Ledger, seed: int) -> None:
    mine = random.Random(seed).sample(KEYS, len(KEYS))
    won = []
    for start in range(0, len(mine), 20):
        verdicts = await ledger.claim(mine[start : start + 20], f"process-{seed}", LEASE)
        won += [verdict.entry.key.key for verdict in verdicts if verdict.word is Word.CARRY_OUT]
    say("won", keys=won)


def stand_in_sqlite(connection, verdicts):
    connection.execute("CREATE TABLE shop (name TEXT)")
    connection.execute("INSERT INTO shop VALUES ('half')")
    say("inside")
    time.sleep(1_000)
    return [done(verdict) for verdict in verdicts]


async def stand_in_postgres(connection, verdicts):
    await connection.execute("CREATE TABLE shop (name TEXT)")
    await connection.execute("INSERT INTO shop VALUES ('half')")
    say("inside")
    await asyncio.sleep(1_000)
    return [done(verdict) for verdict in verdicts]


async def main(url: str, mode: str, *rest: str) -> None:
    is_file = url.startswith("sqlite:")
    ledger: Ledger = await (open_sqlite_ledger(url) if is_file else open_postgres_ledger(url))
    say("ready")
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    if mode == "migrate":
        await ledger.migrate()
        await ledger.check()
        say("migrated")
    elif mode == "race":
        await race(ledger, int(rest[0]))
    elif mode == "claim":
        verdict = await claim_one(ledger, ask("k"), "killed", float(rest[0]))
        say("claimed", word=verdict.word)
        await asyncio.sleep(1_000)
    else:
        await ledger.transact([ask("k")], "killed", stand_in_sqlite if is_file else stand_in_postgres)
    await ledger.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
