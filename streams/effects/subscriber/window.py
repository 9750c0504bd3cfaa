"""The messages of one partition between the group's offset and what was read, and the order of those of one key."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING

from streams.log.port import NewRecord, Record

if TYPE_CHECKING:
    from streams.effects.port import Ask, Outcome
    from streams.wire.records import EffectMessage

__all__ = ["Message", "Stage", "Window", "WindowState"]


class Stage(Enum):
    """Where a message stands on its way out of the window.

    OPEN ──▶ FINISHED ──▶ LEAVING ──▶ GONE
      │          ▲───────────┘          ▲
      └─────────────────────────────────┘ with nothing to publish
    """

    OPEN = "open"
    """It is not known yet what it comes to."""
    FINISHED = "finished"
    """Its outcome is in the ledger, its reply or dead letter waits for a commit."""
    LEAVING = "leaving"
    """A commit with them is under way."""
    GONE = "gone"


class WindowState(Enum):
    """Where a partition stands with this subscriber. Any of them may be closed.

    OPENING ──▶ OPEN ──▶ DRAINING ──▶ CLOSED
      │  ▲──────┘ where the log does not have its next message
      ▼  │
    REFUSED
    """

    OPENING = "opening"
    REFUSED = "refused"
    OPEN = "open"
    DRAINING = "draining"
    CLOSED = "closed"


_NEXT = {
    WindowState.OPENING: {WindowState.OPEN, WindowState.REFUSED, WindowState.CLOSED},
    WindowState.REFUSED: {WindowState.OPENING, WindowState.CLOSED},
    WindowState.OPEN: {WindowState.OPENING, WindowState.DRAINING, WindowState.CLOSED},
    WindowState.DRAINING: {WindowState.CLOSED},
    WindowState.CLOSED: set(),
}


class Message:
    """A record of the effect's topic inside the window."""

    __slots__ = ("ask", "asked", "effect", "offset", "outcome", "record", "records", "size", "stage", "window")

    def __init__(self, window: Window, record: Record) -> None:
        self.window = window
        self.offset = record.offset
        self.record: Record | None = record
        """Until it is known what it comes to."""
        headers = sum(len(part or b"") for _, part in record.headers)
        self.size = len(record.value or b"") + len(record.key or b"") + headers
        self.stage = Stage.OPEN
        self.effect: EffectMessage
        self.ask: Ask
        self.asked = False
        """The ledger is asked for it, or it is being carried out."""
        self.records: Sequence[NewRecord] = ()
        self.outcome: Outcome | None = None
        """What is to be noted in the ledger once the records are in the log."""


class Window:
    """A partition that the group has given to this subscriber."""

    def __init__(self, number: int, incarnation: int) -> None:
        self.number = number
        self.incarnation = incarnation
        self.state = WindowState.OPENING
        self.committed = 0
        """The group's offset: everything below it is finished."""
        self.position = 0
        """One past the last message read, and past markers that were looked at."""
        self.messages: deque[Message] = deque()
        self.finished: deque[Message] = deque()
        self.keys: dict[bytes, deque[Message]] = {}
        self.asked = 0
        """Messages that the ledger is asked for or that are carried out."""
        self.bytes = 0
        self.paused = False
        self.timers: set[asyncio.TimerHandle] = set()

    def move(self, state: WindowState) -> None:
        """Go on to a state that is legal next."""
        if state not in _NEXT[self.state]:
            message = f"partition {self.number}: {self.state.value} is never followed by {state.value}"
            raise RuntimeError(message)
        self.state = state

    @property
    def open(self) -> bool:
        """Whether messages are taken."""
        return self.state is WindowState.OPEN

    @property
    def closed(self) -> bool:
        """Whether it is somebody else's."""
        return self.state is WindowState.CLOSED

    @property
    def commits(self) -> bool:
        """Whether what is finished may be committed."""
        return self.state in (WindowState.OPEN, WindowState.DRAINING)

    def begin(self, offset: int) -> None:
        """Go on at the group's offset."""
        self.committed = self.position = offset

    def add(self, message: Message) -> None:
        """A message was read."""
        self.messages.append(message)
        self.position = message.offset + 1
        self.bytes += message.size

    def line_up(self, message: Message) -> bool:
        """Put a message behind the earlier ones of its key; whether there are none."""
        record = message.record
        assert record is not None
        key = record.key or b""
        queue = self.keys.get(key)
        if queue is None:
            self.keys[key] = deque((message,))
            return True
        queue.append(message)
        return False

    def queue_of(self, message: Message) -> deque[Message]:
        """The messages of the same key that are not finished, in their order."""
        assert message.record is not None
        return self.keys[message.record.key or b""]

    def finish(self, message: Message, records: Sequence[NewRecord], outcome: Outcome | None) -> Message | None:
        """Its outcome is known; return the next message of its key."""
        follower = None
        record = message.record
        assert record is not None, "a message is finished once"
        queue = self.keys.get(record.key or b"")
        if queue is not None and queue[0] is message:
            queue.popleft()
            if queue:
                follower = queue[0]
            else:
                del self.keys[record.key or b""]
        message.record = None
        if records:
            message.records, message.outcome, message.stage = records, outcome, Stage.FINISHED
            self.finished.append(message)
        else:
            message.stage = Stage.GONE
            self.bytes -= message.size
        return follower

    def prefix(self) -> int:
        """The offset below which everything is gone, or leaves with the commit under way."""
        for message in self.messages:
            if message.stage in (Stage.OPEN, Stage.FINISHED):
                return message.offset
        return self.position

    def advance(self, offset: int) -> None:
        """The group's offset was committed."""
        self.committed = offset
        while self.messages and self.messages[0].offset < offset:
            self.messages.popleft()
