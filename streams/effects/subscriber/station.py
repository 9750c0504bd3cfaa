"""The subscriber of one effect: its membership, its windows, and the way of a message from the poll to the commit."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from streams.authoring.subscriber import Subscription
from streams.deadline import Deadline
from streams.effects.asks import KEY_CONFLICT, Unreadable, read_ask
from streams.effects.port import Entry, Key, Settlement, Status, Verdict, Word
from streams.effects.subscriber.letters import Letters, outcome_of, owes
from streams.effects.subscriber.markers import Markers
from streams.effects.subscriber.outcomes import is_over
from streams.effects.subscriber.owning import Owning
from streams.effects.subscriber.parts import Parts, done_before
from streams.effects.subscriber.polling import Polling
from streams.effects.subscriber.publishing import Publishing
from streams.effects.subscriber.window import Message, Stage, Window
from streams.kernel.bodies import Failure
from streams.log.port import Member, Record
from streams.runtime import crash

__all__ = ["Station"]

_GRACE_SECONDS = 1.0
_MARKERS_SECONDS = 2.0


class Work(Protocol):
    """What takes ready messages and carries them out."""

    async def run(self) -> None:
        """Work for ever."""

    def loops(self) -> Sequence[Callable[[], Awaitable[None]]]:
        """What has to run beside it."""

    def close(self, window: Window) -> None:
        """Let go of what is carried out for a partition."""

    async def end(self) -> None:
        """Wait a moment for what was told to stop."""

    @property
    def busy(self) -> bool:
        """Whether something is not settled yet."""


class Station:
    """Serves one effect of an app."""

    def __init__(
        self, parts: Parts, subscription: Subscription[Any, Any], work: Callable[[Station], Work], *, strict: bool
    ) -> None:
        self.parts = parts
        self.subscription = subscription
        self.name = subscription.effect.name
        self.topic = parts.topics.effect(self.name)
        self.letters = Letters(parts.topics, self.name)
        self.ready: deque[Message] = deque()
        self.wake = asyncio.Event()
        """Something is ready, or something that is ready may have room now."""
        self.closing = False
        """Nothing new is begun."""
        self.held: set[Key] = set()
        """Keys of the ledger that a message of this process is asked or carried out under."""
        self._blocked: dict[Key, list[Message]] = {}
        self.owning = Owning(self, strict=strict)
        self.polling = Polling(self)
        self.publishing = Publishing(self)
        self.markers = Markers(self)
        self.work = work(self)
        self.member: Member

    @property
    def windows(self) -> dict[int, Window]:
        """The partitions that the group has given to this subscriber."""
        return self.owning.windows

    # -- life ----------------------------------------------------------------------------------------------------

    async def serve(self, stopping: asyncio.Event) -> None:
        """Enter the group and work until `stopping` is set; then finish what runs, within the bound, and leave."""
        parts = self.parts
        self.member = parts.log.member(parts.topics.subscribers(self.name), self.topic, client_id=parts.owner)
        try:
            if await done_before(stopping, self._enter()):
                await self._work(stopping)
        finally:
            await self.publishing.close()

    async def _enter(self) -> None:
        await self.parts.at_start(self.publishing.open)
        await self.parts.at_start(lambda: self.member.join(self.owning))

    async def _work(self, stopping: asyncio.Event) -> None:
        publishing, work = self.publishing, self.work
        runs = (self.polling.run, publishing.run, publishing.note, work.run, *work.loops(), self.markers.run)
        loops = [asyncio.ensure_future(run()) for run in runs]
        for loop in loops:
            self.parts.watch(loop)
        try:
            await stopping.wait()
            self.closing = True
            if not self.parts.failed:
                await self._drain()
        finally:
            self.closing = True
            self.polling.on = False
            try:
                await self._leave(loops[0])
            finally:
                for loop in loops:
                    loop.cancel()
                await asyncio.gather(*loops, return_exceptions=True)
                await self.owning.end()
                await self.work.end()
                if not self.parts.failed:
                    await self.publishing.note_last()

    async def _drain(self) -> None:
        """Let handlers finish; what they bring is committed as usual."""
        for window in list(self.windows.values()):
            await self.member.pause(window.number)
        deadline = Deadline(self.parts.clock, self.parts.settings.stop_seconds)
        while self.busy and not deadline.over:  # noqa: ASYNC110 - only at a stop, and bounded
            await asyncio.sleep(0.005)
        with suppress(TimeoutError):
            async with asyncio.timeout(min(_MARKERS_SECONDS, deadline.left())):
                await self.markers.pass_over()

    async def _leave(self, polling: asyncio.Future[None]) -> None:
        seconds = self.parts.settings.drain_seconds + _GRACE_SECONDS
        deadline = Deadline(self.parts.clock, seconds)
        await asyncio.wait([polling], timeout=deadline.left())
        try:
            # A poll that is still under way may be in the middle of a hand-over: never leave beside it.
            if not polling.done():
                raise TimeoutError
            async with asyncio.timeout(deadline.left()):
                await self.member.close()
        except TimeoutError:
            self.parts.observer.message(
                f"the subscriber of {self.name} ends without having left its group: it took longer than {seconds:g} s. "
                "The partitions move to others when its session is over"
            )

    @property
    def busy(self) -> bool:
        """Whether something runs, waits for the ledger, or waits for a commit."""
        return self.work.busy or self.publishing.busy

    # -- from the poll -------------------------------------------------------------------------------------------

    def accept(self, records: Iterable[Record]) -> None:
        """Take in what a poll has brought."""
        app, name, codec, windows = self.parts.app.name, self.name, self.parts.codec, self.windows
        for record in records:
            window = windows.get(record.partition)
            if window is None or not window.open or record.offset < window.position:
                continue
            message = Message(window, record)
            window.add(message)
            crash.passing("effect.taken", name)
            try:
                message.effect, message.ask = read_ask(app, name, record, codec)
            except Unreadable as unreadable:
                self._unreadable(message, record, unreadable)
                continue
            if window.line_up(message):
                self.ready.append(message)
        self.wake.set()

    def _unreadable(self, message: Message, record: Record, found: Unreadable) -> None:
        records = self.letters.refusal(record, found.message, found.code, found.reason, self.parts.clock.now_us())
        message.window.finish(message, records, None)
        place = f"{record.topic}[{record.partition}]@{record.offset}"
        run_id = found.message.run_id if found.message is not None else ""
        self.parts.observer.effect_refused(self.name, place, run_id, found.code, found.reason)
        self.publishing.wake.set()

    # -- to the ledger -------------------------------------------------------------------------------------------

    def hold(self, message: Message) -> bool:
        """Take the message's key of the ledger; where another message has it, this one waits for its release."""
        key = message.ask.key
        if key in self.held:
            self._blocked.setdefault(key, []).append(message)
            return False
        self.held.add(key)
        message.asked = True
        message.window.asked += 1
        return True

    def release(self, message: Message) -> None:
        """The message is not carried out any more, whatever it came to."""
        message.asked = False
        message.window.asked -= 1
        key = message.ask.key
        self.held.discard(key)
        if key in self._blocked:
            self.ready.extend(self._blocked.pop(key))
        self.wake.set()

    def again(self, message: Message, seconds: float) -> None:
        """Make a message ready later, once no earlier one of its run is before it."""
        window = message.window
        if window.closed or window.queue_of(message)[0] is not message:
            return
        if seconds <= 0:
            self.ready.append(message)
            self.wake.set()
            return

        def due() -> None:
            window.timers.discard(timer)
            self.ready.append(message)
            self.wake.set()

        timer = asyncio.get_running_loop().call_later(seconds, due)
        window.timers.add(timer)

    # -- what it came to -----------------------------------------------------------------------------------------

    def known(self, message: Message, verdict: Verdict) -> None:
        """The ledger has the outcome already, or the message asks for nothing."""
        word, entry = verdict.word, verdict.entry
        self.release(message)
        if word is Word.STALE or (word is Word.DONE and message.ask.attempt < 1):
            self._finish(message, [], None)
        elif word is Word.CONFLICT:
            self._conflict(message, entry)
        elif owes(message.ask, entry) and outcome_of(message.ask, entry.status) not in self.publishing.pending:
            self._conclude(message, entry.status, entry.response, entry.error)
        else:
            self._finish(message, [], None)

    def settled(self, message: Message, settlement: Settlement, entry: Entry) -> None:
        """An outcome of this subscriber is in the ledger."""
        crash.passing("effect.settled", self.name)
        self.parts.tell(message.ask, settlement, entry)
        self.release(message)
        if is_over(settlement):
            self._conclude(message, settlement.status, settlement.response, settlement.error)
        else:
            self.again(message, settlement.due_in or 0.0)

    def _conclude(self, message: Message, status: Status, response: bytes | None, error: Failure | None) -> None:
        record = message.record
        if record is None or message.window.closed:
            return
        now = self.parts.clock.now_us()
        records = self.letters.of_outcome(record, message.effect, status, response, error, now)
        self._finish(message, records, outcome_of(message.ask, status))

    def _conflict(self, message: Message, entry: Entry) -> None:
        record = message.record
        assert record is not None
        reason = (
            f"the idempotency key {message.ask.key.key!r} stands for another request already, made by "
            f"{entry.effect_id}: this one is never carried out. Give each request its own key"
        )
        now = self.parts.clock.now_us()
        self._finish(message, self.letters.refusal(record, message.effect, KEY_CONFLICT, reason, now), None)
        self.parts.observer.effect_refused(self.name, message.ask.effect_id, message.ask.run_id, KEY_CONFLICT, reason)

    def _finish(self, message: Message, records: list[Any], outcome: Any) -> None:
        window = message.window
        if window.closed:
            return
        if records and outcome is not None:
            self.publishing.pending.add(outcome)
        follower = window.finish(message, records, outcome)
        if follower is not None and not follower.asked:
            self.ready.append(follower)
            self.wake.set()
        self.publishing.wake.set()

    # -- ends of windows -----------------------------------------------------------------------------------------

    def close(self, window: Window) -> None:
        """Forget a partition: nothing of it is published here any more."""
        for timer in window.timers:
            timer.cancel()
        window.timers.clear()
        # Also those of a commit under way: if it fails, nobody else makes good for them, and the group may give the
        # partition back to this very subscriber. Should it succeed, they may come twice, which harms nothing.
        left = (message for message in window.messages if message.stage in (Stage.FINISHED, Stage.LEAVING))
        self.publishing.pending.difference_update(message.outcome for message in left if message.outcome)
        self.work.close(window)
