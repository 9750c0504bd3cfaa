"""The story of a history: who did what at which virtual time, as lines that a person can read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from streams.errors import WireError
from streams.log.port import NewRecord
from streams.observer import Observer
from streams.wire.records import decode_event
from streams.wire.topics import Topics

__all__ = ["Story", "Teller"]


class Story:
    """Collects lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, at: float, who: str, what: str) -> None:
        """Add one."""
        mark = "!!" if who == "FAULT" else "  "
        self.lines.append(f"{mark} {at:9.4f}  {who:<7} {what}")

    def commit(self, topics: Topics, records: Sequence[NewRecord]) -> str:
        """What a commit holds, in short."""
        told = [_short(topics, record) for record in records]
        return "commits " + "; ".join(told) if told else "commits offsets alone"


def _short(topics: Topics, record: NewRecord) -> str:
    key = (record.key or b"").decode("utf-8", "replace")
    if record.topic == topics.events:
        try:
            event = decode_event(record.value or b"")
        except WireError:
            return f"event of {key}?"
        op = getattr(event.body, "op", None)
        seq = "-" if event.seq is None else event.seq
        cause = "" if event.offset is None else f" <- command {event.offset}"
        return f"{key}#{seq} {event.type}{f' {op}' if op else ''}{cause}"
    name = record.topic.partition(".")[2]
    return f"{name}[{record.partition}] {key}{' (null)' if record.value is None else ''}"


class Narrator(Protocol):
    """Where lines go."""

    def told(self, who: str, what: Callable[[], str]) -> None:
        """Add a line."""


class Teller(Observer):
    """Tells what a worker says of itself."""

    def __init__(self, world: Narrator, name: str) -> None:
        self._world = world
        self._name = name

    def __getattribute__(self, name: str) -> Any:
        """Every hook becomes a line."""
        if name.startswith("_") or name not in Observer.__dict__ or name == "turn":
            return super().__getattribute__(name)

        def tell(*what: Any) -> None:
            words = " ".join(str(word) for word in what if word != "")
            self._world.told(self._name, lambda: words if name == "message" else f"{name.replace('_', ' ')}: {words}")

        return tell
