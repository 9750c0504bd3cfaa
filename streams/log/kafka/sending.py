"""Hands records to the client and gathers every delivery report: one that is missing or bad dooms all."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from streams.errors import CommitAborted, LogUnavailable, SendRefused, StreamsError
from streams.log.kafka.failures import MISSING, PURGED, UNWRITABLE, refused_by_client, run_code, sort, words
from streams.log.port import NewRecord

__all__ = ["Reports", "produce"]

_ROOM_SECONDS = 0.01


class Reports:
    """The delivery reports of some records, by their place among them."""

    def __init__(self, count: int) -> None:
        self.offsets = [-1] * count
        self.failures: list[tuple[int, KafkaError]] = []
        self._missing = 0

    @property
    def complete(self) -> bool:
        """Whether nothing is under way any more."""
        return not self._missing

    @property
    def all_taken(self) -> bool:
        """Whether the broker itself has taken every record that was handed over.

        Only then does the client know where its sequence stands, and may go on after an abort. A record that the
        broker refused counts for the client and not for the broker: the next transaction would be out of sequence.
        """
        return self.complete and not self.failures

    @property
    def refused_by_broker(self) -> bool:
        """Whether a broker has refused a record."""
        return any(error.code() > 0 for _, error in self.failures)

    @property
    def purged(self) -> bool:
        """Whether records failed only because the client threw them away."""
        return bool(self.failures) and all(error.code() in PURGED for _, error in self.failures)

    def expect(self, index: int) -> partial[None]:
        """The callback for the record at `index`."""
        self._missing += 1
        return partial(self._landed, index)

    def withdraw(self) -> None:
        """The record of the last `expect` was not handed over after all."""
        self._missing -= 1

    def check(self, records: Sequence[NewRecord]) -> None:
        """Raise the error of `streams` for what the reports say, blaming one record where just one is to blame."""
        if not self.complete:
            raise LogUnavailable(f"{self._missing} of {len(records)} records were not acknowledged in time")
        if self.failures:
            raise self.cause(records)

    def cause(self, records: Sequence[NewRecord]) -> StreamsError:
        """The error of `streams` for the failures, of which there is at least one."""
        unwritable = [(index, error) for index, error in self.failures if error.code() in UNWRITABLE]
        answered = [(index, error) for index, error in self.failures if error.code() > 0]
        index, error = (unwritable or answered or self.failures)[0]
        place = f"{records[index].topic}[{records[index].partition}]"
        if not unwritable:
            found = sort(error, f"writing to {place}")
            return CommitAborted(str(found)) if answered and isinstance(found, LogUnavailable) else found
        others = [more for more, _ in unwritable[1:]]
        if all(failure.code() in MISSING for _, failure in unwritable) or not others:
            message = f"record {index} cannot be written to {place}: {words(error)}"
            return SendRefused(message, index, others=others, code=run_code(error))
        # They may have shared a batch, in which one that is too large takes the others with it.
        message = f"{len(unwritable)} records, the first for {place}, cannot be written: {words(error)}"
        return SendRefused(message, code=run_code(error))

    def _landed(self, index: int, error: KafkaError | None, message: Message) -> None:
        self._missing -= 1
        offset = message.offset() if error is None else None
        if error is not None:
            self.failures.append((index, error))
        elif offset is None or offset < 0:
            # The broker has called it a repeat, and the client takes that for success. It is no proof: of two batches
            # on their way to a new partition the first may be refused and the second taken; sent again, the first
            # counts as one that is there. Seen once in the chaos test, where the record was lost.
            self.failures.append((index, KafkaError(KafkaError._FAIL, "acknowledged without an offset")))
        else:
            self.offsets[index] = offset


def produce(client: Producer, records: Sequence[NewRecord], reports: Reports, deadline: float) -> None:
    """Hand all records over, waiting for room in the client's queue. Raises `SendRefused`, `LogUnavailable`."""
    send = client.produce
    for index, (topic, partition, key, value, headers) in enumerate(records):
        report = reports.expect(index)
        while True:
            try:
                if headers:
                    send(topic, value, key, partition, report, headers=list(headers))
                else:  # nearly all, and a name costs more than a place
                    send(topic, value, key, partition, report)
                break
            except BufferError:
                client.poll(_ROOM_SECONDS)
                if time.monotonic() > deadline:
                    reports.withdraw()
                    raise LogUnavailable("the client's queue stays full: the brokers do not take records") from None
            except (KafkaException, TypeError, ValueError) as error:
                reports.withdraw()
                raise refused_by_client(error, index, f"{topic}[{partition}]") from error
    client.poll(0)
