"""Rewinding: what is known is passed over many at a time, also within one run, by a look that claims nothing."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from streams.effects import rules
from streams.effects.port import Entry, Verdict, Word

if TYPE_CHECKING:
    from streams.effects.subscriber.station import Station
    from streams.effects.subscriber.window import Message

__all__ = ["Ahead", "with_followers"]

_OVER = frozenset({Word.DONE, Word.GIVEN_UP, Word.PARKED})


class Ahead:
    """Looks ahead while most of what comes is known already."""

    def __init__(self, station: Station) -> None:
        self.rewinding = False
        """The last messages were known, so the next ones may be: they are looked at before anything is locked."""
        self._station = station

    def told(self, count: int, known: int) -> None:
        """So many of the last messages were known."""
        self.rewinding = 2 * known > count
        if known:
            self._station.parts.observer.effects_known(self._station.name, known)

    async def without_known(self, batch: list[Message]) -> list[Message]:
        """Finish what a plain look at the ledger shows as over; return the others, in their order."""
        station, parts = self._station, self._station.parts
        entries = await parts.ask_ledger(lambda: parts.ledger.look([message.ask.key for message in batch]))
        left: list[Message] = []
        stuck: set[int] = set()
        for message in batch:
            entry, queue = entries.get(message.ask.key), id(message.window.queue_of(message))
            verdict = None if entry is None or queue in stuck else _over(entry, message)
            if verdict is None:
                stuck.add(queue)
                left.append(message)
            else:
                station.known(message, verdict)
        self.told(len(batch), len(batch) - len(left))
        return left


def with_followers(station: Station, first: Message, room: int) -> list[Message]:
    """A message that is held, and of those behind it under the same key as many as there is room for, held as well."""
    found = [first]
    for message in islice(first.window.queue_of(first), 1, room + 1):
        if message.ask.key in station.held:
            break
        station.hold(message)
        found.append(message)
    return found


def _over(entry: Entry, message: Message) -> Verdict | None:
    """What the ledger would answer, where it would change nothing for this message."""
    verdict, changed = rules.judge(entry, message.ask, owner="", claim="", lease_seconds=0.0, now=0)
    return verdict if changed is None and verdict.word in _OVER else None
