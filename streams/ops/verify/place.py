"""Where a check stands: the partition that it is about, and how a divergence in it is put into words."""

from __future__ import annotations

from typing import NamedTuple

from streams.kernel.events import Event
from streams.kernel.run import Run
from streams.log.port import Record
from streams.ops.verify.report import Divergence
from streams.wire.partitioner import partition_of
from streams.wire.topics import Topics

__all__ = ["Place", "code_of", "text_of"]


def text_of(key: bytes | None) -> str:
    """A key as text, whatever it is."""
    return (key or b"").decode("utf-8", "backslashreplace")


def code_of(run: Run | None) -> str:
    """The version of a run's workflow, and the fingerprint of the code that it met last."""
    if run is None or not run.workflow:
        return ""
    return f"{run.workflow} v{run.version}" + (f", code {run.code}" if run.code else "")


class Place(NamedTuple):
    """A partition of an app."""

    topics: Topics
    number: int
    partitions: int
    publishes: bool = True
    """Whether effects leave; those of a copy that `streams replay reprocess` has made may not."""

    def is_home(self, key: bytes) -> bool:
        """Whether a run with this key belongs here."""
        return partition_of(key, self.partitions) == self.number

    def event(
        self,
        kind: str,
        record: Record,
        event: Event | None,
        message: str,
        *,
        field: str = "",
        expected: object = "",
        found: object = "",
        run: Run | None = None,
    ) -> Divergence:
        """A divergence at an event."""
        return Divergence(
            kind,
            text_of(record.key) if event is None else event.run_id,
            self.number,
            self.topics.events,
            record.offset,
            message,
            None if event is None else event.seq,
            field,
            str(expected),
            str(found),
            code_of(run),
        )

    def checkpoint(
        self,
        kind: str,
        key: bytes,
        offset: int | None,
        seq: int | None,
        message: str,
        run: Run | None,
        *,
        values: tuple[str, str, str] = ("", "", ""),
    ) -> Divergence:
        """A divergence at a checkpoint, or at its lack; `values` are the field, what it must be and what it is."""
        topic = self.topics.checkpoints
        return Divergence(kind, text_of(key), self.number, topic, offset, message, seq, *values, code_of(run))
