"""The client against a memory log: what it sends, what it waits for, and what it reads back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from decimal import Decimal
from typing import Any

import pytest

from streams import Fail, InputConflict, NoSuchInterrupt, Refused, RunTerminal, UnknownRun
from streams.client import Client, PartitionView, RunView, Sent, follower
from streams.errors import (
    ResultExpired,
    RunCancelled,
    RunFailed,
    SendRefused,
    UsageError,
    ValueNotStorable,
    ValueTooLarge,
)
from streams.kernel import bodies as ev
from streams.kernel.events import Event
from streams.kernel.run import stub_of
from streams.log.memory import MemoryLog
from streams.log.port import NewRecord, Record
from streams.wire.partitioner import partition_of
from streams.wire.records import encode_checkpoint
from tests.unit.owner import Owner
from tests.unit.shop import Answer, Order, Receipt, app, broken, buy, chatter, echo, graph, note

ORDER = Order("o-1", Decimal("9.90"))


class World:
    def __init__(self) -> None:
        self.log = MemoryLog()
        self.owner = Owner(self.log, app)
        self.client = Client(self.log, app)

    async def start(self, workflow: Any, input_: Any, run_id: str) -> Sent:
        sent = await self.client.start(workflow, input_, run_id=run_id)
        await self.owner.take()
        return sent

    async def end(self, run_id: str) -> None:
        """Bring a `buy` to its end."""
        await self.owner.outcome(run_id, Decimal("9.90"))
        await self.client.resume(run_id, Answer(approved=True))
        await self.owner.take()
        await self.owner.outcome(run_id, "p-1")


def in_world(test: Callable[[World], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        async def body() -> None:
            world = World()
            await world.owner.create()
            async with world.client:
                await asyncio.wait_for(test(world), 60)

        asyncio.run(body())

    run.__name__ = test.__name__
    return run


async def accepted(world: World, sent: Sent) -> bool:
    waiting = asyncio.ensure_future(world.client.accepted(sent, timeout=10))
    await asyncio.sleep(0)
    await world.owner.take()
    return await waiting


async def view_of(world: World, run_id: str) -> RunView:
    view = await Client(world.log, app).get(run_id)
    assert view is not None
    return view


# -- sending -----------------------------------------------------------------------------------------------------


@in_world
async def test_a_start_lands_on_the_partition_of_its_run(world: World) -> None:
    sent = await world.client.start(buy, ORDER, run_id="r-1", attributes={"tenant": "acme"}, command_id="c-1")
    assert sent == Sent("r-1", partition_of(b"r-1", 3), 0, "c-1", 0)
    assert await accepted(world, sent)
    run = world.owner.runs["r-1"]
    assert (run.workflow, run.version, run.attributes) == ("buy", 2, (("tenant", "acme"),))


@in_world
async def test_plain_json_is_as_good_as_a_typed_value(world: World) -> None:
    assert await accepted(world, await world.client.start("buy", {"id": "o-1", "amount": "9.90"}, run_id="r"))
    assert not await accepted(world, await world.client.start(buy, ORDER, run_id="r"))
    assert await accepted(world, await world.client.start(graph, {"text": "x"}, run_id="g"))


@in_world
async def test_many_starts_share_appends_and_keep_their_order(world: World) -> None:
    appended: list[int] = []
    append = world.log.append

    async def counting(records: list[NewRecord]) -> list[int]:
        appended.append(len(records))
        return await append(records)

    world.log.append = counting  # type: ignore[assignment, method-assign]
    items = [(f"r-{n}", str(n)) for n in range(25)]
    sent = [one async for one in world.client.start_many(echo, items, window=10)]
    assert [one.run_id for one in sent] == [run_id for run_id, _ in items]
    assert appended == [10, 10, 5]

    async def later() -> AsyncIterator[tuple[str, str]]:
        yield "s-1", "x"

    assert [one.run_id async for one in world.client.start_many("echo", later())] == ["s-1"]
    appended.clear()
    await asyncio.gather(*(world.client.start(echo, "x", run_id=f"t-{n}") for n in range(50)))
    assert appended == [50]


@in_world
async def test_what_cannot_be_stored_is_never_sent(world: World) -> None:
    with pytest.raises(ValueTooLarge, match=r"the input of run 'r': .*bytes, the limit is 256,000"):
        await world.client.start(echo, "x" * 300_000, run_id="r")
    with pytest.raises(ValueNotStorable, match="signal 'note' for run 'r'"):
        await world.client.signal("r", note, object())  # type: ignore[arg-type]
    with pytest.raises(ValueTooLarge, match="attributes"):
        await world.client.start(echo, "x", run_id="r", attributes={"a": "x" * 20_000})
    with pytest.raises(UsageError, match="attribute 'a'=1"):
        await world.client.start(echo, "x", run_id="r", attributes={"a": 1})  # type: ignore[dict-item]
    for bad in ("", "a\nb", "x" * 201):
        with pytest.raises(UsageError, match="a run id"):
            await world.client.start(echo, "x", run_id=bad)
    assert [(await world.log.span("shop.commands", p)).end for p in range(3)] == [0, 0, 0]


@in_world
async def test_one_record_that_fits_nowhere_does_not_take_the_others_with_it(world: World) -> None:
    append = world.log.append

    async def picky(records: list[NewRecord]) -> list[int]:
        if any(record.key == b"bad" for record in records):
            raise SendRefused("it fits nowhere", 1)
        return await append(records)

    world.log.append = picky  # type: ignore[assignment, method-assign]
    ids = ["a", "bad", "c"]
    done = await asyncio.gather(*(world.client.start(echo, "x", run_id=i) for i in ids), return_exceptions=True)
    assert [type(one) for one in done] == [Sent, SendRefused, Sent]
    await world.owner.take()
    assert sorted(world.owner.runs) == ["a", "c"]


def test_without_topics_the_message_says_what_to_do() -> None:
    async def body() -> None:
        async with Client(MemoryLog(), "shop") as client:
            with pytest.raises(UsageError, match=r"no topic shop.commands.*streams topics create MODULE:APP"):
                await client.start("echo", "x", run_id="r")
            with pytest.raises(UsageError, match="start a worker"):
                await client.get("r")

    asyncio.run(body())


# -- accepted ----------------------------------------------------------------------------------------------------


@in_world
async def test_refusals_come_back_as_the_error_that_fits(world: World) -> None:
    client = world.client
    with pytest.raises(UnknownRun, match="no run 'r' exists"):
        await accepted(world, await client.resume("r", 1))
    await world.start(buy, ORDER, "r")
    with pytest.raises(InputConflict):
        await accepted(world, await client.start(buy, Order("o-2", Decimal(1)), run_id="r"))
    with pytest.raises(NoSuchInterrupt, match="no interrupt is open"):
        await accepted(world, await client.resume("r", Answer(approved=True)))
    with pytest.raises(Refused, match="INPUT_INVALID"):
        await accepted(world, await client.start(buy, {"id": 1}, run_id="s"))
    await world.end("r")
    with pytest.raises(RunTerminal):
        await accepted(world, await client.cancel("r"))
    with pytest.raises(RunTerminal):
        await accepted(world, await client.retry("r", op="1"))


@in_world
async def test_a_repeat_is_a_success_that_changes_nothing(world: World) -> None:
    await world.start(chatter, 3, "r")
    assert not await accepted(world, await world.client.start(chatter, 3, run_id="r"))
    assert await accepted(world, await world.client.signal("r", note, "a", command_id="c"))
    assert not await accepted(world, await world.client.signal("r", note, "a", command_id="c"))
    assert await accepted(world, await world.client.signal("r", "note", "b"))


@in_world
async def test_operators_commands_reach_the_op(world: World) -> None:
    client = world.client
    await world.start(buy, ORDER, "r")
    await world.owner.outcome("r", failure=ev.Failure("terminal", "VALUE_NOT_STORABLE", "no"))
    assert (await view_of(world, "r")).attention
    assert await accepted(world, await client.retry("r", operator="ada"))
    await world.owner.outcome("r", failure=ev.Failure("terminal", "VALUE_NOT_STORABLE", "no"))
    assert await accepted(world, await client.complete("r", "1", "1.50"))
    assert await accepted(world, await client.resume("r", {"approved": True}, interrupt="approval"))
    await world.owner.outcome("r", failure=ev.Failure("unknown", "WORKER_LOST", "gone"))
    assert await accepted(world, await client.skip("r", "3", operator="ada"))
    with pytest.raises(RunFailed, match="SKIPPED"):
        await client.result("r", timeout=5)


@in_world
async def test_a_dead_letter_is_a_refusal(world: World) -> None:
    sent = await world.client.start(echo, "x", run_id="r")
    world.owner.places["r"] = sent.partition
    body = ev.CommandRejected("?", "DEAD_LETTER", "RUN_DAMAGED: event 3 is lost")
    await world.owner.write(Event("r", f"?@{sent.offset}", None, 1, None, sent.offset, 1, body))
    with pytest.raises(Refused, match="DEAD_LETTER: RUN_DAMAGED"):
        await world.client.accepted(sent, timeout=5)


@in_world
async def test_a_wait_without_a_worker_ends_with_advice(world: World) -> None:
    sent = await world.client.start(echo, "x", run_id="r")
    with pytest.raises(TimeoutError, match="streams worker MODULE:APP"):
        await world.client.accepted(sent, timeout=0.01)
    with pytest.raises(TimeoutError, match="streams diagnose r"):
        await world.client.result("r", timeout=0.01)
    await world.owner.take()
    assert await world.client.accepted(sent, timeout=5)
    assert await world.client.result("r", timeout=5) == "x"


# -- results -----------------------------------------------------------------------------------------------------


@in_world
async def test_a_result_has_its_type_and_only_plain_data_without_the_app(world: World) -> None:
    sent = await world.start(buy, ORDER, "r")
    waiting = [asyncio.ensure_future(world.client.result("r")) for _ in range(3)]
    stranger = Client(world.log, "shop")
    waiting.append(asyncio.ensure_future(stranger.result("r")))
    await asyncio.sleep(0.01)
    assert not any(wait.done() for wait in waiting)
    await world.end("r")
    typed = Receipt("paid", Decimal("9.90"))
    assert await asyncio.gather(*waiting) == [typed] * 3 + [{"status": "paid", "amount": "9.90"}]
    assert await world.client.result("r") == typed
    assert await world.client.accepted(sent)
    await stranger.close()


@in_world
async def test_a_failed_run_raises_its_code_and_details(world: World) -> None:
    await world.start(buy, ORDER, "r")
    await world.owner.outcome("r", Decimal(1))
    await world.client.resume("r", Answer(approved=False))
    await world.owner.take()
    for client, details in ((world.client, {"order": ORDER}), (Client(world.log, "shop"), None)):
        with pytest.raises(RunFailed) as caught:
            await client.result("r", timeout=5)
        assert (caught.value.code, caught.value.message) == ("REJECTED", "nobody wants it")
        assert caught.value.details == (details or {"order": {"id": "o-1", "amount": "9.90"}})
    assert not issubclass(RunFailed, (Fail, Refused))


@in_world
async def test_a_cancelled_run_has_no_result(world: World) -> None:
    await world.start(chatter, 1, "r")
    await world.client.cancel("r")
    await world.owner.take()
    with pytest.raises(RunCancelled, match="'r'"):
        await world.client.result("r", timeout=5)


@in_world
async def test_an_unknown_run_has_no_result(world: World) -> None:
    with pytest.raises(UnknownRun, match="no run 'x'"):
        await world.client.result("x", timeout=5)
    assert await world.client.get("x") is None
    assert await world.client.history("x") == []


@in_world
async def test_a_second_start_gives_the_result_of_the_first(world: World) -> None:
    await world.start(echo, "x", "r")
    other = Client(world.log, app)
    await other.start(echo, "x", run_id="r")
    await world.owner.take()
    assert await other.result("r", timeout=5) == "x"
    await other.start(echo, "y", run_id="r")
    await world.owner.take()
    with pytest.raises(InputConflict):
        await other.result("r", timeout=5)
    await other.close()


@in_world
async def test_a_blocked_run_has_no_result_yet(world: World) -> None:
    await world.start(broken, "no", "r")
    with pytest.raises(TimeoutError):
        await world.client.result("r", timeout=0.01)
    view = await view_of(world, "r")
    assert (view.status, view.attention) == ("blocked", True)


# -- following ---------------------------------------------------------------------------------------------------


class Counting(MemoryLog):
    """Counts readers and the records they gave."""

    readers = 0
    records = 0

    def reader(self, *args: Any) -> Any:
        self.readers += 1
        reader = super().reader(*args)
        read = reader.read

        async def counted(*args: Any) -> list[Record]:
            records = await read(*args)
            self.records += len(records)
            return records

        reader.read = counted  # type: ignore[method-assign]
        return reader


def test_a_thousand_waits_read_the_log_once() -> None:
    async def body() -> None:
        log = Counting()
        owner = Owner(log, app)
        await owner.create()
        async with Client(log, app) as client:

            async def one(n: int) -> str:
                sent = await client.start(echo, f"x{n}", run_id=f"r-{n}")
                await client.accepted(sent)
                result: str = await client.result(f"r-{n}")
                return result

            waiting = asyncio.gather(*(one(n) for n in range(1_000)))
            while not waiting.done():
                await owner.take()
                await asyncio.sleep(0)
            assert await waiting == [f"x{n}" for n in range(1_000)]
            events = sum([await owner.events_end(p) for p in range(3)])
            commands = 1_000
            assert log.records <= events + commands
            assert [client._follower.position(p) for p in range(3)] == [await owner.events_end(p) for p in range(3)]

    asyncio.run(body())


def test_a_thousand_results_of_unknown_starts_share_the_loads() -> None:
    async def body() -> None:
        log = Counting()
        owner = Owner(log, app)
        await owner.create(1)
        async with Client(log, app) as starter:
            async for _ in starter.start_many(echo, ((f"r-{n}", "x") for n in range(1_000))):
                pass
        await owner.take()
        before = log.records
        async with Client(log, app) as client:
            assert set(await asyncio.gather(*(client.result(f"r-{n}") for n in range(1_000)))) == {"x"}
        assert log.records - before <= 2 * await owner.events_end(0)

    asyncio.run(body())


@in_world
async def test_a_wait_that_begins_in_the_past_is_served(world: World) -> None:
    kept, follower.KEPT_BYTES_MAX = follower.KEPT_BYTES_MAX, 3_000
    try:
        early = [await world.client.start(echo, "x", run_id=f"e-{n}") for n in range(50)]
        await world.owner.take()
        assert await world.client.accepted(await world.start(echo, "x", "later"), timeout=5)
        for n in range(50):
            sent = await world.start(echo, "y", f"l-{n}")
            assert await world.client.accepted(sent, timeout=5)
        assert all(await asyncio.gather(*(world.client.accepted(sent, timeout=5) for sent in early)))
        assert all(await asyncio.gather(*(Client(world.log, app).result(f"e-{n}") for n in range(5))))
    finally:
        follower.KEPT_BYTES_MAX = kept


@in_world
async def test_a_follower_rests_when_nobody_waits(world: World) -> None:
    idle, follower.IDLE_SECONDS = follower.IDLE_SECONDS, 0.02
    try:
        sent = await world.start(echo, "x", "r")
        assert await world.client.accepted(sent, timeout=5)
        following = world.client._follower
        assert following.position(sent.partition) is not None
        task = following._task
        assert task is not None
        await asyncio.wait_for(task, 30)
        assert following.position(sent.partition) is None
        assert await world.client.accepted(sent, timeout=5)
    finally:
        follower.IDLE_SECONDS = idle


@in_world
async def test_a_follower_gives_up_only_the_partitions_where_nobody_waits(world: World) -> None:
    idle, follower.IDLE_SECONDS = follower.IDLE_SECONDS, 0.02
    try:
        ids = {partition_of(b"r-%d" % n, 3): f"r-{n}" for n in range(20)}
        sent = {partition: await world.client.start(echo, "x", run_id=run_id) for partition, run_id in ids.items()}
        waiting = asyncio.ensure_future(world.client.accepted(sent[0]))
        with pytest.raises(TimeoutError):
            await world.client.accepted(sent[1], timeout=0.01)
        assert world.client._follower.position(1) is not None
        for _ in range(3_000):
            await asyncio.sleep(0.01)
            if world.client._follower.position(1) is None:
                break
        assert world.client._follower.position(1) is None
        assert world.client._follower.position(0) is not None
        await world.owner.take()
        assert await waiting
        assert await world.client.accepted(sent[1])
    finally:
        follower.IDLE_SECONDS = idle


@in_world
async def test_what_a_follower_keeps_is_bounded_for_all_partitions_together(world: World) -> None:
    kept, follower.KEPT_BYTES_MAX = follower.KEPT_BYTES_MAX, 6_000
    try:
        for n in range(60):
            sent = await world.start(echo, "y" * 200, f"r-{n}")
            assert await world.client.accepted(sent)
        tracks = world.client._follower._tracks
        assert len(tracks) == 3
        kept_bytes = sum(len(record.value or b"") for track in tracks.values() for record in track.since(0))
        assert 0 < kept_bytes < 6_000
    finally:
        follower.KEPT_BYTES_MAX = kept


@in_world
async def test_starts_are_remembered_for_a_while(world: World) -> None:
    for n in range(3):
        await world.client.start(echo, "x", run_id=f"r-{n}")
    await world.client.start(echo, "x", run_id="r-0")
    assert list(world.client._started) == ["r-1", "r-2", "r-0"]
    await world.owner.take()
    assert await world.client.result("r-1") == "x"
    assert list(world.client._started) == ["r-2", "r-0"]
    at, sent = world.client._started["r-2"]
    world.client._started["r-2"] = (at - 10_000, sent)
    await world.client.start(echo, "x", run_id="r-3")
    assert list(world.client._started) == ["r-0", "r-3"]


@in_world
async def test_an_error_of_the_log_reaches_those_who_wait(world: World) -> None:
    sent = await world.client.start(echo, "x", run_id="r")
    await world.log.append([NewRecord("shop.events", sent.partition, b"r", b"garbage")])
    with pytest.raises(Exception, match="expected a record event"):
        await world.client.accepted(sent, timeout=5)


@in_world
async def test_closing_ends_every_wait(world: World) -> None:
    sent = await world.client.start(echo, "x", run_id="r")
    waiting = asyncio.ensure_future(world.client.accepted(sent))
    await asyncio.sleep(0.01)
    await world.client.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting


# -- looking -----------------------------------------------------------------------------------------------------


@in_world
async def test_a_run_is_its_checkpoint_and_the_later_events(world: World) -> None:
    sent = await world.start(buy, ORDER, "r")
    await world.owner.checkpoint("r")
    tail = await world.owner.events_end(sent.partition)
    await world.owner.lease(sent.partition, tail=tail)
    before = await view_of(world, "r")
    assert before.checkpoint is not None
    assert (before.checkpoint.id, before.checkpoint.seq, before.owner) == ("r@2", 2, "w-1")
    assert before.run == world.owner.runs["r"]
    await world.owner.outcome("r", Decimal(1))
    after = await view_of(world, "r")
    assert after.run == world.owner.runs["r"]
    assert (after.status, after.checkpoint) == ("waiting", before.checkpoint)


@in_world
async def test_a_later_run_of_the_same_name_takes_over(world: World) -> None:
    sent = await world.start(echo, "x", "r")
    old = world.owner.runs.pop("r")
    await world.owner.write(Event("r", old.identity, old.seq + 1, old.at, None, None, 1, ev.RunExpired("old")))
    assert await Client(world.log, app).get("r") is None
    await world.owner.write_checkpoint("r", None)
    await world.client.start(echo, "y", run_id="r")
    await world.owner.take()
    view = await view_of(world, "r")
    assert view.run is not None
    assert view.run.identity == f"r@{sent.offset + 1}"
    assert await Client(world.log, app).result("r") == "y"


@in_world
async def test_a_reader_that_has_an_older_checkpoint_takes_an_expired_run_for_gone(world: World) -> None:
    """The null and the event come in one transaction; a reader may have read the checkpoints just before it."""
    await world.start(echo, "x", "r")
    await world.owner.checkpoint("r")
    old = world.owner.runs.pop("r")
    await world.owner.write(Event("r", old.identity, old.seq + 1, old.at, None, None, 1, ev.RunExpired("old")))
    assert await Client(world.log, app).get("r") is None
    with pytest.raises(UnknownRun):
        await Client(world.log, app).result("r")


@in_world
async def test_the_result_of_a_stub_is_not_kept_any_more(world: World) -> None:
    sent = await world.start(echo, "x", "r")
    await world.owner.write_checkpoint("r", encode_checkpoint(stub_of(world.owner.runs["r"])))
    await world.owner.lease(sent.partition, tail=await world.owner.events_end(sent.partition))
    view = await view_of(world, "r")
    assert (view.status, view.attention) == ("completed", False)
    with pytest.raises(ResultExpired, match=r"run 'r' completed on .* its result is not kept any more"):
        await Client(world.log, app).result("r")


@in_world
async def test_damaged_runs_are_shown_and_named(world: World) -> None:
    first = await world.start(buy, ORDER, "gap")
    run = world.owner.runs["gap"]
    await world.owner.write(Event("gap", run.identity, run.seq + 5, run.at, None, None, 1, ev.OpWithdrawn("1")))
    await world.start(echo, "x", "marked")
    await world.owner.damage("marked", 1, "event 3 is lost")
    await world.start(echo, "x", "torn")
    await world.log.append([NewRecord("shop.events", world.owner.places["torn"], b"torn", b"\xc3\x01garbage")])
    for run_id, text in (("gap", "does not follow"), ("marked", "event 3 is lost"), ("torn", "cannot be read")):
        view = await view_of(world, run_id)
        assert view.damage is not None
        assert (view.status, view.damage.kind) == ("blocked" if run_id != "torn" else "completed", "state")
        assert text in view.damage.message
    with pytest.raises(Refused, match="RUN_DAMAGED"):
        await Client(world.log, app).result("gap")
    loaded = await PartitionView.load(world.log, world.client.topics, first.partition)
    assert "gap" in [view.run_id for view in loaded.damaged]


@in_world
async def test_a_run_of_a_newer_release_is_shown_as_blocked_and_not_as_damaged(world: World) -> None:
    foreign = b"\xc3\x01" + b"12345678" + b"\x00" * 10
    for kind in ("events", "checkpoints", "body"):
        await world.start(buy, ORDER, kind)
        run, place = world.owner.runs[kind], world.owner.places[kind]
        if kind != "body":
            await world.log.append([NewRecord(f"shop.{kind}", place, kind.encode(), foreign)])
        later = Event(kind, run.identity, run.seq + 1, run.at, None, None, 1, ev.RunForked("a", 1, "b", b""))
        await world.owner.write(later)
        await world.owner.write(later._replace(seq=run.seq + 5))
        view = await view_of(world, kind)
        assert view.damage is not None
        assert (view.status, view.damage.code) == ("blocked", "SCHEMA_VERSION_UNSUPPORTED")


@in_world
async def test_a_run_whose_first_events_are_gone_is_damaged(world: World) -> None:
    sent = await world.start(buy, ORDER, "r")
    await world.owner.lease(sent.partition, tail=1)
    view = await view_of(world, "r")
    assert view.damage is not None
    assert view.run is None
    assert "no checkpoint" in view.damage.message


@in_world
async def test_runs_are_listed_by_status_and_attributes(world: World) -> None:
    for n in range(6):
        sent = await world.client.start(
            buy if n % 2 else echo, ORDER if n % 2 else "x", run_id=f"r-{n}", attributes={"n": str(n)}
        )
    await world.owner.take()
    await world.owner.outcome("r-1", Decimal(1))

    async def ids(**wanted: Any) -> list[str]:
        return sorted([view.run_id async for view in world.client.runs(**wanted)])

    assert await ids() == [f"r-{n}" for n in range(6)]
    assert await ids(status="completed") == ["r-0", "r-2", "r-4"]
    assert await ids(status="waiting") == ["r-1"]
    assert await ids(attributes={"n": "3"}) == ["r-3"]
    assert await ids(status="running", attributes={"n": "4"}) == []
    with pytest.raises(UsageError, match="there is no status 'done'; choose one of pending"):
        await ids(status="done")
    assert sent.run_id == "r-5"


@in_world
async def test_history_has_every_event_with_its_place(world: World) -> None:
    await world.start(buy, ORDER, "r")
    await world.start(echo, "x", "other")
    await world.end("r")
    told: list[tuple[int, int]] = []
    history = await world.client.history("r", progress=lambda done, total: told.append((done, total)))
    assert [stored.event.type for stored in history][:3] == ["run.started", "op.scheduled", "op.completed"]
    assert [stored.event.seq for stored in history] == list(range(1, len(history) + 1))
    assert {stored.event.run_id for stored in history} == {"r"}
    assert sorted(stored.offset for stored in history) == [stored.offset for stored in history]
    assert told[-1][0] == told[-1][1] > 0
