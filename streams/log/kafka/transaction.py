"""The transactional C client and the order of one transaction; everything here runs on the client's own thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from streams.errors import CommitAborted, Fenced, InDoubt, LogError, StreamsError
from streams.log.kafka.failures import FENCED, NAMELESS, RAISED, error_of, sort, words
from streams.log.kafka.patience import Patience
from streams.log.kafka.sending import Reports, produce
from streams.log.port import NewRecord

__all__ = ["OnStep", "State", "Transactor", "untold"]

INIT_SECONDS = 30.0
SEND_SECONDS = 10.0  # the broker aborts a transaction of that age anyway
ABORT_SECONDS = 10.0
SETTLE_SECONDS = 1.0
END_SECONDS = 60.0
_CALL_SECONDS = 5.0
_PAUSE_SECONDS = 0.02

OnStep = Callable[[str], None]
"""Told of each step of a commit, on the client's thread: a test ends the process there."""


class State(Enum):
    """What a producer can still do.

      ┌──────── initialised ────────┐
      ▼                             │
    READY ── an abort not trusted ─▶ WORN
      │ ╲
      │  ╲── outcome unknown ──▶ IN_DOUBT
      └───── fenced ───────────▶ FENCED     (all end in CLOSED)
    """

    WORN = "worn"
    READY = "ready"
    FENCED = "fenced"
    IN_DOUBT = "in doubt"
    CLOSED = "closed"


NEXT: Mapping[State, frozenset[State]] = {
    State.WORN: frozenset({State.READY, State.CLOSED}),
    State.READY: frozenset({State.WORN, State.FENCED, State.IN_DOUBT, State.CLOSED}),
    State.FENCED: frozenset({State.CLOSED}),
    State.IN_DOUBT: frozenset({State.CLOSED}),
    State.CLOSED: frozenset(),
}


def untold(step: str) -> None:
    """What is told of steps where nobody asks."""


class Transactor:
    """One transactional id. A client that was worn is replaced by a fresh one under the same id."""

    def __init__(self, id: str, make: Callable[[], Producer], on_step: OnStep = untold) -> None:
        self.id = id
        self.state = State.WORN
        self.stale = False
        """Set by anybody when the brokers were away: the client may never find its coordinators again."""
        self._make = make
        self._on_step = on_step
        self._given_up = False
        self._client: Any = None
        self.patience = Patience()

    def initialise(self) -> None:
        """Make the client and take the id: whoever used it before is fenced, what it left open is ended."""
        self._drop()
        self.stale = False
        deadline = time.monotonic() + INIT_SECONDS
        client = self._make()
        while True:
            self._require_usable()  # a turn that nobody waits for must not take back the id that was settled
            try:
                self.patience.within(_CALL_SECONDS, client.init_transactions, _CALL_SECONDS)
                break
            except RAISED as raised:
                error = error_of(raised)
                if error.fatal() or not error.retriable() or time.monotonic() > deadline:
                    del client
                    raise sort(error, f"initialising the transactional id {self.id}") from raised
                time.sleep(_PAUSE_SECONDS)
        self._require_usable()
        self._client = client
        self._move(State.READY)

    def commit(self, records: Sequence[NewRecord], group: Any, offsets: list[TopicPartition]) -> list[int]:
        """One transaction.

        1. begin; 2. hand the records over; 3. wait for every report; 4. send the offsets: the fence; 5. end it.
        Up to 4 any failure aborts, and nothing was written. From 5 on only the broker knows. The reports come before
        the fence because a rebalance refuses there: with nothing under way, the client is as good as before.
        """
        self._require_usable()
        if self.stale and self.state is State.READY:
            self._move(State.WORN)
        if self.state is State.WORN:
            self.initialise()
        reports = Reports(len(records))
        try:
            self._client.begin_transaction()
            self._on_step("commit.begun")
            produce(self._client, records, reports, time.monotonic() + SEND_SECONDS)
            self._on_step("commit.produced")
            self.patience.within(SEND_SECONDS, self._client.flush, SEND_SECONDS)
            self._on_step("commit.flushed")
            reports.check(records)
            self._send_offsets(offsets, group)
            self._on_step("commit.fenced")
        except (*RAISED, StreamsError) as raised:
            raise self._aborted(raised, reports, records) from raised
        self._require_usable()  # it may have been given up meanwhile
        self._end()
        self._on_step("commit.ended")
        return reports.offsets

    def close(self) -> None:
        """Free the client. What an aborted transaction left in its queue is dropped."""
        self._drop()
        if self.state is not State.CLOSED:
            self._move(State.CLOSED)

    def give_up(self) -> None:
        """Nobody waits for this one any more. What still runs takes no id and ends nothing. From any thread."""
        self._given_up = True
        if self.state is State.READY:
            self._move(State.IN_DOUBT)

    # -- steps ---------------------------------------------------------------------------------------------------

    def _require_usable(self) -> None:
        if self.state is State.FENCED:
            raise Fenced(f"the producer {self.id} was fenced before: make another one")
        if self.state in (State.IN_DOUBT, State.CLOSED):
            raise ValueError(f"the producer {self.id} is {self.state.value}: make another one")
        if self._given_up:
            raise ValueError(f"the producer {self.id} was given up: make another one")

    def _send_offsets(self, offsets: list[TopicPartition], group: Any) -> None:
        deadline = time.monotonic() + SEND_SECONDS
        while True:
            try:
                self.patience.within(
                    _CALL_SECONDS, self._client.send_offsets_to_transaction, offsets, group, _CALL_SECONDS
                )
            except KafkaException as raised:
                error = error_of(raised)
                if not error.retriable() or error.txn_requires_abort() or time.monotonic() > deadline:
                    raise
            else:
                return

    def _end(self) -> None:
        deadline = time.monotonic() + END_SECONDS
        while True:
            try:
                self.patience.within(_CALL_SECONDS, self._client.commit_transaction, _CALL_SECONDS)
            except RAISED as raised:
                error = error_of(raised)
                if error.txn_requires_abort():
                    self._abort(Reports(0))
                    raise CommitAborted(f"ending a transaction: {words(error)}") from raised
                if error.fatal() or not error.retriable() or time.monotonic() > deadline:
                    # A fence counts too: the client repeats a request whose answer was lost, and the first one may
                    # have committed before somebody else took the id.
                    self._move(State.IN_DOUBT)
                    self._drop()
                    raise InDoubt(f"ending a transaction: {words(error)}; the log knows what happened") from raised
            else:
                return

    def _aborted(self, raised: Exception, reports: Reports, records: Sequence[NewRecord]) -> Exception:
        """Abort, and find the error that says what the caller must do."""
        error = None if isinstance(raised, StreamsError) else self._named(error_of(raised))
        if error is None and reports.purged:
            error = self._why_purged()
        if self._is_fenced(error, reports):
            self._move(State.FENCED)
            self._drop()
            return raised if isinstance(raised, Fenced) else Fenced(f"producer {self.id}: {_said(error, raised)}")
        self._abort(reports)
        if error is None:
            return raised
        if reports.refused_by_broker:
            # The client refuses further calls because of a record: that one is the cause.
            return reports.cause(records)
        found = sort(error, "a transaction")
        # A client that broke for good is replaced, so for the caller it is a redo.
        return CommitAborted(str(found)) if type(found) is LogError else found

    def _named(self, error: KafkaError) -> KafkaError:
        if error.code() != NAMELESS:
            return error
        try:
            self.patience.within(_CALL_SECONDS, self._client.abort_transaction, _CALL_SECONDS)
        except RAISED as again:
            return error_of(again)
        return error

    def _why_purged(self) -> KafkaError | None:
        """What has failed a transaction whose records were thrown away: any call that is out of place tells it."""
        try:
            self._client.begin_transaction()
        except RAISED as again:
            error = error_of(again)
            return error if error.txn_requires_abort() or error.fatal() else None
        return None

    def _is_fenced(self, error: KafkaError | None, reports: Reports) -> bool:
        failures = [failure for _, failure in reports.failures]
        return any(failure.code() in FENCED for failure in [*failures, *([error] if error else [])])

    def _abort(self, reports: Reports) -> None:
        """Abort. Unless the broker has taken every record, the client is worn and is not used again.

        After a refusal the records of its next transactions were purged, or waited for in vain until the time-out.
        """
        if not self._is_aborted(reports):
            self._move(State.WORN)
            self._drop()

    def _is_aborted(self, reports: Reports) -> bool:
        """Whether the client could abort. The one that takes the place of a worn one ends the transaction.

        With records under way it must not even try: it would lose track of its sequence, and where the broker has not
        answered the registration of a partition, the late answer ends the process with a failed assertion.
        """
        deadline = time.monotonic() + ABORT_SECONDS
        while True:
            try:
                if not reports.complete:
                    self.patience.within(SETTLE_SECONDS, self._client.flush, SETTLE_SECONDS)
                if not reports.all_taken:
                    return False
                self.patience.within(_CALL_SECONDS, self._client.abort_transaction, _CALL_SECONDS)
            except RAISED as raised:
                if not error_of(raised).retriable() or time.monotonic() > deadline:
                    return False
            else:
                return True

    def _drop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            # It only saves time: what is left in the queue goes with the client.
            with suppress(KafkaException):
                client.purge()

    def _move(self, state: State) -> None:
        if state not in NEXT[self.state]:
            raise RuntimeError(f"the producer {self.id} cannot go from {self.state.value} to {state.value}")
        self.state = state


def _said(error: KafkaError | None, raised: Exception) -> str:
    return words(error) if error is not None else str(raised)
