"""A consumer group of a memory log: members, owners, generation, and offsets that may be pending."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from streams.errors import CommitAborted, Fenced
from streams.log.holding import GroupView, Owner
from streams.log.port import GroupSnapshot
from streams.log.rules import moves

__all__ = ["Group", "Token"]


class Token(NamedTuple):
    """What a snapshot proves: this member, as of this generation of the group."""

    member: str
    generation: int


class Group:
    """One group on one topic. Only a poll moves a member to the next generation, as on Kafka."""

    def __init__(self, name: str, topic: str, partitions: int) -> None:
        self.name = name
        self.topic = topic
        self.generation = 0
        self.offsets: dict[int, int] = {}
        self.pending: dict[int, list[int]] = {}
        self.settling = object()
        """Stands for the news of offsets that are pending no more, for which no member has to poll."""
        self._members: dict[str, int] = {}
        self._clients: dict[str, str] = {}
        self._owners = {partition: Owner(None, 0) for partition in range(partitions)}
        self._entered = 0

    @property
    def members(self) -> list[str]:
        """The ids of those who take part, in the order in which they came."""
        return list(self._members)

    def enter(self, client_id: str) -> str:
        """Let a member in; return its id."""
        self._entered += 1
        member = f"{client_id}-{self._entered}"
        self.generation += 1
        self._members[member] = self.generation
        self._clients[member] = client_id
        return member

    def remove(self, member: str) -> None:
        """Let a member go, or declare it dead: its partitions are free at once."""
        if self._members.pop(member, None) is not None:
            del self._clients[member]
            self.release(member, [p for p, owner in self._owners.items() if owner.member == member])
            self.generation += 1

    def of_client(self, client_id: str) -> list[str]:
        """The members that one client runs."""
        return [member for member, client in self._clients.items() if client == client_id]

    def follow(self, member: str) -> None:
        """Bring a member to the present generation; its older snapshots are stale from here on."""
        if member in self._members:
            self._members[member] = self.generation

    def token(self, member: str) -> Token:
        """The proof of membership for the next snapshots."""
        return Token(member, self._members.get(member, 0))

    def view(self) -> GroupView:
        """The group as it is now."""
        return GroupView(tuple(self._members), dict(self._owners))

    def take(self, member: str) -> dict[int, int]:
        """Assign free partitions to a member, up to its fair share."""
        owners = {p: owner.member for p, owner in self._owners.items()}
        for partition in moves(member, owners, self._members).take:
            self._owners[partition] = Owner(member, self._owners[partition].incarnation + 1)
            owners[partition] = member
        return {p: o.incarnation for p, o in self._owners.items() if o.member == member}

    def release(self, member: str, partitions: Collection[int]) -> None:
        """Free partitions, if the member still owns them."""
        for partition in partitions:
            if self._owners[partition].member == member:
                self._owners[partition] = self._owners[partition]._replace(member=None)

    def check(self, snapshot: GroupSnapshot, offsets: Mapping[int, int]) -> None:
        """The fence: raise unless the snapshot's member still owns what it commits, in its present generation."""
        member, generation = snapshot.token
        for partition in offsets:
            owner = self._owners[partition]
            if owner.member not in (None, member):
                raise Fenced(f"partition {partition} of {self.topic} belongs to {owner.member} now")
            if owner != Owner(member, snapshot.owned[partition]):
                raise CommitAborted(f"partition {partition} of {self.topic} was given up since this snapshot")
        if generation < self._members[member]:
            raise CommitAborted(
                f"the group {self.name} is at generation {self._members[member]}, the snapshot at {generation}"
            )
