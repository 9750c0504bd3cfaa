"""Works the commands of an app off once more, as another app: prepares its topics, copies, and compares the results."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from streams.client.reading import Progress
from streams.errors import Refused, UsageError
from streams.log.port import Log, NewRecord, TopicInfo, TopicSpec
from streams.ops.replay.copying import IDLE_SECONDS, Copied, Copier
from streams.ops.replay.places import offset_at, read_time
from streams.runtime.origin import read_origin
from streams.runtime.topics import ensure_topics
from streams.wire.origin import ORIGIN_CONFIG, Origin, encode_origin, origin_topic
from streams.wire.topics import topics_of

__all__ = ["Reprocessed", "Wanted", "reprocess"]


class Wanted(NamedTuple):
    """What is to be copied: from `start` or a time on, until a time or now; of these runs, or of all."""

    from_: str = "start"
    until: str = ""
    runs: tuple[str, ...] = ()
    publishes: bool = False


class Reprocessed(NamedTuple):
    """What was copied, and the origin that the copy has."""

    origin: Origin
    copied: Copied
    partitions: int


async def reprocess(
    log: Log,
    source: str,
    target: str,
    effects: Collection[str],
    wanted: Wanted,
    *,
    now_us: int,
    partitions: int | None = None,
    rate: float | None = None,
    idle_seconds: float = IDLE_SECONDS,
    progress: Progress | None = None,
) -> Reprocessed:
    """Copy the commands of app `source` into the new app `target`; a worker of that name works them off meanwhile.

    Answers and cancels wait until their runs have come so far. `partitions` is the count of the new topics, by default
    that of the source. Begun again, it goes on.

    Raises:
        UsageError: there is no such app, or the target is no copy of it.
        Refused: the target is another copy than the one that is wanted now.
        CopyInterrupted: the same call again goes on.
    """
    if source == target:
        raise UsageError(f"the copy needs a name of its own, not {target!r}: it gets topics of that name")
    old = topics_of(source)
    found = await log.describe_topics([old.commands])
    if old.commands not in found:
        raise UsageError(f"no app {source!r} has topics in {log.url}")
    origin = await _origin(log, found[old.commands], source, target, wanted, now_us)
    new = topics_of(target, effects if origin.publishes else ())
    topics = await ensure_topics(log, new, partitions or found[old.commands].partitions)
    count = topics[new.commands].partitions
    copied = await Copier(log, old, new, origin, count, rate=rate, idle_seconds=idle_seconds).run(progress)
    return Reprocessed(origin, copied, count)


async def _origin(log: Log, commands: TopicInfo, source: str, target: str, wanted: Wanted, now_us: int) -> Origin:
    """The origin as it was written when the copy was begun; written now where this is the beginning.

    It comes before all other topics, so that no worker ever finds the new app without it.
    """
    topic = origin_topic(target)
    asked = Origin(
        source, commands.id, wanted.publishes, (), (), tuple(sorted(wanted.runs)), wanted.from_, wanted.until, now_us
    )
    if topic in await log.describe_topics([topic]) and (await log.span(topic, 0)).end > 0:
        begun = await read_origin(log, target)
        if begun is not None and not begun.same_request(asked):
            raise Refused("OTHER_COPY", _other(target, begun))
        if begun is not None:
            return begun
    plans = topics_of(target)
    if await log.describe_topics([plans.commands, plans.events, plans.leases]):
        raise UsageError(f"app {target!r} has topics already and is no copy of {source!r}; choose a name that is free")
    begun = await _placed(log, commands, asked, wanted, now_us)
    await log.create_topics([TopicSpec(topic, 1, ORIGIN_CONFIG)])
    await log.append([NewRecord(topic, 0, target.encode(), encode_origin(begun))])
    return begun


def _other(target: str, begun: Origin) -> str:
    runs = f", the runs {', '.join(begun.runs[:10])}" if begun.runs else ""
    until = begun.wanted_until or "the end of that moment"
    effects = "on" if begun.publishes else "off"
    return (
        f"app {target!r} was begun as a copy of {begun.app!r} from {begun.wanted_from} until {until}{runs}, with "
        f"effects {effects}. A copy is finished as it was begun; choose another name for another one"
    )


async def _placed(log: Log, commands: TopicInfo, asked: Origin, wanted: Wanted, now_us: int) -> Origin:
    """The offsets that the times stand for now: a copy that is begun again must have the same ones."""
    since = None if wanted.from_ == "start" else read_time(wanted.from_, now_us)
    until = read_time(wanted.until, now_us) if wanted.until else None
    starts, ends = [], []
    for number in range(commands.partitions):
        span = await log.span(commands.name, number)
        start = span.start if since is None else await offset_at(log, commands.name, number, span, since)
        end = span.end if until is None else await offset_at(log, commands.name, number, span, until)
        starts.append(start)
        ends.append(max(start, end))
    return asked._replace(start=tuple(starts), end=tuple(ends))
