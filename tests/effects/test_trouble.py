"""Bad records, a ledger that is away or of another version, a log that lost messages, and handlers in threads."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from streams import App, EffectContext, Found, Retry, TryAgain
from streams.effects.memory import MemoryLedger
from streams.effects.port import Status
from streams.errors import LedgerMismatch, LedgerUnavailable, LogDamaged, LogUnavailable, UsageError
from streams.log.port import Span
from streams.wire.headers import headers_of
from streams.wire.records import EffectMessage, encode_effect
from tests.effects.lab import Lab, virtual
from tests.effects.test_flow import mailing, runs_of


@dataclass
class Mail:
    to: str


GOOD = EffectMessage("r1@0/mails.9", "r1", "mails", b'"hi"', "key-9", 1, 1, "w", 1, "mails.9", 1)


# -- bad records -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (b"r1", b"\xff\xfe garbage", "effect"),
        (b"r1", b"", "effect"),
        (b"r1", None, "effect"),
        (b"r1", b'{"to": 1}', "effect"),
        (b"r1", encode_effect(GOOD)[:-4], "damaged"),
        (b"r1", GOOD._replace(effect="parcels"), "'parcels'"),
        (b"r2", GOOD, "not the id of its run"),
        (None, GOOD, "not the id of its run"),
        (b"r1", GOOD._replace(idempotency_key=""), "idempotency_key must not be empty"),
        (b"r1", GOOD._replace(idempotency_key="a\0b"), "idempotency_key must not hold control characters"),
        (b"r1", GOOD._replace(effect_id="x" * 2_000), "effect_id takes 2,000 bytes"),
        (b"r1", GOOD._replace(op=""), "names no op"),
        (b"r1", GOOD._replace(at=2**62), "not in microseconds since 1970"),
        (b"r1", GOOD._replace(at=-1), "not in microseconds since 1970"),
    ],
)
def test_an_unreadable_record_goes_to_the_dead_letters_and_others_go_on(key: Any, value: Any, words: str) -> None:
    @virtual(mailing())
    async def scenario(lab: Lab) -> None:
        data = encode_effect(value) if isinstance(value, EffectMessage) else value
        await lab.send("mails", "before", run="r1")
        bad = await lab.put("mails", key, data)
        await lab.send("mails", "after", run="r1")
        running = lab.subscriber()
        await lab.finished("mails")
        assert sorted(lab.app.calls) == ["after", "before"]
        (letter,) = await lab.letters("mails")
        assert (letter.code, letter.offset, letter.key, letter.value) == ("EFFECT_UNREADABLE", bad.offset, key, data)
        assert words in letter.reason
        assert running.told.heard("effect_refused", "mails", f"mailing.effects.mails[{bad.partition}]@{bad.offset}")
        assert not await lab.commands()

    scenario()


@pytest.mark.parametrize("payload", [b"7", b"no json", b'{"$": "NoSuchType"}'])
def test_a_payload_that_does_not_fit_is_refused_and_answered(payload: bytes) -> None:
    @virtual(mailing())
    async def scenario(lab: Lab) -> None:
        data = encode_effect(GOOD._replace(payload=payload))
        await lab.put("mails", b"r1", data, headers_of("effect", data))
        await lab.send("mails", "after", run="r1")
        lab.subscriber()
        await lab.finished("mails")
        assert lab.app.calls == ["after"]
        (letter,) = await lab.letters("mails")
        assert letter.code == "VALUE_UNREADABLE"
        (reply,) = await lab.replies()
        assert (reply.op, reply.error[:2]) == ("mails.9", ("terminal", "VALUE_UNREADABLE"))

    scenario()


@virtual(mailing())
async def test_a_payload_of_a_foreign_producer_becomes_the_type(lab: Lab) -> None:
    app, seen = App("mailing"), []
    mails = app.effect("mails", Mail)

    @app.subscriber(mails)
    async def send(ctx: EffectContext, mail: Mail) -> None:
        seen.append(mail)

    await lab.put("mails", b"r1", encode_effect(GOOD._replace(payload=b'{"to": "ann"}')))
    lab.subscriber(app=app)
    await lab.finished("mails")
    assert seen == [Mail("ann")]


# -- the ledger --------------------------------------------------------------------------------------------------------


class Shaky(MemoryLedger):
    """Away for a while, or loses the answers of chosen calls after it has done what was asked."""

    def __init__(self, clock: Any) -> None:
        super().__init__(clock)
        self.away = False
        self.loses: dict[str, int] = {}

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in ("claim", "settle", "extend", "note_published", "now_us", "transact"):
            return found

        async def call(*args: Any) -> Any:
            if self.away:
                raise LedgerUnavailable("no route to the ledger")
            answer = await found(*args)
            if self.loses.get(name):
                self.loses[name] -= 1
                raise LedgerUnavailable("the connection was cut")
            return answer

        return call


@virtual(mailing())
async def test_f17_a_ledger_that_is_away_is_waited_for_and_nothing_is_lost(lab: Lab) -> None:
    lab.ledger = Shaky(lab.clock)

    async def work(text: str) -> str:
        await asyncio.sleep(2)
        return text

    lab.app.does = lambda ctx, text: work(text)
    for number in range(40):
        await lab.send("mails", f"m{number}", run=f"r{number}", attempt=1)
    running = lab.subscriber(concurrency=20)
    await lab.until(lambda: len(lab.app.calls) == 20)
    lab.ledger.away = True
    await asyncio.sleep(100)
    assert len(lab.app.calls) == 20
    lab.ledger.away = False
    await lab.finished("mails")
    assert sorted(lab.app.calls) == sorted(f"m{number}" for number in range(40))
    assert len(await lab.replies()) == 40
    assert len(running.told.heard("ledger_away")) == 1
    assert len(running.told.heard("ledger_back")) == 1


@pytest.mark.parametrize("call", ["claim", "settle", "extend", "note_published"])
def test_f17_an_answer_of_the_ledger_that_is_lost_repeats_nothing(call: str) -> None:
    @virtual(mailing())
    async def scenario(lab: Lab) -> None:
        lab.ledger = Shaky(lab.clock)

        async def work(text: str) -> str:
            await asyncio.sleep(15)
            return text

        lab.app.does = lambda ctx, text: work(text)
        lab.ledger.loses = {call: 3}
        for number in range(20):
            await lab.send("mails", f"m{number}", run=f"r{number}", attempt=1)
        running = lab.subscriber(concurrency=10)
        await lab.finished("mails")
        await running.stop()
        assert lab.ledger.loses == {call: 0}
        assert sorted(lab.app.calls) == sorted(f"m{number}" for number in range(20))
        assert len(await lab.replies()) == 20
        assert {entry.status for entry in lab.ledger._entries.values()} == {Status.DONE}
        assert {entry.deliveries for entry in lab.ledger._entries.values()} == {1}
        assert not await lab.letters("mails")

    scenario()


@virtual(mailing())
async def test_a_ledger_of_another_version_ends_the_subscriber(lab: Lab) -> None:
    class Newer(MemoryLedger):
        async def check(self) -> None:
            raise LedgerMismatch("its tables are of version 9, this release writes 1")

    running = lab.subscriber(ledger=Newer(lab.clock))
    running.expected = True
    with pytest.raises(LedgerMismatch, match="version 9"):
        await running.task


@virtual(mailing())
async def test_a_ledger_that_is_upgraded_under_a_subscriber_ends_it(lab: Lab) -> None:
    class Upgraded(MemoryLedger):
        async def settle(self, settlements: Any) -> Any:
            raise LedgerMismatch("its tables are gone")

    await lab.send("mails", "a")
    running = lab.subscriber(ledger=Upgraded(lab.clock))
    running.expected = True
    with pytest.raises(LedgerMismatch, match="gone"):
        await running.task


# -- the log -----------------------------------------------------------------------------------------------------------


def lose(lab: Lab, partition: int, count: int) -> None:
    """Let the log begin later, as retention does."""
    log = lab.log._store.partition(lab.topics.effect("mails"), partition)
    ends = log.span
    log.span = lambda isolation: Span(count, ends(isolation).end)
    log._entries = [entry for entry in log._entries if entry.offset >= count]


@virtual(mailing())
async def test_an_offset_below_the_start_of_the_log_refuses_the_partition_and_no_other(lab: Lab) -> None:
    group, topic = lab.topics.subscribers("mails"), lab.topics.effect("mails")
    (one,), (two,) = runs_of(0, 1), runs_of(1, 1)
    for number in range(5):
        await lab.send("mails", f"a{number}", run=one)
    await lab.log.rewind_group(group, topic, {0: 1, 1: 0})
    lose(lab, 0, 3)
    await lab.send("mails", "b", run=two)
    running = lab.subscriber()
    await lab.until(lambda: lab.app.calls == ["b"])
    await lab.until(lambda: running.told.heard("effect_partition", "mails", 0, "refused"))
    reason = running.told.heard("effect_partition", "mails", 0, "refused")[0][4]
    assert "everything below 1" in reason
    assert "begins at 3" in reason
    await asyncio.sleep(100)
    assert lab.app.calls == ["b"]
    assert len(running.told.heard("effect_partition", "mails", 0, "refused")) == 4  # every 30 s
    await running.stop()
    await lab.log.rewind_group(group, topic, {0: 3})
    lab.subscriber()
    await lab.finished("mails")
    assert lab.app.calls == ["b", "a3", "a4"]


@virtual(mailing())
async def test_a_strict_subscriber_ends_where_a_partition_is_refused(lab: Lab) -> None:
    group, topic = lab.topics.subscribers("mails"), lab.topics.effect("mails")
    await lab.log.rewind_group(group, topic, {0: 7})
    running = lab.subscriber(strict=True)
    running.expected = True
    with pytest.raises(LogDamaged, match=r"everything below 7, but .*mails ends at 0: .* made again"):
        await running.task


@virtual(mailing())
async def test_a_first_start_begins_at_the_start_of_the_log(lab: Lab) -> None:
    (one,) = runs_of(0, 1)
    for number in range(5):
        await lab.send("mails", f"a{number}", run=one)
    lose(lab, 0, 3)
    lab.subscriber()
    await lab.finished("mails")
    assert lab.app.calls == ["a3", "a4"]


@virtual(mailing())
async def test_a_log_that_is_away_is_waited_for(lab: Lab) -> None:
    log = lab.log.share()
    make, state = log.member, {"away": False}

    def member(*args: Any, **more: Any) -> Any:
        found = make(*args, **more)
        poll = found.poll

        async def shaky(*what: Any) -> Any:
            if state["away"]:
                raise LogUnavailable("no broker answers")
            return await poll(*what)

        found.poll = shaky
        return found

    log.member = member
    running = lab.subscriber(log=log)
    await lab.send("mails", "a")
    await lab.finished("mails")
    state["away"] = True
    await lab.until(lambda: running.told.messages("cannot be reached"))
    await lab.send("mails", "b")
    await asyncio.sleep(60)
    state["away"] = False
    await lab.finished("mails")
    assert lab.app.calls == ["a", "b"]
    assert len(running.told.messages("cannot be reached")) == 1
    assert len(running.told.messages("answers again")) == 1


# -- the app -----------------------------------------------------------------------------------------------------------


@virtual(mailing())
async def test_effects_without_a_subscriber_cannot_be_asked_for(lab: Lab) -> None:
    with pytest.raises(UsageError, match="no subscriber of effect parcels; those it has: mails"):
        lab.subscriber(only=["parcels"])
    with pytest.raises(UsageError, match=r"declare one with @app\.subscriber"):
        lab.subscriber(app=App("empty"))


@virtual(mailing())
async def test_handlers_see_what_the_lifespan_of_the_app_yields(lab: Lab) -> None:
    told: list[Any] = []

    @asynccontextmanager
    async def lifespan(app: App) -> Any:
        told.append("entered")
        yield {"pool": 7}
        told.append("left")

    app = App("mailing", lifespan=lifespan)
    mails = app.effect("mails", str)
    parcels = app.effect("parcels", str)

    @app.subscriber(mails)
    async def send(ctx: EffectContext, text: str) -> None:
        told.append(ctx.resources["pool"])

    @app.subscriber(parcels)
    async def ship(ctx: EffectContext, text: str) -> None:
        told.append("never")

    running = lab.subscriber(app=app, only=["mails"])
    await lab.send("mails", "a")
    await lab.finished("mails")
    await running.stop()
    assert told == ["entered", 7, "left"]


# -- threads -----------------------------------------------------------------------------------------------------------


def threaded(**options: Any) -> Any:
    def make() -> App:
        app = App("mailing")
        app.calls, app.threads, app.contexts = [], set(), []
        app.free = threading.Event()
        mails = app.effect("mails", str, reply=str)

        def find(ctx: EffectContext, text: str) -> Found[str]:
            app.threads.add(threading.current_thread().name)
            return Found("found")

        @app.subscriber(mails, reconcile=find, **{"retry": Retry(initial=0.05), **options})
        def send(ctx: EffectContext, text: str) -> str:
            app.calls.append(text)
            app.threads.add(threading.current_thread().name)
            app.contexts.append(ctx)
            if text == "hang":
                app.free.wait(30)
            if text == "slow":
                time.sleep(0.2)
            if text == "raise":
                raise OSError("?")
            if text == "again" and ctx.delivery < 3:
                raise TryAgain("busy")
            return text

        return app

    return make


@virtual(threaded(looks=Retry(initial=0.05)), real=True)
async def test_plain_functions_run_in_threads_side_by_side(lab: Lab) -> None:
    texts = ["slow"] * 20 + ["raise", "again"]
    for number, text in enumerate(texts):
        await lab.send("mails", text, run=f"r{number}", attempt=1)
    lab.subscriber()
    await lab.finished("mails")
    assert sorted(lab.codec.decode(reply.value) for reply in await lab.replies()) == [
        "again",
        "found",
        *["slow"] * 20,
    ]
    assert threading.main_thread().name not in lab.app.threads
    assert lab.app.threads == {"subscriber send"}


@virtual(threaded(timeout=0.1), real=True)
async def test_f17_a_thread_that_outlives_its_time_keeps_its_claim_and_its_outcome_counts(lab: Lab) -> None:
    hung = await lab.send("mails", "hang", run="r1", attempt=1)
    await lab.send("mails", "other", run="r2", attempt=1)
    running = lab.subscriber(lease_seconds=0.6)
    await lab.until(lambda: lab.app.calls == ["hang", "other"])
    await asyncio.sleep(2)
    entry = await lab.entry("mails", hung.key)
    assert entry.status is Status.CLAIMED
    assert entry.lease_until > lab.clock.now_us()
    assert lab.app.contexts[0].cancelled
    assert running.told.messages("cannot be stopped")
    lab.app.free.set()
    await lab.finished("mails")
    assert lab.app.calls == ["hang", "other"]
    assert len(await lab.replies()) == 2


@virtual(threaded(timeout=0.1), real=True)
async def test_a_thread_that_never_ends_does_not_hold_up_a_stop(lab: Lab) -> None:
    sent = await lab.send("mails", "hang", run="r1", attempt=1)
    running = lab.subscriber(stop_seconds=0.3, drain_seconds=0.3)
    await lab.until(lambda: lab.app.calls)
    await running.stop()
    assert (await lab.entry("mails", sent.key)).status is Status.CLAIMED
    lab.app.free.set()
