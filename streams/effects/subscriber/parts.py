"""What the parts of a subscriber share: the app, the log, the ledger, the codec, the clock, names, and settings."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from streams.authoring.app import App
from streams.clock import Clock
from streams.deadline import Deadline
from streams.effects.port import Ask, Entry, Ledger, Settlement, Status
from streams.effects.subscriber.settings import SubscriberSettings
from streams.errors import LedgerUnavailable, LogUnavailable
from streams.kernel.bodies import Failure
from streams.kernel.codec import Codec
from streams.log.port import Log
from streams.observer import Observer
from streams.runtime.host import Host
from streams.wire.topics import Topics

__all__ = ["Parts", "done_before"]

T = TypeVar("T")

_FIRST_PAUSE_SECONDS = 0.1
_LOG_PAUSE_SECONDS = 0.5
_START_SECONDS = 60.0


class Parts:
    """The fixed surroundings of a subscriber. `owner` names it in the ledger and differs between any two processes."""

    def __init__(
        self,
        app: App,
        log: Log,
        ledger: Ledger,
        *,
        topics: Topics,
        codec: Codec,
        owner: str,
        settings: SubscriberSettings,
        observer: Observer,
        clock: Clock,
        host: Host,
        fail: Callable[[BaseException], None],
    ) -> None:
        self.app = app
        self.log = log
        self.ledger = ledger
        self.topics = topics
        self.codec = codec
        self.owner = owner
        self.settings = settings
        self.observer = observer
        self.clock = clock
        self.host = host
        self.fail = fail
        """Ends the whole subscriber because of something that no retry can mend."""
        self.failed = False
        """The subscriber ends because of an error: nothing is waited for."""
        self.resources: Any = None
        """What the app's lifespan yielded."""
        self._away = False

    def watch(self, task: asyncio.Future[Any]) -> None:
        """What no branch of a task knows is a mistake in the program: silent, what waits for it would hang."""
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Future[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    def tell(self, ask: Ask, settlement: Settlement, entry: Entry) -> None:
        """Let the observer know what an outcome, now in the ledger, has come to."""
        error = settlement.error or Failure("", "", "")
        about = (ask.key.operation, ask.effect_id, ask.run_id)
        if settlement.status is Status.DONE:
            self.observer.effect_done(*about, entry.deliveries)
        elif settlement.status is Status.PARKED:
            self.observer.effect_parked(*about, error.code, error.message)
        elif settlement.due_in is None:
            self.observer.effect_refused(*about, error.code, error.message)
        elif not settlement.returned:
            self.observer.effect_failed(*about, entry.deliveries, error.code, error.message, settlement.due_in)

    async def ask_ledger(self, call: Callable[[], Awaitable[T]]) -> T:
        """Ask until the ledger is there. It is said once that it is away, and once that it is back."""
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                answer = await call()
            except LedgerUnavailable as error:
                if not self._away:
                    self._away = True
                    self.observer.ledger_away(self.ledger.url, str(error))
                await asyncio.sleep(pause)
                pause = min(2 * pause, self.settings.ledger_pause_seconds)
            else:
                if self._away:
                    self._away = False
                    self.observer.ledger_back(self.ledger.url)
                return answer

    async def at_start(self, call: Callable[[], Awaitable[T]]) -> T:
        """Ask a log that is perhaps just being restarted, for a minute. Raises `LogUnavailable` after it."""
        return await self.ask_log(call, "the log cannot be reached, trying again", seconds=_START_SECONDS)

    async def ask_log(
        self, call: Callable[[], Awaitable[T]], text: str, *, seconds: float | None = None, pause: float | None = None
    ) -> T:
        """Ask until the log is there, and say once that it is not. Raises `LogUnavailable` after `seconds`."""
        deadline = None if seconds is None else Deadline(self.clock, seconds)
        said = False
        while True:
            try:
                return await call()
            except LogUnavailable as error:
                if deadline is not None and deadline.over:
                    raise
                if not said:
                    said = True
                    self.observer.message(f"{text}: {error}")
                await asyncio.sleep(_LOG_PAUSE_SECONDS if pause is None else pause)


async def done_before(stopping: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Do what a start needs, unless a stop is asked for meanwhile: then it is broken off. Whether it was done."""
    doing, stopped = asyncio.ensure_future(work), asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait({doing, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            await doing
            return True
        return False
    finally:
        doing.cancel()
        stopped.cancel()
        await asyncio.gather(doing, stopped, return_exceptions=True)
