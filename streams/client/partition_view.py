"""What a reader can know of one partition: its lease, and its runs from checkpoints and later events."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import NamedTuple

from streams.client.fold import Fold, RunView
from streams.client.reading import Progress, scan, stored_event
from streams.errors import WireError
from streams.log.port import Log, Record
from streams.wire.records import Lease, decode_lease
from streams.wire.topics import Topics

__all__ = ["PartitionView", "RunLoader", "read_lease"]


class PartitionView(NamedTuple):
    """A partition as of `events_end`: later events are not in it.

    `applied` is the next command to decide on, as far as the records that were read tell: exact where all runs were
    loaded, and else at least what the lease says.
    """

    partition: int
    lease: Lease | None
    runs: Mapping[str, RunView]
    events_end: int
    applied: int

    @property
    def damaged(self) -> list[RunView]:
        """The runs that cannot be folded."""
        return [view for view in self.runs.values() if view.damage is not None]

    @classmethod
    async def load(
        cls,
        log: Log,
        topics: Topics,
        partition: int,
        *,
        keys: Collection[bytes] | None = None,
        progress: Progress | None = None,
    ) -> PartitionView:
        """Read the partition; with `keys`, only these runs.

        The order matters: each later read may only know more. The lease comes first, since its tail promises that
        checkpoints written before it cover all events below.
        """
        lease = await read_lease(log, topics, partition)
        checkpoints = await _checkpoints(log, topics, partition, keys)
        span = await log.span(topics.events, partition)
        start = span.start if lease is None else max(lease.tail, span.start)
        folds = {key: Fold.of(_text(key), record) for key, record in checkpoints.items()}
        applied = 0 if lease is None else lease.applied
        async for record in scan(log, topics.events, partition, start, span.end, progress=progress):
            if record.key is not None and (keys is None or record.key in keys):
                applied = max(applied, _add(folds, record.key, record))
        views = (fold.view(partition, lease) for fold in folds.values())
        return cls(partition, lease, {view.run_id: view for view in views if view is not None}, span.end, applied)


async def read_lease(log: Log, topics: Topics, partition: int) -> Lease | None:
    """The last lease of a partition. Raises `WireError` where it cannot be read."""
    span = await log.span(topics.leases, partition)
    last: Record | None = None
    async for record in scan(log, topics.leases, partition, span.start, span.end):
        last = record
    return None if last is None or last.value is None else decode_lease(last.value)


async def _checkpoints(log: Log, topics: Topics, partition: int, keys: Collection[bytes] | None) -> dict[bytes, Record]:
    """The last checkpoint of each run; older ones are not decoded."""
    span = await log.span(topics.checkpoints, partition)
    found: dict[bytes, Record] = {}
    async for record in scan(log, topics.checkpoints, partition, span.start, span.end):
        if record.key is None or (keys is not None and record.key not in keys):
            continue
        if record.value is None:
            found.pop(record.key, None)
        else:
            found[record.key] = record
    return found


def _add(folds: dict[bytes, Fold], key: bytes, record: Record) -> int:
    """Fold one record; return the command offset after the one that it answers."""
    try:
        stored = stored_event(record)
    except WireError as error:
        _fold_of(folds, key).skip(f"the record at offset {record.offset} of the events", error)
        return 0
    if stored.event.seq is not None:
        _fold_of(folds, key).add(stored)
    return 0 if stored.event.offset is None else stored.event.offset + 1


def _fold_of(folds: dict[bytes, Fold], key: bytes) -> Fold:
    fold = folds.get(key)
    if fold is None:
        fold = folds[key] = Fold(_text(key))
    return fold


def _text(key: bytes) -> str:
    return key.decode("utf-8", "backslashreplace")


class RunLoader:
    """Loads single runs of a partition. Those asked for while a load is under way share the next one.

    A log has no index: each load reads all checkpoints of the partition and its tail, so a thousand callers at once
    must not cause a thousand loads.
    """

    def __init__(self, log: Log, topics: Topics, partition: int) -> None:
        self._log = log
        self._topics = topics
        self._partition = partition
        self._wanted: dict[bytes, asyncio.Future[PartitionView]] = {}
        self._task: asyncio.Task[None] | None = None

    async def load(self, run_id: str) -> tuple[RunView | None, int]:
        """The run, and the end of the events that were read for it."""
        key = run_id.encode()
        future = self._wanted.get(key)
        if future is None:
            future = self._wanted[key] = asyncio.get_running_loop().create_future()
        if self._task is None:
            self._task = asyncio.create_task(self._work())
        # One caller that gives up must not take the load away from the others.
        view = await asyncio.shield(future)
        return view.runs.get(run_id), view.events_end

    async def _work(self) -> None:
        try:
            while self._wanted:
                wanted, self._wanted = self._wanted, {}
                await self._load(wanted)
        finally:
            self._task = None

    async def _load(self, wanted: dict[bytes, asyncio.Future[PartitionView]]) -> None:
        try:
            view = await PartitionView.load(self._log, self._topics, self._partition, keys=wanted.keys())
        except BaseException as error:
            for future in wanted.values():
                future.set_exception(error if isinstance(error, Exception) else asyncio.CancelledError())
            if not isinstance(error, Exception):
                raise
            return
        for future in wanted.values():
            future.set_result(view)

    async def close(self) -> None:
        """Give up what is being loaded."""
        if self._task is not None:
            self._task.cancel()
