"""Outside calls: claim what is ready, call the handlers, settle what they came to, keep the claims meanwhile."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from streams.effects.batch import GRANTED
from streams.effects.port import Claim, Entry, Settlement, Status, Verdict, Word
from streams.effects.subscriber.ahead import Ahead, with_followers
from streams.effects.subscriber.call import Call
from streams.effects.subscriber.outcomes import End, settlement_of
from streams.effects.subscriber.settings import LEASE_SHARE
from streams.runtime import crash

if TYPE_CHECKING:
    from streams.effects.subscriber.station import Station
    from streams.effects.subscriber.window import Message, Window

__all__ = ["OutsideCalls"]

_SECOND_US = 1_000_000
_SOONEST_SECONDS = 0.05
_END_SECONDS = 1.0


class _Ended:
    """A claim that has come to something."""

    __slots__ = ("entry", "message", "settlement")

    def __init__(self, message: Message, entry: Entry, settlement: Settlement) -> None:
        self.message = message
        self.entry = entry
        self.settlement = settlement


class OutsideCalls:
    """Claims durably before any handler is called, so that a crash leaves a trace that is looked up."""

    def __init__(self, station: Station) -> None:
        self._station = station
        self._ahead = Ahead(station)
        self._calls: dict[Message, Call] = {}
        self._asking = 0
        self._begin_until = 0.0
        """After this nothing is begun under the claims that were asked for last."""
        self._was_late = False
        self._ended: deque[_Ended] = deque()
        self._settling = 0
        self._to_settle = asyncio.Event()
        self._answered: set[str] = set()
        """Claims that the ledger has told of, until they are settled: others of this owner were lost on their way."""

    def loops(self) -> Sequence[Callable[[], Awaitable[None]]]:
        """The settlements, and the leases."""
        return (self._settle_loop, self._lease_loop)

    @property
    def busy(self) -> bool:
        """Whether something is claimed."""
        return bool(self._calls or self._asking or self._ended or self._settling)

    # -- claims --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Claim for ever."""
        station, parts = self._station, self._station.parts
        while True:
            await station.wake.wait()
            batch = self._take()
            if not batch:
                station.wake.clear()
                continue
            self._asking = len(batch)
            if self._ahead.rewinding:
                batch = await self._without_known(batch)
            if batch:
                verdicts = await parts.ask_ledger(lambda: self._claim(batch))  # noqa: B023 - awaited here
                self._asking = 0
                await self._act(batch, verdicts)
            self._asking = 0
            await asyncio.sleep(0)

    async def _claim(self, batch: list[Message]) -> list[Verdict]:
        parts = self._station.parts
        lease = parts.settings.lease_seconds
        self._begin_until = parts.clock.monotonic() + lease * LEASE_SHARE
        return await parts.ledger.claim([message.ask for message in batch], parts.owner, lease)

    def _take(self) -> list[Message]:
        station, settings = self._station, self._station.parts.settings
        if station.closing:
            return []
        slots = settings.concurrency if station.subscription.is_async else min(settings.concurrency, settings.threads)
        room = min(settings.claims_max, slots - len(self._calls))
        batch: list[Message] = []
        while station.ready and len(batch) < room:
            message = station.ready.popleft()
            if message.window.open and station.hold(message):
                batch.append(message)
        return batch

    async def _without_known(self, batch: list[Message]) -> list[Message]:
        """Pass over what is known of these and of those behind them; return what is the next of its run."""
        station, room = self._station, self._station.parts.settings.claims_max - len(batch)
        looked_at: list[Message] = []
        for first in batch:
            found = with_followers(station, first, room)
            room -= len(found) - 1
            looked_at += found
        left = await self._ahead.without_known(looked_at)
        ready: list[Message] = []
        for message in left:
            if message.window.queue_of(message)[0] is message:
                ready.append(message)
            else:
                station.release(message)
        return ready

    async def _act(self, batch: list[Message], verdicts: list[Verdict]) -> None:
        station = self._station
        waits: list[tuple[Message, Verdict]] = []
        known = 0
        for message, verdict in zip(batch, verdicts, strict=True):
            if verdict.word in GRANTED:
                self._answered.add(verdict.entry.claim)
                self._begin(message, verdict)
            elif verdict.word is Word.WAIT:
                waits.append((message, verdict))
            else:
                known += verdict.word is not Word.CONFLICT
                station.known(message, verdict)
        self._ahead.told(len(batch), known)
        if waits:
            await self._wait(waits)

    def _begin(self, message: Message, verdict: Verdict) -> None:
        station = self._station
        late = station.parts.clock.monotonic() > self._begin_until  # frozen meanwhile: others may be about to take over
        if late:
            self._tell_late()
        if late or station.closing or not message.window.open:
            self._give_back(message, verdict)
            return
        crash.passing("effect.claimed", station.name)
        call = Call(station.parts, station.subscription, message, verdict, self._call_ended)
        self._calls[message] = call
        call.start()

    def _tell_late(self) -> None:
        if not self._was_late:  # said once: where it is so always, nothing would ever be begun, in silence
            self._was_late = True
            lease = self._station.parts.settings.lease_seconds
            self._station.parts.observer.message(
                f"effect {self._station.name}: claims came back when half of their lease of {lease:g} s was over, so "
                "nothing was begun under them: the ledger is slow, or this process was frozen. Where it stays so, give "
                "claims a longer lease"
            )

    def _give_back(self, message: Message, verdict: Verdict) -> None:
        """It was not begun: whoever asks next may begin at once."""
        entry = verdict.entry
        status = Status.UNCERTAIN if entry.looks else Status.FAILED
        back = Settlement(entry.key, entry.claim, status, error=entry.error, due_in=0.0, returned=True)
        self._put(_Ended(message, entry, back))

    async def _wait(self, waits: list[tuple[Message, Verdict]]) -> None:
        station, parts = self._station, self._station.parts
        now = await parts.ask_ledger(parts.ledger.now_us)
        for message, verdict in waits:
            entry = verdict.entry
            if entry.status is Status.CLAIMED and entry.owner == parts.owner and entry.claim not in self._answered:
                # The answer to this claim was lost on its way, so nothing was begun under it.
                self._answered.add(entry.claim)
                self._give_back(message, verdict)
                continue
            station.release(message)
            seconds = max(_SOONEST_SECONDS, (verdict.until - now) / _SECOND_US)
            if entry.status is Status.CLAIMED:  # it may end before its lease does
                seconds = min(seconds, parts.settings.ask_again_seconds)
            station.again(message, seconds)

    # -- ends ----------------------------------------------------------------------------------------------------

    def _call_ended(self, call: Call, end: End | None) -> None:
        message = call.message
        del self._calls[message]
        if end is None or call.lost:  # one that was left keeps its claim, which is known to have been begun
            if call.lost:
                self._answered.discard(call.entry.claim)
            self._station.release(message)
            self._station.again(message, 0.0)
            return
        settlement = settlement_of(self._station.subscription, call.entry, end)
        self._put(_Ended(message, call.entry, settlement))

    def _put(self, ended: _Ended) -> None:
        self._ended.append(ended)
        self._to_settle.set()

    async def _settle_loop(self) -> None:
        station, parts = self._station, self._station.parts
        while True:
            await self._to_settle.wait()
            self._to_settle.clear()
            while self._ended:
                count = min(len(self._ended), parts.settings.claims_max)
                batch = [self._ended.popleft() for _ in range(count)]
                self._settling = count
                settlements = [ended.settlement for ended in batch]
                held = await parts.ask_ledger(lambda: parts.ledger.settle(settlements))  # noqa: B023 - awaited here
                self._settling = 0
                for ended, ours in zip(batch, held, strict=True):
                    self._answered.discard(ended.entry.claim)
                    if ours:
                        station.settled(ended.message, ended.settlement, ended.entry)
                    else:
                        self._lost(ended.message)
                await asyncio.sleep(0)

    def _lost(self, message: Message) -> None:
        """The claim was taken over, or this very settlement is written already and its answer was lost: ask again."""
        station, ask = self._station, message.ask
        station.parts.observer.claim_lost(station.name, ask.effect_id, ask.run_id)
        station.release(message)
        station.again(message, 0.0)

    # -- leases --------------------------------------------------------------------------------------------------

    async def _lease_loop(self) -> None:
        parts = self._station.parts
        seconds = parts.settings.lease_seconds
        while True:
            await asyncio.sleep(seconds / 3)
            held = [(call.message, call.entry) for call in self._calls.values()]
            held += [(ended.message, ended.entry) for ended in self._ended]
            for start in range(0, len(held), parts.settings.claims_max):
                part = held[start : start + parts.settings.claims_max]
                claims = [Claim(entry.key, entry.claim) for _, entry in part]
                kept = await parts.ask_ledger(lambda: parts.ledger.extend(claims, seconds))  # noqa: B023 - awaited here
                for (message, entry), still in zip(part, kept, strict=True):
                    call = self._calls.get(message)
                    if not still and call is not None and call.entry is entry and not call.lost:
                        self._station.parts.observer.claim_lost(
                            self._station.name, message.ask.effect_id, message.ask.run_id
                        )
                        call.lose()

    async def end(self) -> None:
        """Let handlers that were cancelled come to their end, while what they use is still open."""
        stopping = [task for call in self._calls.values() if (task := call.stopping) is not None]
        if stopping:
            await asyncio.wait(stopping, timeout=_END_SECONDS)

    def close(self, window: Window) -> None:
        """What still runs for a partition that was given up is told to stop; its claims go to the next owner then."""
        for call in [call for call in self._calls.values() if call.message.window is window]:
            call.leave()
