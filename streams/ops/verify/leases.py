"""The leases of a partition: who owned it under which epoch, and what its last one promises."""

from __future__ import annotations

from streams.errors import WireError
from streams.log.port import Record, Span
from streams.ops.verify.diff import short
from streams.ops.verify.findings import Findings
from streams.ops.verify.place import Place
from streams.ops.verify.report import Divergence
from streams.runtime.marks import REBUILDING
from streams.wire.records import Lease, decode_lease

__all__ = ["Leases"]


class Leases:
    """As far as compaction has kept them: from the oldest on, none is missing."""

    def __init__(self, place: Place, findings: Findings, sure_end: int) -> None:
        """`sure_end`: leases below it were written before the other ends were captured."""
        self.count = 0
        self.owners: dict[int, str] = {}
        self.last: Lease | None = None
        """The last of the sure ones, whose promises can be checked."""
        self._place = place
        self._findings = findings
        self._sure_end = sure_end
        self._before: Lease | None = None
        self._last_offset = -1
        self._unreadable: tuple[int, str] | None = None

    @property
    def oldest(self) -> int | None:
        """The first epoch whose claim is known."""
        return min(self.owners, default=None)

    def add(self, record: Record) -> None:
        """The next one."""
        if record.value is None:
            self._forget_place()
            return
        try:
            lease = decode_lease(record.value)
        except WireError as error:
            self._tell_unreadable()
            self._unreadable = (record.offset, str(error))
            self._forget_place()
            return
        if any(name == REBUILDING for name, _ in record.headers):
            self._unreadable = None  # an operator has had it made good
        self.count += 1
        if (lease.partition, record.key) != (self._place.number, str(self._place.number).encode()):
            text = "it is of another partition"
            self._find("lease.differs", record.offset, text, "partition", self._place.number, lease.partition)
            return
        owner = self.owners.setdefault(lease.epoch, lease.owner)
        if owner != lease.owner:
            text = f"epoch {lease.epoch} was claimed by two owners"
            self._find("lease.differs", record.offset, text, "owner", owner, lease.owner)
        for name in ("epoch", "applied", "tail"):
            before = -1 if self._before is None else getattr(self._before, name)
            if getattr(lease, name) < before:
                text = f"the lease goes back in {name}"
                self._find("lease.goes-back", record.offset, text, name, f"{before} or higher", getattr(lease, name))
        self._before = lease
        if record.offset < self._sure_end:
            self.last, self._last_offset = lease, record.offset

    def check(self, events: Span, commands: Span, topic_id: str) -> None:
        """Compare the promises of the last one with what the other topics hold."""
        self._tell_unreadable()
        lease = self.last
        if lease is None:
            return
        offset = self._last_offset
        if not events.start <= lease.tail <= events.end:
            text = "the events that a take-over needs are not all there"
            self._find("lease.tail", offset, text, "tail", f"{events.start} to {events.end}", lease.tail)
        if lease.applied > commands.end:
            text = "more commands were applied than the topic has had"
            self._find("lease.applied", offset, text, "applied", f"at most {commands.end}", lease.applied)
        if lease.topic_id and lease.topic_id != topic_id:
            text = "the commands topic is not the one that the owner has read"
            self._find("lease.topic", offset, text, "topic_id", lease.topic_id, topic_id)

    def _forget_place(self) -> None:
        """A claim that finds no lease covers nothing, so that all events are read."""
        if self._before is not None:
            self._before = self._before._replace(tail=0)

    def _tell_unreadable(self) -> None:
        if self._unreadable is not None:
            offset, error = self._unreadable
            self._find("lease.unreadable", offset, f"it cannot be read: {error}")

    def _find(
        self, kind: str, offset: int, text: str, field: str = "", expected: object = "", found: object = ""
    ) -> None:
        topic, number = self._place.topics.leases, self._place.number
        values = (field, short(expected), short(found))
        self._findings.add(b"", Divergence(kind, "", number, topic, offset, text, None, *values))
