"""What one member of a group holds where no broker assigns: it follows the group and calls its `Ownership`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

from streams.errors import Fenced
from streams.log.port import GroupSnapshot, Ownership
from streams.log.rules import moves

__all__ = ["Cursor", "GroupView", "Holding", "Owner", "Seat", "rotated"]

T = TypeVar("T")


class Owner(NamedTuple):
    """Who owns a partition, if anybody, and the number of its assignments so far."""

    member: str | None
    incarnation: int


class GroupView(NamedTuple):
    """A group at one instant: its members, and the owner of every partition."""

    members: Collection[str]
    owners: Mapping[int, Owner]


class Cursor:
    """Where a partition that is not paused goes on. A new one is made at each resume: identity tells them apart."""

    __slots__ = ("position",)

    def __init__(self, position: int) -> None:
        self.position = position


class Seat(Protocol):
    """A member's place in its group, as a transport keeps it. Each call is atomic for the other members."""

    id: str

    def token(self) -> Any:
        """What the next snapshots carry."""

    async def enter(self) -> None:
        """Join, or join again, under a new id."""

    async def take(self) -> Mapping[int, int]:
        """Claim free partitions up to the fair share; return those taken with their new incarnations."""

    async def release(self, partitions: Collection[int]) -> None:
        """Give partitions back to the group."""


class Holding:
    """The partitions that a member holds, and the calls that it owes when the group changes."""

    def __init__(self, group: str, topic: str, seat: Seat) -> None:
        self.snapshot = GroupSnapshot(group, topic, None, {})
        self.cursors: dict[int, Cursor] = {}
        self._seat = seat
        self._ownership: Ownership | None = None
        self._turns = 0

    @property
    def joined(self) -> bool:
        """Whether `join` was called, and `leave` was not."""
        return self._ownership is not None

    async def join(self, ownership: Ownership) -> None:
        """Enter the group; nothing is owned before the first poll."""
        if self._ownership is not None:
            raise ValueError("this member has joined already: make another one with `Log.member`")
        await self._seat.enter()
        self._ownership = ownership
        self._hold(self.snapshot.owned)

    def owner(self) -> Ownership:
        """Who is called about changes."""
        if self._ownership is None:
            raise ValueError("this member is not in its group: call `join` before, and nothing after `close`")
        return self._ownership

    async def follow(self, view: GroupView) -> bool:
        """Bring what is held in line with the group, in this order: lost, assigned, then given up or taken."""
        ownership = self.owner()
        if self._seat.id not in view.members:
            await self._lose(ownership, self.snapshot.owned)
            await self._seat.enter()
            self.refresh()
            return True
        mine, lost = self._compare(view)
        # A poll that was cancelled between the claim and the call leaves partitions that are ours but unknown here.
        found = {p: incarnation for p, incarnation in mine.items() if self.snapshot.owned.get(p) != incarnation}
        wanted = moves(self._seat.id, {p: owner.member for p, owner in view.owners.items()}, view.members)
        await self._lose(ownership, lost)
        await self._adopt(ownership, found)
        if wanted.give_up:
            await self._give_up(ownership, wanted.give_up)
        elif wanted.take:
            await self._adopt(ownership, await self._seat.take())
        return bool(lost or found or wanted.give_up or wanted.take)

    async def leave(self, view: GroupView) -> None:
        """Give up everything that is still held; after this the member is in no group."""
        ownership = self.owner()
        await self._lose(ownership, self._compare(view)[1])
        if self.snapshot.owned:
            await self._give_up(ownership, list(self.snapshot.owned))
        self._ownership = None

    def turn(self) -> list[tuple[int, Cursor]]:
        """The partitions that may deliver, each poll beginning with another one so that none starves the rest."""
        self._turns += 1
        return rotated(sorted(self.cursors.items()), self._turns)

    def resume(self, partition: int, offset: int) -> None:
        """Let `partition` deliver from `offset` on."""
        self.require(partition)
        self.cursors[partition] = Cursor(offset)

    def require(self, partition: int) -> None:
        """Raise Fenced for a partition that is not held."""
        if partition not in self.snapshot.owned:
            raise Fenced(f"partition {partition} of {self.snapshot.topic} is not owned by this member (any more)")

    def pause(self, partition: int) -> None:
        """Let `partition` deliver nothing."""
        self.cursors.pop(partition, None)

    def refresh(self) -> None:
        """Take a new token: snapshots made from now on belong to the group as it is now."""
        self._hold(self.snapshot.owned)

    def _hold(self, owned: Mapping[int, int]) -> None:
        for partition in [p for p in self.cursors if owned.get(p) != self.snapshot.owned.get(p)]:
            del self.cursors[partition]
        self.snapshot = self.snapshot._replace(token=self._seat.token(), owned=dict(owned))

    def _compare(self, view: GroupView) -> tuple[dict[int, int], dict[int, int]]:
        """What is ours in the view, and what of our holdings is not any more."""
        mine = {p: owner.incarnation for p, owner in view.owners.items() if owner.member == self._seat.id}
        held = self.snapshot.owned
        return mine, {p: incarnation for p, incarnation in held.items() if mine.get(p) != incarnation}

    def _without(self, partitions: Collection[int]) -> dict[int, int]:
        return {p: incarnation for p, incarnation in self.snapshot.owned.items() if p not in partitions}

    async def _lose(self, ownership: Ownership, lost: Mapping[int, int]) -> None:
        if lost:
            self._hold(self._without(lost))
            await ownership.lost(lost)

    async def _adopt(self, ownership: Ownership, assigned: Mapping[int, int]) -> None:
        if assigned:
            self._hold({**self.snapshot.owned, **assigned})
            await ownership.assigned(self.snapshot, assigned)

    async def _give_up(self, ownership: Ownership, partitions: Collection[int]) -> None:
        leaving = {p: self.snapshot.owned[p] for p in partitions}
        for partition in leaving:
            self.pause(partition)
        await ownership.revoked(self.snapshot, leaving)
        await self._seat.release(partitions)
        self._hold(self._without(partitions))


def rotated(items: list[T], turn: int) -> list[T]:
    """The same items, beginning with another one at each turn."""
    start = turn % len(items) if items else 0
    return items[start:] + items[:start]
