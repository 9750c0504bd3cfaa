"""Order per key, many keys at once, bounds, duplicates, conflicts, re-sends, and rewinding over what is known."""

from __future__ import annotations

import asyncio
from typing import Any

from streams import App, EffectContext, Fail, Retry, TryAgain
from streams.effects.memory import MemoryLedger
from streams.effects.port import Key, Resolution, Status
from streams.wire.headers import SENT_BACK
from streams.wire.partitioner import partition_of
from tests.effects.lab import PARTITIONS, Lab, virtual


def mailing(**options: Any) -> Any:
    def make() -> App:
        app = App("mailing")
        app.calls = []
        app.does = lambda ctx, text: text
        app.live, app.most = 0, 0
        mails = app.effect("mails", str, reply=str)

        @app.subscriber(mails, **{"retry": Retry(max_attempts=4, initial=10.0, max_delay=10), **options})
        async def send(ctx: EffectContext, text: str) -> str:
            app.calls.append(text)
            app.live += 1
            app.most = max(app.most, app.live)
            try:
                done = app.does(ctx, text)
                return await done if asyncio.iscoroutine(done) else done
            finally:
                app.live -= 1

        return app

    return make


def runs_of(partition: int, count: int) -> list[str]:
    """Ids of runs that lie in this partition."""
    found = (f"run-{number}" for number in range(10_000))
    return [run for run in found if partition_of(run.encode(), PARTITIONS) == partition][:count]


async def pause(seconds: float, value: str) -> str:
    await asyncio.sleep(seconds)
    return value


@virtual(mailing())
async def test_the_messages_of_a_run_are_carried_out_one_after_another(lab: Lab) -> None:
    lab.app.does = lambda ctx, text: pause(1.0, text)
    for number in range(5):
        await lab.send("mails", f"m{number}", run="r1")
    lab.subscriber()
    await lab.finished("mails")
    assert lab.app.calls == [f"m{number}" for number in range(5)]
    assert lab.app.most == 1


@virtual(mailing())
async def test_many_runs_are_served_at_once_up_to_the_limit(lab: Lab) -> None:
    lab.app.does = lambda ctx, text: pause(1.0, text)
    for number in range(300):
        await lab.send("mails", f"m{number}", run=f"r{number}")
    began = lab.clock.monotonic()
    lab.subscriber(concurrency=100)
    await lab.finished("mails")
    assert lab.app.most == 100
    assert len(lab.app.calls) == 300
    assert lab.clock.monotonic() - began < 10


@virtual(mailing())
async def test_a_failing_run_holds_up_itself_only_and_keeps_its_order(lab: Lab) -> None:
    bad, *good = runs_of(0, 50)

    def does(ctx: EffectContext, text: str) -> str:
        if text == "bad-1" and ctx.delivery < 4:
            raise TryAgain("not yet")
        return text

    lab.app.does = does
    await lab.send("mails", "bad-1", run=bad)
    await lab.send("mails", "bad-2", run=bad)
    for run in good:
        await lab.send("mails", run, run=run)
    lab.subscriber()
    await lab.until(lambda: len(lab.app.calls) == 50)
    assert lab.clock.monotonic() < 5
    assert await lab.offsets("mails") == {}  # the first message pins the offset
    await lab.finished("mails")
    assert lab.app.calls[50:] == ["bad-1", "bad-1", "bad-1", "bad-2"]


@virtual(mailing())
async def test_reading_ahead_of_a_pinned_offset_ends_at_the_window(lab: Lab) -> None:
    bad, *good = runs_of(0, 60)
    lab.app.does = lambda ctx, text: pause(100.0 if text == bad else 0.1, text)
    for run in (bad, *good):
        await lab.send("mails", run, run=run)
    running = lab.subscriber(window=20)
    await lab.until(lambda: len(lab.app.calls) >= 20)
    await asyncio.sleep(30)
    assert len(lab.app.calls) == 20
    assert len(running.windows("mails")[0].messages) == 20
    await lab.finished("mails")
    assert len(lab.app.calls) == 60
    assert sorted(lab.app.calls) == sorted((bad, *good))


@virtual(mailing())
async def test_reading_ahead_ends_at_the_bytes(lab: Lab) -> None:
    runs = runs_of(0, 40)
    lab.app.does = lambda ctx, text: pause(50.0, text)
    for number, run in enumerate(runs):
        if number % 2:
            await lab.send("mails", run, run=run, headers=(("large", b"x" * 10_000),))
        else:
            await lab.send("mails", run + "x" * 10_000, run=run)
    lab.subscriber(bytes_max=100_000, poll_records=5)
    await asyncio.sleep(20)
    assert 10 <= len(lab.app.calls) <= 16
    await lab.finished("mails")
    assert len(lab.app.calls) == 40


@virtual(mailing())
async def test_f18_the_same_message_twice_in_one_poll_is_carried_out_once_and_answered_once(lab: Lab) -> None:
    sent = await lab.send("mails", "a", effect_id="r1@0/mails.1", attempt=1)
    await lab.send("mails", "a", effect_id="r1@0/mails.1", attempt=1)
    running = lab.subscriber()
    await lab.finished("mails")
    assert lab.app.calls == ["a"]
    assert len(await lab.replies()) == 1
    assert (await lab.entry("mails", sent.key)).deliveries == 1
    await running.stop()


@virtual(mailing())
async def test_f18_one_key_from_two_runs_at_once_is_carried_out_once_and_both_are_answered(lab: Lab) -> None:
    lab.app.does = lambda ctx, text: pause(5.0, text)
    await lab.send("mails", "a", run="r1", key="mail/a", attempt=1)
    await lab.send("mails", "a", run="r2", key="mail/a", attempt=1)
    lab.subscriber()
    await lab.finished("mails")
    assert lab.app.calls == ["a"]
    assert {command.run_id for command in await lab.commands()} == {"r1", "r2"}
    assert all(reply.error is None for reply in await lab.replies())


@virtual(mailing())
async def test_f18_one_key_in_two_processes_at_once_is_carried_out_once(lab: Lab) -> None:
    (one, *_), (two, *_) = runs_of(0, 1), runs_of(1, 1)
    lab.app.does = lambda ctx, text: pause(5.0, text)
    first, second = lab.subscriber(), lab.subscriber()
    await lab.until(lambda: len(first.windows("mails")) == len(second.windows("mails")) == 1)
    await lab.send("mails", "a", run=one, key="mail/a", attempt=1)
    await lab.send("mails", "a", run=two, key="mail/a", attempt=1)
    await lab.finished("mails")
    assert lab.app.calls == ["a"]
    assert len(await lab.replies()) == 2


@virtual(mailing())
async def test_f18_another_request_under_a_used_key_is_never_carried_out(lab: Lab) -> None:
    first = await lab.send("mails", "a", run="r1", key="mail/a", attempt=1)
    await lab.send("mails", "secret", run="r2", key="mail/a", attempt=1)
    running = lab.subscriber()
    await lab.finished("mails")
    assert lab.app.calls == ["a"]
    done, refused = sorted(await lab.replies(), key=lambda reply: reply.error is not None)
    assert done.error is None
    assert refused.error[:2] == ("terminal", "KEY_CONFLICT")
    (letter,) = await lab.letters("mails")
    assert letter.code == "KEY_CONFLICT"
    assert first.effect_id in letter.reason
    assert "secret" not in letter.reason
    entry = await lab.entry("mails", "mail/a")
    assert (entry.status, entry.conflicts) == (Status.DONE, 1)
    assert running.told.heard("effect_refused", "mails")


@virtual(mailing())
async def test_f17_rewinding_over_known_effects_repeats_nothing_and_writes_nothing(lab: Lab) -> None:
    def does(ctx: EffectContext, text: str) -> str:
        if text == "m3":
            raise Fail("NO")
        if text == "m4":
            raise OSError("?")
        return text

    lab.app.does = does
    for number in range(200):
        await lab.send("mails", f"m{number}", run=f"r{number}", attempt=number % 2)
    running = lab.subscriber()
    await lab.finished("mails")
    await running.stop()
    before = [await lab.records(lab.topics.commands), await lab.records(lab.topics.effect_dead("mails"))]
    assert len(before[1]) == 2
    await lab.rewind("mails")
    again = lab.subscriber()
    await lab.finished("mails")
    await again.stop()
    assert len(lab.app.calls) == 200
    assert [await lab.records(lab.topics.commands), await lab.records(lab.topics.effect_dead("mails"))] == before
    assert sum(what[2] for what in again.told.heard("effects_known")) == 200
    assert not again.told.heard("effect_done")


@virtual(mailing())
async def test_f17_a_rewind_over_many_effects_of_one_run_takes_few_questions_and_keeps_their_order(lab: Lab) -> None:
    class Asked(MemoryLedger):
        count = 0

        async def claim(self, *args: Any) -> Any:
            Asked.count += 1
            return await super().claim(*args)

        async def look(self, keys: Any) -> Any:
            Asked.count += 1
            return await super().look(keys)

    lab.ledger = Asked(lab.clock)
    expected = [f"m{number}" for number in range(600)]
    for text in expected:
        await lab.send("mails", text, key=text, attempt=1)
    lab.subscriber()
    await lab.finished("mails")
    assert lab.app.calls == expected
    await lab.running[0].stop()
    for text in ("m200", "m400", "m401"):  # as a ledger that was restored from a backup has forgotten them
        del lab.ledger._entries[Key("mailing", "mails", text)]
    lab.app.does = lambda ctx, text: pause(1.0, text)
    Asked.count = 0
    await lab.rewind("mails")
    running = lab.subscriber()
    await lab.finished("mails")
    assert lab.app.calls[600:] == ["m200", "m400", "m401"]
    assert sum(what[2] for what in running.told.heard("effects_known")) == 597
    assert Asked.count < 40
    assert len(await lab.replies()) == 603


@virtual(mailing())
async def test_f17_a_message_that_comes_again_a_week_later_is_known(lab: Lab) -> None:
    await lab.send("mails", "a", effect_id="r1@0/mails.1", attempt=1)
    lab.subscriber(poll_seconds=600.0)
    await lab.finished("mails")
    await asyncio.sleep(7 * 86_400)
    await lab.send("mails", "a", effect_id="r1@0/mails.1", attempt=1)
    await lab.finished("mails")
    assert lab.app.calls == ["a"]
    assert len(await lab.replies()) == 1


@virtual(mailing())
async def test_a_dead_letter_that_is_sent_back_is_carried_out_once_more(lab: Lab) -> None:
    lab.app.does = lambda ctx, text: (_ for _ in ()).throw(Fail("NO"))
    sent = await lab.send("mails", "a", effect_id="r1@0/mails.1", attempt=1)
    lab.subscriber()
    await lab.finished("mails")
    (letter,) = await lab.letters("mails")
    lab.app.does = lambda ctx, text: text
    mark = (SENT_BACK, b"1@0")
    await lab.put("mails", letter.key, letter.value, (*letter.headers, mark))
    await lab.finished("mails")
    assert (await lab.entry("mails", sent.key)).status is Status.DONE
    await lab.put("mails", letter.key, letter.value, (*letter.headers, mark))
    await lab.finished("mails")
    assert lab.app.calls == ["a", "a"]
    failed, done = await lab.replies()
    assert (failed.error[1], done.error) == ("NO", None)


@virtual(mailing())
async def test_a_mark_of_a_re_send_that_names_no_letter_opens_nothing(lab: Lab) -> None:
    lab.app.does = lambda ctx, text: (_ for _ in ()).throw(Fail("NO"))
    for mark in (b"7", b"later", b"\xff", b"0@" + b"9" * 5_000, b"0@" + b"8" * 5_000):
        await lab.send("mails", "x", key="k", effect_id="r1@0/1", headers=((SENT_BACK, mark),))
    lab.subscriber()
    await lab.finished("mails")
    assert len(lab.app.calls) == 1
    assert (await lab.entry("mails", "k")).resent == ""


@virtual(mailing())
async def test_what_an_operator_resolves_is_answered_when_its_letter_is_sent_back(lab: Lab) -> None:
    lab.app.does = lambda ctx, text: (_ for _ in ()).throw(OSError("?"))
    sent = await lab.send("mails", "a", attempt=1)
    lab.subscriber()
    await lab.finished("mails")
    (letter,) = await lab.letters("mails")
    key = Key("mailing", "mails", sent.key)
    await lab.ledger.resolve(key, Resolution(Status.DONE, response=b'"by hand"', operator="ann"))
    await lab.put("mails", letter.key, letter.value, (*letter.headers, (SENT_BACK, b"1@0")))
    await lab.finished("mails")
    (reply,) = await lab.replies()
    assert reply.value == b'"by hand"'
    assert lab.app.calls == ["a"]


@virtual(mailing())
async def test_f26_a_newer_attempt_waits_for_the_claim_of_the_older_and_takes_its_outcome(lab: Lab) -> None:
    lab.app.does = lambda ctx, text: pause(20.0, text)
    effect_id = "r1@0/mails.1"
    await lab.send("mails", "a", effect_id=effect_id, attempt=1, epoch=3)
    lab.subscriber()
    await lab.until(lambda: lab.app.calls)
    await lab.send("mails", "a", effect_id=effect_id, attempt=2, epoch=3)
    await lab.finished("mails")
    assert lab.app.calls == ["a"]
    assert [(reply.attempt, reply.error) for reply in await lab.replies()] == [(1, None), (2, None)]


@virtual(mailing())
async def test_f26_an_older_attempt_that_comes_after_a_newer_one_has_nothing_to_do(lab: Lab) -> None:
    effect_id, (run, *_), (other, *_) = "r@0/mails.1", runs_of(0, 1), runs_of(1, 1)
    lab.app.does = lambda ctx, text: (_ for _ in ()).throw(TryAgain("later")) if ctx.delivery < 3 else text
    await lab.send("mails", "a", run=run, effect_id=effect_id, key="k", attempt=2, epoch=5)
    lab.subscriber()
    await lab.until(lambda: lab.app.calls)
    await lab.send("mails", "a", run=other, effect_id=effect_id, key="k", attempt=1, epoch=5)
    await lab.send("mails", "a", run=other, effect_id=effect_id, key="k", attempt=9, epoch=4)
    await lab.finished("mails")
    assert lab.app.calls == ["a", "a", "a"]
    assert [(reply.epoch, reply.attempt) for reply in await lab.replies()] == [(5, 2)]


@virtual(mailing())
async def test_f26_an_effect_of_an_old_epoch_is_carried_out(lab: Lab) -> None:
    await lab.send("mails", "new", run="r1", epoch=9)
    await lab.send("mails", "old", run="r1", epoch=2)
    lab.subscriber()
    await lab.finished("mails")
    assert lab.app.calls == ["new", "old"]
