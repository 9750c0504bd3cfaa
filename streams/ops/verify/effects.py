"""Joins the messages that events lead to with those of the outbox: both come in the same order."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from typing import NamedTuple, TypeVar

from streams.errors import WireError
from streams.kernel.events import Event
from streams.kernel.run import Run
from streams.log.port import Record, Span
from streams.ops.verify.diff import short
from streams.ops.verify.findings import Findings
from streams.ops.verify.place import Place, code_of, text_of
from streams.ops.verify.report import Divergence
from streams.ops.verify.shares import Counts, Share, bucket_of
from streams.wire.records import EffectMessage, decode_effect

__all__ = ["EffectJoin", "Orphan", "attempt_id", "message_id"]

_AHEAD_MAX = 1_000
"""Messages that are kept while the one that an event emitted is looked for; a lost one must not bring all to memory."""
_WAITING_MAX = 10_000
"""Of those that do not match: older ones are given up, since both sides have the same order."""
_REPEATED_MAX = 100
"""Of one effect: a run is repaired a few times, and what is more was written by another program."""
_OF_THE_WORKFLOW = frozenset({"workflow", "version"})

_T = TypeVar("_T")


def message_id(message: EffectMessage) -> str:
    """What tells messages apart: the effect, and which attempt of a request it is."""
    return attempt_id(message.effect_id, message.attempt)


def attempt_id(effect_id: str, attempt: int) -> str:
    """The effect, and which attempt of a request it is; 0 for an effect that nobody waits for."""
    return f"{effect_id}, attempt {attempt}" if attempt else effect_id


class _Emitted(NamedTuple):
    """The message that an event leads to, where the event lies, and its run where that could be folded."""

    key: bytes
    event: Event
    offset: int
    message: EffectMessage
    run: Run | None


class _Message(NamedTuple):
    """A message, and the key that it should have."""

    key: bytes
    found_key: bytes | None
    offset: int
    message: EffectMessage


class Orphan(NamedTuple):
    """A message that no event is left for."""

    key: bytes
    offset: int
    effect_id: str


class EffectJoin:
    """One effect in one partition. Feed it in order; what is not matched stays until the end."""

    def __init__(self, place: Place, findings: Findings, name: str, span: Span, sure_end: int) -> None:
        """`sure_end`: messages below it were written before the end of the events was captured."""
        self.compared, self.gone = Counts(), Counts()
        self._place = place
        self._findings = findings
        self._name = name
        self._topic = place.topics.effect(name)
        self._sure_end = sure_end
        self._begun = span.start == 0
        """Whether the first message that retention has left was met among the events."""
        self._awaiting: dict[str, _Emitted] = {}
        self._early: dict[str, _Message] = {}
        self._repeated: dict[str, list[_Emitted]] = {}
        self._second: dict[str, list[_Message]] = {}
        """A run that was repaired may emit an effect once more, with the same id: these wait behind the first."""
        self._orphans: list[Orphan] = []
        self._at_the_end = False
        self._newest = ""
        self._first_matched: int | None = None

    @property
    def wants_more(self) -> bool:
        """Whether messages are needed: for the last effect that was emitted, or to know where retention has cut."""
        if self._at_the_end:
            return False
        if not self._begun:
            return not self._early
        return self._newest in self._awaiting and len(self._early) < _AHEAD_MAX

    def keep(self, share: Share) -> None:
        """Forget the runs outside the share."""
        self._awaiting = {id_: one for id_, one in self._awaiting.items() if share.holds(one.key)}
        self._early = {id_: early for id_, early in self._early.items() if share.holds(early.key)}
        self._repeated = {id_: some for id_, some in self._repeated.items() if share.holds(some[0].key)}
        self._second = {id_: some for id_, some in self._second.items() if share.holds(some[0].key)}
        self._orphans = [orphan for orphan in self._orphans if share.holds(orphan.key)]

    def emitted(self, key: bytes, record: Record, event: Event, message: EffectMessage, run: Run | None) -> None:
        """An event leads to a message; `run` is None where its state is not known, and so not its workflow."""
        one = _Emitted(key, event, record.offset, message, run)
        id_ = message_id(message)
        early = _first_of(self._early, self._second, id_)
        if early is not None:
            self._begun = True
            self._match(one, early)
        elif not self._begun:
            self.gone.by_bucket[bucket_of(key)] += 1
        elif self._at_the_end:
            self._lost(one)
        elif id_ in self._awaiting:
            self._newest = id_
            self._repeated.setdefault(id_, []).append(one)
        else:
            self._newest = id_
            self._awaiting[id_] = one
            if len(self._awaiting) > _WAITING_MAX:
                self._lost(self._awaiting.pop(next(iter(self._awaiting))))

    def end(self) -> None:
        """There are no more messages."""
        self._at_the_end = True
        for one in (*self._awaiting.values(), *chain.from_iterable(self._repeated.values())):
            self._lost(one)
        self._awaiting, self._repeated = {}, {}

    def feed(self, records: Sequence[Record], share: Share) -> None:
        """The next messages."""
        for record in records:
            key = record.key or b""
            try:
                message = decode_effect(record.value or b"")
            except WireError as error:
                text = f"it cannot be read: {error}"
                if share.holds(key):
                    self._add("effect.unreadable", key, text_of(key), record.offset, text)
                continue
            run_key = message.run_id.encode()  # the record's key may be wrong
            if not share.holds(run_key):
                continue
            found = _Message(run_key, record.key, record.offset, message)
            id_ = message_id(message)
            one = _first_of(self._awaiting, self._repeated, id_)
            if one is not None:
                self._match(one, found)
            elif id_ in self._early:
                if len(self._second.get(id_, ())) >= _REPEATED_MAX:
                    self._judge(Orphan(found.key, found.offset, id_), is_known=True)
                    continue
                self._second.setdefault(id_, []).append(found)
            else:
                self._early[id_] = found
                if len(self._early) > _WAITING_MAX:
                    self._give_up(next(iter(self._early)))

    def _give_up(self, id_: str) -> None:
        for early in (self._early.pop(id_), *self._second.pop(id_, ())):
            self._orphans.append(Orphan(early.key, early.offset, id_))

    def _match(self, one: _Emitted, found: _Message) -> None:
        self.compared.by_bucket[bucket_of(one.key)] += 1
        if self._first_matched is None:
            self._first_matched = found.offset
        if found.found_key != found.key:
            self._differs(one, found, "key", text_of(found.key), text_of(found.found_key))
        if found.message == one.message:
            return
        for name, wanted, is_ in zip(EffectMessage._fields, one.message, found.message, strict=True):
            if wanted != is_ and (one.run is not None or name not in _OF_THE_WORKFLOW):
                self._differs(one, found, name, short(wanted), short(is_))
                return

    def _differs(self, one: _Emitted, found: _Message, field: str, expected: str, is_: str) -> None:
        text = f"the message {message_id(one.message)} is not what its event says"
        found_ = self._divergence("effect.differs", one.event.run_id, found.offset, text)
        self._findings.add(
            one.key,
            found_._replace(seq=one.event.seq, field=field, expected=expected, found=is_, code=code_of(one.run)),
        )

    def _lost(self, one: _Emitted) -> None:
        text = f"effect {message_id(one.message)} was emitted (event at offset {one.offset}) and has no message"
        found = self._divergence("effect.lost", one.event.run_id, None, text)
        self._findings.add(one.key, found._replace(seq=one.event.seq, code=code_of(one.run)))

    def finish(self, *, trimmed: bool) -> list[Orphan]:
        """All events were seen; `trimmed`: the first ones are gone. Returns the messages that none was found for."""
        self.end()
        for id_ in list(self._early):
            self._give_up(id_)
        orphans = []
        for orphan in self._orphans:
            if orphan.offset >= self._sure_end:
                continue  # of a transaction behind the captured end of the events
            if trimmed and (self._first_matched is None or orphan.offset < self._first_matched):
                self.gone.by_bucket[bucket_of(orphan.key)] += 1
            else:
                orphans.append(orphan)
        return orphans

    def judge(self, orphans: Sequence[Orphan], emitted: Collection[str]) -> None:
        """Tell those whose effect was `emitted`, and has another message, from those that nobody has emitted."""
        for orphan in orphans:
            self._judge(orphan, is_known=orphan.effect_id in emitted)

    def _judge(self, orphan: Orphan, *, is_known: bool) -> None:
        id_ = orphan.effect_id
        if is_known:
            kind, text = "effect.twice", f"effect {id_} was published before"
        else:
            kind, text = "effect.orphan", f"no event has emitted effect {id_}"
        self._add(kind, orphan.key, text_of(orphan.key), orphan.offset, text)

    def _add(self, kind: str, key: bytes, run_id: str, offset: int, text: str) -> None:
        self._findings.add(key, self._divergence(kind, run_id, offset, text))

    def _divergence(self, kind: str, run_id: str, offset: int | None, text: str) -> Divergence:
        return Divergence(kind, run_id, self._place.number, self._topic, offset, text)


def _first_of(first: dict[str, _T], behind: dict[str, list[_T]], id_: str) -> _T | None:
    """Take the first one of an effect; the next of those behind it takes its place."""
    one = first.pop(id_, None)
    if one is not None and id_ in behind:
        first[id_] = behind[id_].pop(0)
        if not behind[id_]:
            del behind[id_]
    return one
