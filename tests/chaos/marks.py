"""What a worker process does at this instant, in a small shared file that whoever is about to kill it reads."""

from __future__ import annotations

import mmap
import struct
import threading
from enum import IntEnum
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

__all__ = ["MarkedProducer", "Marks", "Phase", "make_marks"]

_SIZE = 16


class Phase(IntEnum):
    """Where the transaction of a worker stands. It is open at the broker for sure in SENT and FENCED."""

    NONE = 0
    BEGUN = 1
    """Records may be on their way."""
    SENT = 2
    """The broker has acknowledged the records."""
    FENCED = 3
    """The offsets went in too."""
    ENDING = 4
    """The commit was asked for; it may have happened."""


def make_marks(path: Path, workers: int) -> None:
    path.write_bytes(bytes(_SIZE * workers))


class Marks:
    """The marks of one worker. A mapped file outlives a SIGKILL of the process that wrote it."""

    def __init__(self, path: Path, index: int) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._at = index * _SIZE
        self._lock = threading.Lock()
        self._running = 0

    def clear(self) -> None:
        self._map[self._at : self._at + _SIZE] = bytes(_SIZE)

    @property
    def phase(self) -> Phase:
        return Phase(self._map[self._at])

    @phase.setter
    def phase(self, phase: Phase) -> None:
        self._map[self._at] = phase

    @property
    def running(self) -> int:
        """Tasks whose code is running."""
        found: int = struct.unpack_from("<i", self._map, self._at + 4)[0]
        return found

    def add(self, count: int) -> None:
        with self._lock:
            self._running += count
            struct.pack_into("<i", self._map, self._at + 4, self._running)


class MarkedProducer(Producer):
    """The C client, which also marks where its transaction stands."""

    marks: Marks
    _produced = False

    def begin_transaction(self) -> None:
        super().begin_transaction()
        self._produced = False
        self.marks.phase = Phase.BEGUN

    def produce(self, *args: Any, **kwargs: Any) -> None:
        super().produce(*args, **kwargs)
        self._produced = True

    def flush(self, *args: Any) -> int:
        left: int = super().flush(*args)
        if left == 0 and self._produced and self.marks.phase is Phase.BEGUN:
            self.marks.phase = Phase.SENT
        return left

    def send_offsets_to_transaction(self, *args: Any) -> None:
        super().send_offsets_to_transaction(*args)
        self.marks.phase = Phase.FENCED

    def commit_transaction(self, *args: Any) -> None:
        self.marks.phase = Phase.ENDING
        super().commit_transaction(*args)
        self.marks.phase = Phase.NONE

    def abort_transaction(self, *args: Any) -> None:
        super().abort_transaction(*args)
        self.marks.phase = Phase.NONE

    def purge(self, *args: Any, **kwargs: Any) -> None:
        self.marks.phase = Phase.NONE
        super().purge(*args, **kwargs)
