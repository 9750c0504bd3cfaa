"""Where the commands of an app were copied from, if they were: the record that says whether its effects are published.

It lies in a topic of its own, `APP.origin`, which no other app has. Workers obey it, so nobody has to remember a flag.
The fields are a wire format: never change one; see decision 0013.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from streams.errors import WireError

__all__ = ["ORIGIN_CONFIG", "Origin", "decode_origin", "encode_origin", "origin_topic"]

ORIGIN_CONFIG = {"message.timestamp.type": "LogAppendTime", "cleanup.policy": "delete", "retention.ms": "-1"}


class Origin(NamedTuple):
    """A copy of commands. `start` and `end` are the offsets of each source partition between which they were taken.

    `runs` names the runs that were wanted, all where it is empty; `wanted_from` and `wanted_until` are what was asked
    for in words, so that a copy that is begun again is known to be the same.
    """

    app: str
    topic_id: str
    publishes: bool
    start: tuple[int, ...]
    end: tuple[int, ...]
    runs: tuple[str, ...] = ()
    wanted_from: str = "start"
    wanted_until: str = ""
    at: int = 0

    def same_request(self, other: Origin) -> bool:
        """Whether both ask for the same copy, whenever they were asked."""
        return all(getattr(self, name) == getattr(other, name) for name in _REQUEST)


_REQUEST = ("app", "topic_id", "publishes", "runs", "wanted_from", "wanted_until")


def origin_topic(app: str) -> str:
    """The topic of the record. Never change it."""
    return f"{app}.origin"


def encode_origin(origin: Origin) -> bytes:
    """As JSON, for people too."""
    return json.dumps(origin._asdict(), ensure_ascii=False).encode()


def decode_origin(data: bytes) -> Origin:
    """Raises WireError."""
    try:
        found = json.loads(data)
        lists = {name: tuple(found[name]) for name in ("start", "end", "runs")}
        return Origin(**{**found, **lists})
    except (ValueError, TypeError, KeyError) as error:
        raise WireError(f"the origin of the app cannot be read: {error}") from error
