"""When a command of the copy has its turn: an answer cannot come before its question.

In the log commands lie close together, while days passed between them. So an answer, a reply or a cancel waits until
the run of the copy has come as far as the first one had. Ids of ops come from the place in the program: they stay.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from streams.client.reading import Progress, scan
from streams.errors import WireError
from streams.kernel import bodies as ev
from streams.log.port import Log, Reader, TopicPartition
from streams.wire.records import decode_event
from streams.wire.topics import Topics

__all__ = ["Followed", "Guide", "Token", "read_guide"]

_ENDS = (ev.RunCompleted, ev.RunFailed, ev.RunCancelled)


class Guide(NamedTuple):
    """What the old app did with commands, by offset: the run and the op that each came after; which were refused.

    `requests`: what replies may come for.
    """

    after: dict[int, tuple[bytes, str]]
    refused: set[int]
    requests: set[tuple[bytes, str]]


class Token(NamedTuple):
    """What a reply has to name: the identity of the run, and the attempt of the request with its epoch."""

    identity: str
    attempt: int
    epoch: int


async def read_guide(
    log: Log,
    topics: Topics,
    partition: int,
    start: int,
    end: int,
    *,
    keys: Collection[bytes] = (),
    progress: Progress | None = None,
) -> Guide:
    """Read the old histories for the commands from `start` up to `end`."""
    guide = Guide({}, set(), set())
    last: dict[bytes, str] = {}
    span = await log.span(topics.events, partition)
    async for record in scan(log, topics.events, partition, span.start, span.end, progress=progress):
        key = record.key or b""
        if keys and key not in keys:
            continue
        try:
            event = decode_event(record.value or b"")
        except WireError:  # of a damaged run, or of a newer release: its commands are copied without waiting
            continue
        body = event.body
        if isinstance(body, ev.OpScheduled):
            last[key] = body.op
            if body.kind == "request":
                guide.requests.add((key, body.op))
        elif isinstance(body, _ENDS):
            last.pop(key, None)
        if event.offset is None or not start <= event.offset < end:
            continue
        if isinstance(body, ev.CommandRejected):
            guide.refused.add(event.offset)
        elif isinstance(body, ev.InterruptAnswered) or (isinstance(body, ev.InputHeld) and body.op is not None):
            guide.after[event.offset] = (key, body.op or "")
        elif isinstance(body, (ev.CancelRequested, ev.InputHeld)) and key in last:
            guide.after[event.offset] = (key, last[key])
    return guide


class Followed:
    """How far the runs of the copy have come, as far as commands wait for it."""

    def __init__(self, log: Log, topics: Topics, partitions: int) -> None:
        self._log = log
        self._topics = topics
        self._partitions = partitions
        self._wanted: dict[bytes, set[str]] = {}
        self._reached: dict[tuple[bytes, str], Token] = {}
        self._ended: set[bytes] = set()
        self._reader: Reader | None = None

    def want(self, key: bytes, op: str) -> None:
        """Watch out for an op of a run. Before the first look."""
        self._wanted.setdefault(key, set()).add(op)

    def ready(self, key: bytes, op: str | None, attempt: int = 0) -> bool:
        """Whether the run has come to the op, and to this attempt, or to its end: then nothing is to be waited for."""
        if op is None or key in self._ended:
            return True
        token = self._reached.get((key, op))
        return token is not None and token.attempt >= attempt

    def token(self, key: bytes, op: str) -> Token | None:
        """The attempt of a request that the run of the copy waits for now."""
        return self._reached.get((key, op))

    async def look(self, seconds: float) -> set[bytes]:
        """Take in new events, waiting so long for the first; return the runs that have got on."""
        if self._reader is None:
            places = [TopicPartition(self._topics.events, number) for number in range(self._partitions)]
            starts = {place: (await self._log.span(*place)).start for place in places}
            self._reader = self._log.reader(starts)
        moved = set()
        for record in await self._reader.read(5_000, seconds):
            key = record.key or b""
            if key in self._wanted and self._take(key, record.value or b""):
                moved.add(key)
        return moved

    def _take(self, key: bytes, value: bytes) -> bool:
        event = decode_event(value)
        body = event.body
        if isinstance(body, _ENDS):
            self._ended.add(key)
            return True
        if isinstance(body, (ev.OpScheduled, ev.AttemptStarted)) and body.op in self._wanted[key]:
            self._reached[key, body.op] = Token(event.identity, body.attempt, event.epoch)
            return True
        return False

    async def close(self) -> None:
        """Stop looking."""
        if self._reader is not None:
            await self._reader.close()
