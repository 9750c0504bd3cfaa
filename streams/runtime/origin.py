"""Whether an app is a copy made by `streams replay reprocess`, and which topics it has then."""

from __future__ import annotations

from collections.abc import Iterable

from streams.errors import LogUnavailable, UsageError
from streams.log.port import Log, TopicPartition
from streams.wire.origin import Origin, decode_origin, origin_topic
from streams.wire.topics import Topics, topics_of

__all__ = ["actual_topics", "read_origin"]

_READS_MAX = 600
_READ_SECONDS = 0.1


async def read_origin(log: Log, app: str) -> Origin | None:
    """The origin of the app; None for one that is no copy.

    Raises UsageError where the topic is there without its record: whether effects may leave is not known then.
    """
    topic = origin_topic(app)
    if topic not in await log.describe_topics([topic]):
        return None
    place = TopicPartition(topic, 0)
    span = await log.span(topic, 0)
    if span.end == span.start:
        raise UsageError(f"{topic} is empty, so app {app} is a copy that was hardly begun: reprocess once more")
    reader = log.reader({place: span.start})
    found: Origin | None = None
    try:
        for _ in range(_READS_MAX):
            if reader.position(place) >= span.end:
                return found
            for record in await reader.read(10, _READ_SECONDS):
                found = decode_origin(record.value or b"")
    finally:
        await reader.close()
    raise LogUnavailable(f"{topic} could not be read to its end; try again")


async def actual_topics(log: Log, app: str, effects: Iterable[str]) -> tuple[Topics, Origin | None]:
    """The topics that the app works with: a copy whose effects are off has none for them."""
    origin = await read_origin(log, app)
    return topics_of(app, effects if origin is None or origin.publishes else ()), origin
