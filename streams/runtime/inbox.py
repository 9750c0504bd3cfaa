"""What waits for turns, in order, and how much of it the next turn may take."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import NamedTuple

from streams.runtime.inputs import Arrived, Happened, Item, SendBack, is_dropped, is_early

__all__ = ["Inbox", "Taken"]

RunKey = tuple[int, str]


class Taken(NamedTuple):
    """Inputs for a turn, and those whose partition is not owned (any more): they begin anew."""

    items: list[Item]
    dropped: list[Item]


class Inbox:
    """Inputs in the order of their arrival; those of a turn that was not committed come back in front."""

    def __init__(self) -> None:
        self.filled = asyncio.Event()
        self.suspects = 0
        """So many inputs in front lead to a record that is refused, though nobody knows which of them."""
        self._items: deque[Item] = deque()
        self._held: list[Item] = []
        self._held_commands: set[int] = set()
        self._held_runs: set[RunKey] = set()

    def __len__(self) -> int:
        return len(self._items) + len(self._held)

    def __iter__(self) -> Iterator[Item]:
        yield from self._held
        yield from self._items

    def put(self, items: Sequence[Item]) -> None:
        """Add at the end, and wake whoever waits for it."""
        self._items.extend(items)
        if items:
            self.filled.set()

    def put_back(self, items: Sequence[Item], *, suspects: int | None = None) -> None:
        """Add in front. The first `suspects` of all that wait are tried in halves: one of them is refused."""
        # Held commands are behind these in their partition, whatever was taken first.
        self.release()
        self._items.extendleft(reversed(items))
        if suspects is not None:
            self.suspects = suspects
        if self._items:
            self.filled.set()

    def take(self, inputs_max: int, owned: Mapping[int, int], busy: Container[RunKey] = ()) -> Taken:
        """Remove and return what the next turn is made of.

        What is for a `busy` run is held until `release`, and so are the commands behind it in its partition: the
        offset that goes with a turn is one below which every command has had its outcome. What an attempt tells that
        was begun early does not wait, unless something else for its run does: nothing overtakes, nothing starves.
        """
        if self.suspects:
            inputs_max = max(1, self.suspects // 2)
            self.suspects -= inputs_max
        taken = Taken([], [])
        while self._items and len(taken.items) + len(taken.dropped) < inputs_max:
            item = self._items.popleft()
            if is_dropped(item):
                continue
            partition = item.partition
            if not partition.running or owned.get(partition.number) != partition.incarnation:
                taken.dropped.append(item)
            elif busy and self._must_wait(item, busy):
                self._held.append(item)
            else:
                taken.items.append(item)
        if self._items:
            self.filled.set()
        else:
            self.filled.clear()
        return taken

    def release(self) -> None:
        """Put what was held in front again."""
        held, self._held = self._held, []
        self._held_commands.clear()
        self._held_runs.clear()
        self._items.extendleft(reversed(held))
        if self._items:
            self.filled.set()

    def take_of(self, partitions: Container[int]) -> list[Item]:
        """Remove and return all of these partitions."""
        self.release()
        taken = [item for item in self._items if item.partition.number in partitions and not is_dropped(item)]
        self._items = deque(item for item in self._items if item.partition.number not in partitions)
        return taken

    def _must_wait(self, item: Item, busy: Container[RunKey]) -> bool:
        number = item.partition.number
        if isinstance(item, (Happened, SendBack)):
            run = (number, item.run_id)
            if run not in busy or (is_early(item) and run not in self._held_runs):
                return False
            self._held_runs.add(run)
            return True
        if not isinstance(item, Arrived):
            return False
        key = (item.record.key or b"").decode("utf-8", "backslashreplace")
        if number in self._held_commands or (number, key) in busy:
            self._held_commands.add(number)
            self._held_runs.add((number, key))
            return True
        return False
