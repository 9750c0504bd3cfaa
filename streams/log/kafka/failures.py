"""Sorts the errors of Kafka's client by what the caller must do, and keeps the client's own words."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException

from streams.errors import (
    CommitAborted,
    Fenced,
    LogDamaged,
    LogError,
    LogUnavailable,
    SendRefused,
    StreamsError,
    UsageError,
)

__all__ = [
    "FENCED",
    "MISSING",
    "NAMELESS",
    "OLDEST",
    "PURGED",
    "RAISED",
    "STALE",
    "UNSTABLE",
    "UNWRITABLE",
    "code_of",
    "error_of",
    "refused_by_client",
    "run_code",
    "sort",
    "words",
]

FENCED = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.PRODUCER_FENCED,
    }
)
"""Somebody initialised under the same id, or the broker gave up on the transaction: F22 says to treat both alike."""

STALE = frozenset(
    {
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.UNKNOWN_MEMBER_ID,
    }
)
"""The group has moved on since the snapshot."""

UNWRITABLE = frozenset(
    {
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.INVALID_RECORD,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.POLICY_VIOLATION,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
    }
)
"""No repeat could ever write the record."""

PURGED = frozenset({KafkaError._PURGE_INFLIGHT, KafkaError._PURGE_QUEUE})
"""The client has thrown a record away because of something else that has failed."""

MISSING = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.TOPIC_EXCEPTION,
    }
)
_TOO_LARGE = frozenset({KafkaError.INVALID_MSG_SIZE, KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
UNSTABLE = KafkaError.UNSTABLE_OFFSET_COMMIT

_RIGHTS = {
    # Create is asked for by topics, IdempotentWrite by a producer whose user may write to no topic at all.
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: (
        "Write (and Create where they are missing) on topics that begin with `APP.`"
    ),
    KafkaError.GROUP_AUTHORIZATION_FAILED: "Read on the group APP.workers",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: (
        "Describe, DescribeConfigs, Read and Write (and Create where they are missing) on topics that begin with `APP.`"
    ),
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Describe and Write on transactional ids that begin with `APP/`",
}
"""What an app called APP needs, by the error that says that it is missing."""

_UNKNOWN_USER = frozenset({KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._AUTHENTICATION})

OLDEST = "2.8"
"""The first version of Kafka whose topics have ids; the fence of commits (KIP-447) came with 2.5."""
_TOO_OLD = frozenset({KafkaError.UNSUPPORTED_VERSION, KafkaError._UNSUPPORTED_FEATURE})
_OUTSIDE = frozenset({KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET})


RAISED = (KafkaException, SystemError)
"""What a call of the client raises. A fatal error that comes while callbacks run arrives wrapped in SystemError."""


NAMELESS = KafkaError._FATAL
"""The client broke for good and its words were lost; any further call says them again."""


def error_of(raised: BaseException) -> KafkaError:
    """What the exception is about. One that is no error of the client goes on as it is.

    A SystemError may have lost its cause on the way through callbacks: it becomes a fatal error of code `NAMELESS`.
    """
    cause: BaseException | None = raised
    while isinstance(cause, SystemError):  # one for each callback that the error has passed
        cause = cause.__cause__ or cause.__context__
    if cause is None:
        return KafkaError(NAMELESS, str(raised), fatal=True)
    if not isinstance(cause, KafkaException):
        raise raised
    error = cause.args[0]
    assert isinstance(error, KafkaError)
    return error


def code_of(raised: KafkaException) -> int:
    """The code of what the exception is about."""
    return error_of(raised).code()


def words(error: KafkaError) -> str:
    """The client's own words with the name to search for."""
    return f"{error.str()} ({error.name()})"


def sort(error: KafkaError, doing: str) -> StreamsError:
    """The error of `streams` for what happened outside the end of a transaction: nothing was committed."""
    code, text = error.code(), f"{doing}: {words(error)}"
    if code in FENCED:
        return Fenced(text)
    if code in STALE:
        return CommitAborted(text)
    if code in _RIGHTS:
        return UsageError(f"{text}; this user needs the right at the broker: {_RIGHTS[code]}")
    if code in _UNKNOWN_USER:
        return UsageError(f"{text}; check sasl.username and sasl.password")
    if code in _TOO_OLD:
        return UsageError(f"{text}; streams needs brokers of version {OLDEST} or later")
    if code in UNWRITABLE:
        return SendRefused(text, code=run_code(error))
    if code in _OUTSIDE:
        return LogDamaged(text)
    if error.txn_requires_abort():
        return CommitAborted(text)
    return LogUnavailable(text) if error.retriable() or not error.fatal() else LogError(text)


def run_code(error: KafkaError) -> str:
    """The code with which a run is blocked whose record cannot be written."""
    if error.code() in MISSING:
        return "TOPIC_MISSING"
    return "VALUE_TOO_LARGE" if error.code() in _TOO_LARGE else "VALUE_NOT_STORABLE"


def refused_by_client(raised: Exception, index: int, place: str) -> SendRefused:
    """A record that the client itself does not take."""
    error = error_of(raised) if isinstance(raised, KafkaException) else None
    said = words(error) if error is not None else str(raised)
    code = run_code(error) if error is not None else "VALUE_NOT_STORABLE"
    return SendRefused(f"record {index} for {place} is not taken by Kafka's client: {said}", index, code=code)
