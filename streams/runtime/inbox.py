"""What waits for turns, in order, and how much of it the next turn may take."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Iterator, Sequence

from streams.runtime.inputs import Item

__all__ = ["Inbox"]


class Inbox:
    """Inputs in the order of their arrival; those of a turn that was not committed come back in front."""

    def __init__(self) -> None:
        self.filled = asyncio.Event()
        self._items: deque[Item] = deque()
        self._suspects = 0
        """So many inputs in front lead to a record that is refused, though nobody knows which of them."""

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items)

    def put(self, items: Sequence[Item]) -> None:
        """Add at the end, and wake whoever waits for it."""
        self._items.extend(items)
        if items:
            self.filled.set()

    def put_back(self, items: Sequence[Item], *, suspects: int = 0) -> None:
        """Add in front. The first `suspects` of all that wait are tried in halves: one of them is refused."""
        self._items.extendleft(reversed(items))
        self._suspects = suspects
        if self._items:
            self.filled.set()

    def take(self, inputs_max: int) -> list[Item]:
        """Remove and return what the next turn is made of."""
        room = inputs_max
        if self._suspects:
            room = max(1, self._suspects // 2)
            self._suspects -= room
        taken = [self._items.popleft() for _ in range(min(room, len(self._items)))]
        if self._items:
            self.filled.set()
        else:
            self.filled.clear()
        return taken

    def take_of(self, partitions: Collection[int]) -> list[Item]:
        """Remove and return all of these partitions."""
        taken = [item for item in self._items if item.partition.number in partitions]
        self._items = deque(item for item in self._items if item.partition.number not in partitions)
        return taken
