"""A process that owns partitions of a sqlite log, for tests that freeze it, kill it, or let it share.

    python sqlite_worker.py URL GROUP COMMANDS EVENTS busy|idle

It prints one JSON line for each thing that happens. `busy` commits without a pause. `idle` commits once for each line
on stdin, always with the snapshot of its first poll, as a turn does that was decided long ago; it ends with stdin.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from streams.errors import CommitAborted, Fenced
from streams.log.port import GroupSnapshot, Member, NewRecord, Producer
from streams.log.sqlite import open_sqlite


def say(what: str, **more: object) -> None:
    sys.stdout.write(json.dumps({"what": what, **more}) + "\n")
    sys.stdout.flush()


class Told:
    async def assigned(self, snapshot, partitions):
        say("assigned", partitions=sorted(partitions))

    async def revoked(self, snapshot, partitions):
        say("revoked", partitions=sorted(partitions))

    async def lost(self, partitions):
        say("lost", partitions=sorted(partitions))


async def poll_for_ever(member: Member) -> None:
    while True:
        await member.poll(10, 1.0)


async def commit(producer: Producer, snapshot: GroupSnapshot, events: str, turn: int) -> str:
    records = [NewRecord(events, p, b"run", b"%d" % turn * 300) for p in snapshot.owned for _ in range(100)]
    try:
        await producer.commit(snapshot, records, dict.fromkeys(snapshot.owned, turn))
    except (Fenced, CommitAborted) as error:
        return type(error).__name__
    return "committed"


async def main(url: str, group: str, commands: str, events: str, mode: str) -> None:
    log = await open_sqlite(url)
    member = log.member(group, commands, client_id="child")
    await member.join(Told())
    producer = await log.producer("child")
    snapshot = (await member.poll(10, 5.0)).snapshot
    polling = asyncio.create_task(poll_for_ever(member))
    say("ready", owned=sorted(snapshot.owned))
    turn = 0
    while mode == "busy" or await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline):
        turn += 1
        if mode == "idle":
            say(await commit(producer, snapshot, events, turn), turn=turn)
        else:
            await commit(producer, member.snapshot(), events, turn)
    polling.cancel()
    await member.close()
    await log.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
