"""What the parts of a worker share: the app, the codec, the clock, names, and settings."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from streams.authoring.app import App, AppDefinitions
from streams.clock import Clock
from streams.kernel.codec import Codec
from streams.kernel.driver import Driver
from streams.log.port import Headers, TopicInfo
from streams.observer import Observer
from streams.runtime.guard import DriveGuard, DriveTooLong
from streams.runtime.host import Host
from streams.runtime.marks import marks_of
from streams.runtime.partition import Hot
from streams.runtime.settings import WorkerSettings
from streams.runtime.skew import ClockGuard
from streams.wire.topics import Topics

__all__ = ["Engine"]

_CLOSE_TRIES = 3


class Engine:
    """The fixed surroundings of a worker, and its cache of live coroutines."""

    def __init__(
        self,
        app: App,
        topics: Topics,
        codec: Codec,
        *,
        owner: str,
        settings: WorkerSettings,
        observer: Observer,
        clock: Clock,
        host: Host,
    ) -> None:
        self.app = app
        self.definitions = AppDefinitions(app)
        self.topics = topics
        self.codec = codec
        self.owner = owner
        self.settings = settings
        self.observer = observer
        self.clock = clock
        self.host = host
        self.entropy = host.random_bytes(16)
        self.partitions = settings.partitions
        """The partition count of the topics as they are."""
        self.publishes = True
        """Whether effects leave; those of a copied app may not."""
        self.marks: Headers = ()
        """What leases are to remember of the topics."""
        self.risks: set[str] = set()
        """What was said of the topics at the start, and need not be said again."""
        self.mirrored = False
        """Whether a local store holds the checkpoints, so that runs may leave memory."""
        self.stub_seconds = settings.stub_kept_seconds
        self.guard = DriveGuard(settings.drive_seconds)
        self.skew = ClockGuard(topics, settings, observer, clock)
        self._lives: OrderedDict[Hot, None] = OrderedDict()
        self._unclosed: list[Driver] = []

    def know(self, found: Mapping[str, TopicInfo]) -> None:
        """Take in the topics as they are."""
        commands = found[self.topics.commands]
        self.partitions = commands.partitions
        self.stub_seconds = self.settings.stub_seconds(commands.config)
        self.marks = marks_of(self.topics, found)

    def hold(self, hot: Hot) -> None:
        """Keep a coroutine that a turn moves on out of the choice of the least recently used, until it is touched."""
        self._lives.pop(hot, None)

    def touch(self, hot: Hot) -> None:
        """Note that a run's coroutine was used; the least recently used one beyond the bound leaves memory."""
        if hot.live is None:
            self._lives.pop(hot, None)
            return
        self._lives[hot] = None
        self._lives.move_to_end(hot)
        while len(self._lives) > self.settings.live_runs_max:
            oldest, _ = self._lives.popitem(last=False)
            self.evict(oldest)

    def evict(self, hot: Hot) -> None:
        """Drop a run's coroutine; its journal can build it again."""
        self._lives.pop(hot, None)
        if hot.live is not None:
            live, hot.live = hot.live, None
            self.close(live)

    def close(self, live: Driver) -> None:
        """Close coroutines; clean-up code that does not end is broken off, and at last left alone."""
        with self.guard.hidden():
            for _ in range(_CLOSE_TRIES):
                try:
                    with self.guard.timed():
                        live.close()
                except DriveTooLong:
                    continue
                return
        self._unclosed.append(live)  # the collector would close it again, outside any guard
