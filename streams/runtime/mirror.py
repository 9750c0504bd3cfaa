"""The mirror of a partition's checkpoints in a local store: brought up to the log at a restore, and written by turns.

What it may be used for is decided here alone. It is thrown away where it is of another topic, where it is ahead of the
log, and where it is older than deletions are kept: then it could bring back what was deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from streams.errors import LogDamaged, WireError
from streams.kernel.wake import AT_ONCE, Stage
from streams.log.port import NewRecord, Record, Span, TopicInfo
from streams.runtime.partition import PartitionState
from streams.store.port import Change, Mark, PartitionStore, Place
from streams.wire.records import read_head, read_seq
from streams.wire.schemas import SchemaUnknown

if TYPE_CHECKING:
    from streams.runtime.partition import Partition
    from streams.wire.topics import Topics

__all__ = ["Mirror", "Noted", "follow"]

_DELETIONS_MS = 86_400_000
"""How long deletions are kept where the log does not say."""
_AGE_SHARE = 0.75
"""The rest is for clocks that differ, and for the restore itself."""
_AGED_MAX = 100_000


class Noted(NamedTuple):
    """How far its owner had come when the mirror was marked: the tail, and the next command to apply."""

    tail: int
    applied: int


class Mirror:
    """The mirror of one partition, under one incarnation."""

    def __init__(self, store: PartitionStore) -> None:
        self._store = store
        self._mark = Mark("", 0, 0)
        self.thrown_away = ""
        """Why the mirror that was there could not be used."""
        self.woken = Place(-1, b"")
        """Up to which place of the index the runs have been loaded that go on by themselves."""
        self.gone: set[str] = set()
        """Runs that have expired by an event, whatever the mirror has of them. A later run of the name ends that."""

    # -- a restore -----------------------------------------------------------------------------------------------

    def begin(self, topics: Topics, found: Mapping[str, TopicInfo], span: Span, now: int) -> None:
        """Take up what is there, if it is of use."""
        missing = {topics.checkpoints, topics.events, topics.commands} - found.keys()
        if missing:
            raise LogDamaged(f"topic {min(missing)} does not exist any more")
        ids = "/".join(found[name].id for name in (topics.checkpoints, topics.events, topics.commands))
        mark = self._store.mark()
        kept_ms = int(found[topics.checkpoints].config.get("delete.retention.ms", _DELETIONS_MS))
        self.thrown_away = "" if mark is None else _why_useless(mark, ids, span, now - kept_ms * 1_000 * _AGE_SHARE)
        if mark is None or self.thrown_away:
            self._store.wipe()
            mark = Mark(ids, span.start, now)
        self._mark = mark
        self.woken = Place(-1, b"")
        self.gone.clear()

    def noted(self, epoch: int) -> Noted:
        """How far its owner had come, if that is who wrote the last lease: nobody has rebuilt anything since."""
        return Noted(self._mark.tail, self._mark.applied) if epoch and self._mark.owned == epoch else Noted(0, 0)

    def read(self, records: Iterable[Record], offset: int) -> None:
        """Take in records of the topic, up to `offset`. Raises SchemaUnknown for one of a newer release."""
        self._write(records, offset, self._mark.at)

    @property
    def offset(self) -> int:
        """From where on checkpoints are to be read."""
        return self._mark.offset

    @property
    def epoch(self) -> int:
        """The highest epoch that any checkpoint has shown."""
        return self._mark.epoch

    def at_once(self) -> Iterator[str]:
        """The runs that a new owner has to look at before it does anything else."""
        place = None
        while found := self._store.due(Stage.OPEN, AT_ONCE, _AGED_MAX, place):
            place = found[-1]
            yield from map(_run_id, found)

    # -- while the partition is served ---------------------------------------------------------------------------

    def add(self, records: Sequence[tuple[NewRecord, int]], now: int) -> None:
        """Take in checkpoints that this owner has committed, with their offsets, in order."""
        self._write((record for record, _ in records), records[-1][1] + 1, now)

    def note(self, partition: Partition, now: int) -> None:
        """Write down how far the partition has come: after a crash, nothing before that is read again."""
        self._mark = self._mark._replace(
            at=max(now, self._mark.at), owned=partition.epoch, tail=partition.tail(), applied=partition.applied
        )
        self._store.write((), self._mark)

    def value(self, run_id: str) -> bytes | None:
        """The checkpoint of a run."""
        return None if run_id in self.gone else self._store.get(run_id.encode())

    def covers(self, run_id: str, seq: int) -> bool:
        """Whether an event is in the checkpoint of a run that can be folded."""
        value = self.value(run_id)
        try:
            found = None if value is None else read_seq(value)
        except WireError:
            return False
        return found is not None and seq <= found

    def waking(self, until: int, limit: int) -> list[str]:
        """The next runs that go on by themselves up to a time; each is named once."""
        found = self._store.due(Stage.OPEN, until, limit, self.woken)
        self.woken = found[-1] if len(found) == limit else max(self.woken, Place(until + 1, b""))
        return [_run_id(place) for place in found]

    def aged(self, bounds: Mapping[Stage, float]) -> list[str]:
        """The runs at rest of which something is due: by stage, those that are as old as its time or older."""
        found: list[str] = []
        for stage, until in bounds.items():
            if until >= 0:
                found += map(_run_id, self._store.due(stage, int(until), _AGED_MAX))
        return found

    def some(self, count: int) -> Iterator[str]:
        """Some of the runs."""
        return islice(map(_text, self._store.keys(count)), count)

    def _write(self, records: Iterable[Record | NewRecord], offset: int, now: int) -> None:
        epoch, changes = self._mark.epoch, []
        for record in records:
            key, value = record.key, record.value
            if key is None:
                continue
            if not key.isascii():
                key = _text(key).encode()
            if value is None:
                changes.append(Change(key, None))
                continue
            try:
                shown, (stage, at) = read_head(value)
            except SchemaUnknown:
                raise
            except WireError:
                shown, stage, at = 0, Stage.OPEN, AT_ONCE  # whoever loads it finds that it is damaged
            epoch = max(epoch, shown)
            changes.append(Change(key, value, stage, at))
        mark = self._mark._replace(offset=offset, at=max(now, self._mark.at), epoch=epoch)
        self._store.write(changes, mark)
        self._mark = mark


def _why_useless(mark: Mark, ids: str, span: Span, oldest: float) -> str:
    if mark.topics != ids:
        return "it is of topics that were deleted, or of another log"
    if mark.offset > span.end:
        return f"it reflects offset {mark.offset}, and the log ends at {span.end}"
    if mark.offset < span.start:
        return f"it reflects offset {mark.offset}, and the log begins at {span.start}"
    return "deletions since then may be gone from the log" if mark.at < oldest else ""


def _text(key: bytes) -> str:
    return key.decode("utf-8", "backslashreplace")


def _run_id(place: Place) -> str:
    return place.key.decode()


def follow(
    partitions: Mapping[int, Partition], records: Sequence[NewRecord], offsets: Sequence[int], topic: str, now: int
) -> None:
    """Bring the mirrors up to a turn that was committed. One that was given up meanwhile reads it from the log."""
    written: dict[int, list[tuple[NewRecord, int]]] = {}
    for record, offset in zip(records, offsets, strict=True):
        if record.topic == topic:
            written.setdefault(record.partition, []).append((record, offset))
    for number, found in written.items():
        partition = partitions[number]
        if partition.mirror is not None and partition.state is not PartitionState.CLOSED:
            partition.mirror.add(found, now)
