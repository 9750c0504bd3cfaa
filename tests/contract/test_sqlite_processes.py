"""Several processes on one sqlite log: sharing, killing, freezing, forking."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from streams.errors import LogUnavailable, UsageError
from streams.log.port import Log, TopicPartition
from streams.log.sqlite.patience import lock_holder
from tests.contract.sqlite_config import SESSION_MS, SqliteConfig
from tests.contract.worlds import HANG_SECONDS, World, case, new, until, values

CHILD = Path(__file__).with_name("sqlite_worker.py")


class Child:
    """A worker in another process, and what it said."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.pid = process.pid
        self.said: list[dict[str, Any]] = []

    async def hears(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.said.append(json.loads(line))

    async def commit(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        await self.process.stdin.drain()

    def heard(self, what: str) -> list[dict[str, Any]]:
        return [line for line in self.said if line["what"] == what]

    def kill(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


async def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG_SECONDS / 2
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


@pytest.mark.slow
class TestProcesses(SqliteConfig):
    """Several processes on one file."""

    @asynccontextmanager
    async def child(self, worker_group: str, commands: str, events: str, mode: str) -> AsyncIterator[Child]:
        pipe = asyncio.subprocess.PIPE
        arguments = (str(CHILD), self.url, worker_group, commands, events, mode)
        process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdin=pipe, stdout=pipe)
        child = Child(process)
        listening = asyncio.create_task(child.hears())
        try:
            await eventually(lambda: bool(child.heard("ready")) or process.returncode is not None)
            assert process.returncode is None, "the child could not start: its traceback is on stderr"
            yield child
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            await listening

    async def prepare(self, world: World) -> tuple[Log, str, str, str]:
        log = await world.log()
        return log, world.name("group"), await world.topic(log, "commands", 2), await world.topic(log, "events", 2)

    @case
    async def test_two_processes_share_and_hand_over(self, world: World):
        log, group, commands, events = await self.prepare(world)
        async with self.child(group, commands, events, "idle") as child:
            assert child.heard("ready")[0]["owned"] == [0, 1]
            worker = await world.worker(log, commands)
            await until(lambda: len(worker.owned) == 1, worker)
            (moved,) = worker.owned
            await eventually(lambda: bool(child.heard("revoked")))
            assert child.heard("revoked")[0]["partitions"] == [moved]
            producer = await world.producer(log)
            await producer.commit(worker.snapshot, [new(events, b"ours", partition=moved)], {moved: 1})
            assert await values(log, events, [moved]) == [b"ours"]
            child.process.stdin.close()
            await until(lambda: worker.owned == {0, 1}, worker)
            assert await child.process.wait() == 0

    @case
    async def test_news_of_another_process_wake_a_reader(self, world: World):
        log, group, commands, events = await self.prepare(world)
        async with self.child(group, commands, events, "idle") as child:
            reader = log.reader({TopicPartition(events, 0): 0})
            waiting = asyncio.create_task(reader.read(1000, 60.0))
            await child.commit()
            assert len(await waiting) == 100
            assert child.heard("committed") or not child.heard("Fenced")

    @case
    async def test_a_killed_owner_is_replaced_within_its_session(self, world: World):
        log, group, commands, events = await self.prepare(world)
        async with self.child(group, commands, events, "busy") as child:
            worker = await world.worker(log, commands)
            await until(lambda: len(worker.owned) == 1, worker)
            child.kill(signal.SIGKILL)
            killed = time.monotonic()
            await until(lambda: worker.owned == {0, 1}, worker)
            seconds = time.monotonic() - killed
            assert seconds >= SESSION_MS / 1000 * 0.8
            assert seconds < SESSION_MS / 1000 * 8, "a guard against hangs; the bound itself is printed by the bench"
        assert {len(await values(log, events, [p])) % 100 for p in (0, 1)} == {0}

    @case
    async def test_f05_a_frozen_owner_is_replaced_and_fenced(self, world: World):
        log, group, commands, events = await self.prepare(world)
        async with self.child(group, commands, events, "idle") as child:
            await child.commit()
            await eventually(lambda: bool(child.heard("committed")))
            worker = await world.worker(log, commands)
            await self.freeze_outside_a_commit(child)
            await until(lambda: worker.owned == {0, 1}, worker)
            producer = await world.producer(log)
            await producer.commit(worker.snapshot, [new(events, b"ours", partition=p) for p in (0, 1)], {0: 5, 1: 6})
            before = await values(log, events, [0, 1])
            await child.commit()
            child.kill(signal.SIGCONT)
            await eventually(lambda: bool(child.heard("Fenced") and child.heard("lost")))
            assert set(child.heard("lost")[0]["partitions"]) | set(sum_of(child, "revoked")) == {0, 1}
            assert await values(log, events, [0, 1]) == before
            assert await log.group_offsets(group, commands) == {0: 5, 1: 6}

    async def freeze_outside_a_commit(self, child: Child) -> None:
        while True:
            child.kill(signal.SIGSTOP)
            await stopped(child.pid)
            if lock_holder(str(self.path)) != child.pid:
                return
            child.kill(signal.SIGCONT)

    @case
    async def test_a_process_frozen_inside_a_commit_is_named_and_loses_nothing(self, world: World):
        log, group, commands, events = await self.prepare(world)
        async with self.child(group, commands, events, "busy") as child:
            worker = await world.worker(log, commands)
            await until(lambda: len(worker.owned) == 1, worker)
            await self.freeze_inside_a_commit(child)
            producer = asyncio.create_task(world.producer(log))
            await until(lambda: bool(self.stalls), worker)
            assert f"process {child.pid}" in self.stalls[0]
            assert f"kill -CONT {child.pid}" in self.stalls[0]
            assert not producer.done()
            child.kill(signal.SIGCONT)
            (mine,) = worker.owned
            await (await producer).commit(worker.snapshot, [], {mine: 1})
            # The stall hit everybody, so nobody was silent: both owners keep what they had.
            for _ in range(int(SESSION_MS / 100) + 5):
                await worker.poll(0.1)
            assert worker.owned == {mine}
            assert not worker.told("lost")
            assert not child.heard("lost")

    async def freeze_inside_a_commit(self, child: Child) -> None:
        while True:
            child.kill(signal.SIGSTOP)
            await stopped(child.pid)
            if lock_holder(str(self.path)) == child.pid:
                return
            child.kill(signal.SIGCONT)
            await asyncio.sleep(0.003)

    @case
    async def test_a_group_of_dead_members_is_rewound_once_they_are_known_to_be_dead(self, world: World):
        log, group, commands, events = await self.prepare(world)
        async with self.child(group, commands, events, "idle") as child:
            with pytest.raises(LogUnavailable, match=rf"child \(process {child.pid}\)"):
                await log.rewind_group(group, commands, {0: 1})
            child.kill(signal.SIGKILL)
            await child.process.wait()
            await log.rewind_group(group, commands, {0: 1})
            assert await log.group_offsets(group, commands) == {0: 1}

    @case
    async def test_a_fork_does_not_use_the_connection_of_its_parent(self, world: World):
        log, _, commands, _ = await self.prepare(world)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                log.span(commands, 0).send(None)
            except UsageError as error:
                status = 0 if "must not cross a fork" in str(error) and str(os.getppid()) in str(error) else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode((await asyncio.to_thread(os.waitpid, child, 0))[1]) == 0
        await log.append([new(commands, b"parent")])
        assert await values(log, commands) == [b"parent"]


def sum_of(child: Child, what: str) -> list[int]:
    return [partition for line in child.heard(what) for partition in line["partitions"]]


async def stopped(pid: int) -> None:
    await eventually(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
