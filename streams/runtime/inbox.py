"""What waits for turns, in the order in which it came."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Container, Mapping, Sequence

from streams.runtime.inputs import Arrived, Happened, Item

__all__ = ["Inbox"]

RunKey = tuple[int, str]


class Inbox:
    """Inputs of all owned partitions. `filled` is set when there may be something to take."""

    def __init__(self) -> None:
        self.filled = asyncio.Event()
        self._items: deque[Item] = deque()
        self._held: list[Item] = []
        self._held_commands: set[int] = set()

    def __len__(self) -> int:
        return len(self._items) + len(self._held)

    def put(self, item: Item) -> None:
        """Add an input at the end."""
        self._items.append(item)
        self.filled.set()

    def put_back(self, items: Sequence[Item]) -> None:
        """Put inputs that were taken in front again."""
        self._items.extendleft(reversed(items))
        if self._items:
            self.filled.set()

    def take(self, count_max: int, owned: Mapping[int, int], busy: Container[RunKey]) -> tuple[list[Item], list[Item]]:
        """The next inputs, and those dropped because their partition is not `owned` (any more): they begin anew.

        What is for a `busy` run is held until `release`, and so are the commands behind it in its partition: the
        offset that goes with a turn is one below which every command has had its outcome.
        """
        self.filled.clear()
        items: list[Item] = []
        dropped: list[Item] = []
        while self._items and len(items) < count_max:
            item = self._items.popleft()
            partition = item.partition
            if not partition.running or owned.get(partition.number) != partition.incarnation:
                dropped.append(item)
            elif self._must_wait(item, busy):
                self._held.append(item)
            else:
                items.append(item)
        if self._items:
            self.filled.set()
        return items, dropped

    def release(self) -> None:
        """Put what was held in front again."""
        held, self._held = self._held, []
        self._held_commands.clear()
        self.put_back(held)

    def take_of(self, partitions: Container[int]) -> list[Item]:
        """Remove and return everything of these partitions."""
        self.release()
        taken = [item for item in self._items if item.partition.number in partitions]
        self._items = deque(item for item in self._items if item.partition.number not in partitions)
        return taken

    def _must_wait(self, item: Item, busy: Container[RunKey]) -> bool:
        number = item.partition.number
        if isinstance(item, Happened):
            return (number, item.run_id) in busy
        if not isinstance(item, Arrived):
            return False
        key = item.record.key or b""
        if number not in self._held_commands and (number, key.decode("utf-8", "backslashreplace")) not in busy:
            return False
        self._held_commands.add(number)
        return True
