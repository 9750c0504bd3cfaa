"""Appends outside any transaction: one idempotent client, and what waits shares its batches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from confluent_kafka import KafkaException, Producer

from streams.errors import LogUnavailable, StreamsError
from streams.log.kafka.admin import Admin
from streams.log.kafka.failures import RAISED, error_of, sort
from streams.log.kafka.lane import Lane
from streams.log.kafka.sending import Reports, produce
from streams.log.port import NewRecord
from streams.log.rules import refuse_unwritable

__all__ = ["Appender"]

SEND_SECONDS = 30.0
CLOSE_SECONDS = 5.0


class _Waiting(NamedTuple):
    records: Sequence[NewRecord]
    future: asyncio.Future[list[int]]


class Appender:
    """Appends of one log. Those that come while others are under way go out together."""

    def __init__(self, admin: Admin, make: Callable[[], Producer]) -> None:
        self._admin = admin
        self._make = make
        self._client: Any = None
        self._lane = Lane("appender")
        self._waiting: list[_Waiting] = []
        self._task: asyncio.Task[None] | None = None

    async def append(self, records: Sequence[NewRecord]) -> list[int]:
        """Write and wait until durable."""
        if not records:
            return []
        refuse_unwritable(records, await self._admin.known_for(records))
        waiting = _Waiting(records, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._task is None:
            self._task = asyncio.create_task(self._work())
        return await waiting.future

    async def close(self) -> None:
        """End the client; what was not acknowledged is given up."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for waiting in self._waiting:
            waiting.future.cancel()  # it stood behind the batch that was under way
        await self._lane.close(self._drop, CLOSE_SECONDS)

    async def _work(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                await self._send(batch)
        finally:
            self._task = None

    async def _send(self, batch: Sequence[_Waiting]) -> None:
        groups = [waiting.records for waiting in batch]
        try:
            results = await self._lane.run(lambda: self._write(groups))
        except BaseException:
            for waiting in batch:
                waiting.future.cancel()
            raise
        for waiting, result in zip(batch, results, strict=True):
            if waiting.future.done():
                continue
            if isinstance(result, Exception):
                waiting.future.set_exception(result)
            else:
                waiting.future.set_result(result)

    # -- on the client's thread ----------------------------------------------------------------------------------

    def _write(self, groups: Sequence[Sequence[NewRecord]]) -> list[list[int] | Exception]:
        reports = [Reports(len(records)) for records in groups]
        early: dict[int, Exception] = {}
        try:
            if self._client is None:
                self._client = self._make()
            self._produce(groups, reports, early)
        except RAISED as raised:
            # The client broke for good; what has been acknowledged until then is written all the same.
            early.update({n: sort(error_of(raised), "appending") for n in range(len(groups)) if n not in early})
        results = [
            _outcome(report, records, early.get(number))
            for number, (report, records) in enumerate(zip(reports, groups, strict=True))
        ]
        if any(not report.all_taken for report in reports):
            # Records that are still under way must not be written after their sender was told that they were not.
            self._drop()
        return results

    def _produce(
        self, groups: Sequence[Sequence[NewRecord]], reports: Sequence[Reports], early: dict[int, Exception]
    ) -> None:
        deadline = time.monotonic() + SEND_SECONDS
        for number, records in enumerate(groups):
            try:
                produce(self._client, records, reports[number], deadline)
            except StreamsError as error:
                early[number] = error
        self._client.flush(max(0.0, deadline - time.monotonic()))

    def _drop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(KafkaException):
                client.purge()


def _outcome(reports: Reports, records: Sequence[NewRecord], early: Exception | None) -> list[int] | Exception:
    if all(offset >= 0 for offset in reports.offsets):
        return reports.offsets
    if early is not None:
        return early
    try:
        reports.check(records)
    except LogUnavailable as error:
        return LogUnavailable(f"{error}; they may have been written all the same: a repeat is known by its command id")
    except StreamsError as error:
        return error
    raise AssertionError("a record has neither an offset nor a failure")
