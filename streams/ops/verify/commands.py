"""Joins the outcomes that events tell of with the commands: both come in the order of the commands."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from streams.kernel.bodies import CommandRejected, OutcomeLate
from streams.kernel.events import Event
from streams.log.port import Record, Span
from streams.ops.verify.findings import Findings
from streams.ops.verify.place import Place, text_of
from streams.ops.verify.report import Divergence
from streams.wire.keys import ID_BYTES_MAX

__all__ = ["CommandJoin"]


class _Outcome(NamedTuple):
    """The first record that a command has led to."""

    command: int
    key: bytes
    event: Event
    record: Record


class CommandJoin:
    """Every command has one outcome, under its own run, and none was passed over."""

    def __init__(self, place: Place, findings: Findings, span: Span, *, trimmed: bool) -> None:
        self.compared = 0
        self.gone = 0
        self.next = 0
        """One past the last command that has an outcome."""
        self._place = place
        self._findings = findings
        self._span = span
        self._judging = not trimmed
        """Whether all events were there from the first command on."""
        self._last: tuple[int, str, int] = (-1, "", 0)
        self._outcomes: deque[_Outcome] = deque()
        self._commands: deque[Record] = deque()

    @property
    def wants_more(self) -> bool:
        """Whether commands are needed to go on."""
        return bool(self._outcomes) and not self._commands

    def outcome(self, record: Record, event: Event) -> None:
        """An event names the command that it answers."""
        offset = event.offset
        assert offset is not None
        if offset >= self.next:
            self.next = offset + 1
            self._last = (offset, event.run_id, event.epoch)
            self._outcomes.append(_Outcome(offset, record.key or b"", event, record))
            self._merge()
            return
        is_rest = isinstance(event.body, (CommandRejected, OutcomeLate))
        # A decision that blocks its run may refuse the command as well; what a late reply said is kept beside it.
        if not is_rest or self._last != (offset, event.run_id, event.epoch):
            text = f"command {offset} has had an outcome before, or those after it have"
            expected = f"{self.next} or higher"
            found = self._place.event("command.twice", record, event, text, field="offset", expected=expected)
            self._findings.add(record.key or b"", found._replace(found=str(offset)))

    def feed(self, records: Sequence[Record]) -> None:
        """The next commands."""
        self._commands.extend(records)
        self._merge()

    def _merge(self) -> None:
        outcomes, commands = self._outcomes, self._commands
        while outcomes:
            first = outcomes[0]
            if first.command < self._span.start:
                self.gone += 1
                outcomes.popleft()
            elif first.command >= self._span.end:
                self._unknown(outcomes.popleft())
            elif not commands:
                return
            elif commands[0].offset < first.command:
                self._lost(commands.popleft())
            elif commands[0].offset > first.command:
                self._unknown(outcomes.popleft())
            else:
                self._match(commands.popleft(), outcomes.popleft())

    def _match(self, command: Record, outcome: _Outcome) -> None:
        self._judging = True
        self.compared += 1
        if (command.key or b"")[:ID_BYTES_MAX] != outcome.key[:ID_BYTES_MAX]:
            text = f"command {command.offset} was sent to another run"
            wanted, found = text_of(command.key), text_of(outcome.key)
            divergence = self._place.event("command.key", outcome.record, outcome.event, text, field="key")
            self._findings.add(outcome.key, divergence._replace(expected=wanted, found=found))

    def _lost(self, command: Record) -> None:
        if not self._judging:
            self.gone += 1
            return
        key, topic = command.key or b"", self._place.topics.commands
        text = f"command {command.offset} has no outcome, and later ones have"
        self._findings.add(
            key, Divergence("command.lost", text_of(key), self._place.number, topic, command.offset, text)
        )

    def _unknown(self, outcome: _Outcome) -> None:
        text = f"it is the outcome of command {outcome.command}, which the topic does not hold"
        found = self._place.event("command.unknown", outcome.record, outcome.event, text, field="offset")
        self._findings.add(outcome.key, found._replace(found=str(outcome.command)))

    def finish(self, applied: int) -> bool:
        """All that was read was fed; whether commands below `applied`, the next one to apply, are still to come."""
        applied = max(applied, self.next)
        while self._commands and self._commands[0].offset < applied:
            self._lost(self._commands.popleft())
        return not self._commands and applied > self._span.start

    def end(self) -> None:
        """There are no more commands."""
        while self._outcomes:
            self._unknown(self._outcomes.popleft())
