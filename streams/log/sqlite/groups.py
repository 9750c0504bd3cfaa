"""Members, owners and offsets of groups as rows, and the fence that every commit checks against them."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping
from typing import Any

from streams.errors import CommitAborted, Fenced
from streams.log.holding import GroupView, Owner
from streams.log.port import GroupSnapshot
from streams.log.rules import moves

__all__ = ["beats", "check_fence", "enter", "leave", "look", "mark", "offsets", "release", "set_offsets", "take"]

Mark = tuple[Any, ...]
"""Differs when a group has changed: every assignment has a new incarnation, and every release leaves an owner less."""


def enter(connection: sqlite3.Connection, row: tuple[str, str, str, str, int]) -> None:
    """Add a member: group, topic, member id, client id, process."""
    connection.execute("INSERT INTO members VALUES (?, ?, ?, ?, ?, 0)", row)


def look(connection: sqlite3.Connection, group: str, topic: str, partitions: int) -> GroupView:
    """A group as it is now."""
    members = connection.execute("SELECT member FROM members WHERE grp = ? AND topic = ?", (group, topic))
    owners = dict.fromkeys(range(partitions), Owner(None, 0))
    rows = connection.execute(
        "SELECT partition, member, incarnation FROM owners WHERE grp = ? AND topic = ?", (group, topic)
    )
    owners.update({partition: Owner(member, incarnation) for partition, member, incarnation in rows})
    return GroupView(frozenset(member for (member,) in members), owners)


def mark(connection: sqlite3.Connection, group: str, topic: str) -> Mark:
    """A short form of a group as it is now: one row, where a look takes one for each partition."""
    row: Mark = connection.execute(
        "SELECT (SELECT group_concat(member) FROM members WHERE grp = ?1 AND topic = ?2), sum(incarnation), "
        "count(member) FROM owners WHERE grp = ?1 AND topic = ?2",
        (group, topic),
    ).fetchone()
    return row


def take(connection: sqlite3.Connection, group: str, topic: str, partitions: int, member: str) -> dict[int, int]:
    """Assign free partitions to a member, up to its fair share; nothing if it was expired meanwhile."""
    view = look(connection, group, topic, partitions)
    if member not in view.members:
        return {}
    wanted = moves(member, {p: owner.member for p, owner in view.owners.items()}, view.members).take
    taken = {partition: view.owners[partition].incarnation + 1 for partition in wanted}
    connection.executemany(
        "INSERT INTO owners VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE "
        "SET member = excluded.member, incarnation = excluded.incarnation",
        [(group, topic, partition, member, incarnation) for partition, incarnation in taken.items()],
    )
    return taken


def release(connection: sqlite3.Connection, group: str, topic: str, member: str, partitions: Collection[int]) -> None:
    """Free partitions that the member still owns. Their incarnations stay, so the next one is higher."""
    connection.executemany(
        "UPDATE owners SET member = NULL WHERE grp = ? AND topic = ? AND partition = ? AND member = ?",
        [(group, topic, partition, member) for partition in partitions],
    )


def leave(connection: sqlite3.Connection, member: str) -> None:
    """Remove a member with all that it owns."""
    connection.execute("DELETE FROM members WHERE member = ?", (member,))
    connection.execute("UPDATE owners SET member = NULL WHERE member = ?", (member,))


def beats(connection: sqlite3.Connection) -> dict[str, int]:
    """The heartbeat counter of every member of every group."""
    return dict(connection.execute("SELECT member, beats FROM members").fetchall())


def check_fence(connection: sqlite3.Connection, snapshot: GroupSnapshot, partitions: Collection[int]) -> None:
    """Raise unless the snapshot's member still owns all `partitions`, in the same incarnations."""
    for partition in partitions:
        row = connection.execute(
            "SELECT member, incarnation FROM owners WHERE grp = ? AND topic = ? AND partition = ?",
            (snapshot.group, snapshot.topic, partition),
        ).fetchone()
        owner = Owner(*(row or (None, 0)))
        if owner.member not in (None, snapshot.token):
            raise Fenced(f"partition {partition} of {snapshot.topic} belongs to {owner.member} now")
        if owner != Owner(snapshot.token, snapshot.owned[partition]):
            raise CommitAborted(f"partition {partition} of {snapshot.topic} was given up since this snapshot")


def offsets(connection: sqlite3.Connection, group: str, topic: str) -> dict[int, int]:
    """The committed offsets of a group."""
    rows = connection.execute("SELECT partition, offset FROM group_offsets WHERE grp = ? AND topic = ?", (group, topic))
    return dict(rows.fetchall())


def set_offsets(connection: sqlite3.Connection, group: str, topic: str, changed: Mapping[int, int | None]) -> None:
    """Set offsets; None deletes one."""
    connection.executemany(
        "INSERT INTO group_offsets VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET offset = excluded.offset",
        [(group, topic, partition, offset) for partition, offset in changed.items() if offset is not None],
    )
    connection.executemany(
        "DELETE FROM group_offsets WHERE grp = ? AND topic = ? AND partition = ?",
        [(group, topic, partition) for partition, offset in changed.items() if offset is None],
    )
