"""One writer at a time: the epochs of a partition never go back, and each was claimed by who wrote under it."""

from __future__ import annotations

from streams.kernel.bodies import RunOwned, RunStarted
from streams.kernel.events import Event
from streams.log.port import Record
from streams.ops.verify.findings import Findings
from streams.ops.verify.leases import Leases
from streams.ops.verify.place import Place

__all__ = ["Owners"]


class Owners:
    """Looks at all events of a partition in order."""

    def __init__(self, place: Place, findings: Findings, leases: Leases) -> None:
        self._place = place
        self._findings = findings
        self._owners = dict(leases.owners)
        self._oldest = leases.oldest
        self._epoch = 0

    def see(self, record: Record, event: Event) -> None:
        """The next event."""
        epoch, body = event.epoch, event.body
        if epoch != self._epoch:
            self._moved(record, event)
        if isinstance(body, (RunOwned, RunStarted)) and body.owner:
            owner = self._owners.setdefault(epoch, body.owner)
            if owner != body.owner:
                text = f"it was written under the epoch {epoch} of another owner"
                self._find("event.owner", record, event, text, "owner", owner, body.owner)

    def _moved(self, record: Record, event: Event) -> None:
        epoch = event.epoch
        if epoch < self._epoch:
            text = "the epochs of the partition go back"
            self._find("event.epoch", record, event, text, "epoch", f"{self._epoch} or higher", epoch)
            return
        self._epoch = epoch
        if self._oldest is not None and epoch >= self._oldest and epoch not in self._owners:
            text = f"nobody has claimed the epoch {epoch}"
            self._find("event.epoch", record, event, text, "epoch", "that of a lease", epoch)

    def _find(
        self, kind: str, record: Record, event: Event, text: str, field: str, expected: object, found: object
    ) -> None:
        divergence = self._place.event(kind, record, event, text, field=field, expected=expected, found=found)
        self._findings.add(record.key or b"", divergence)
