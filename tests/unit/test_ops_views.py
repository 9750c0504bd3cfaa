"""What `show`, `runs`, `history` and `diagnose` make of a run, without a terminal."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
from collections.abc import Callable, Coroutine
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from streams.client import Client, RunView
from streams.kernel import bodies as ev
from streams.kernel.inputs import Recover, Returned
from streams.log.memory import MemoryLog
from streams.ops.advice import ADVICE, advice_for, errors_page
from streams.ops.diagnose import Diagnosis, diagnose
from streams.ops.ownership import is_alive
from streams.ops.texts import iso, line, span
from streams.ops.timeline import Entry, history_lines, timeline
from streams.ops.views import brief, show
from streams.wire.records import Lease
from tests.unit.owner import SECOND, Owner
from tests.unit.shop import Answer, Order, app, broken, buy, chatter, graph, note

ORDER = Order("o-1", Decimal("9.90"))
FIELDS = (
    """run_id workflow version status attention seq result error waiting attributes partition epoch owner""".split()
)


class World:
    def __init__(self) -> None:
        self.log = MemoryLog()
        self.owner = Owner(self.log, app)
        self.client = Client(self.log, app)

    async def start(self, workflow: Any, input_: Any, run_id: str = "r", **more: Any) -> None:
        await self.client.start(workflow, input_, run_id=run_id, **more)
        await self.owner.take()

    async def take(self, sending: Coroutine[Any, Any, Any]) -> None:
        await sending
        await self.owner.take()

    async def to_payment(self) -> None:
        await self.start(buy, ORDER)
        await self.owner.outcome("r", Decimal("9.90"))
        await self.take(self.client.resume("r", Answer(approved=True)))

    async def view(self, run_id: str = "r") -> RunView:
        view = await self.client.get(run_id)
        assert view is not None
        return view

    async def shown(self, run_id: str = "r") -> dict[str, Any]:
        found = show(await self.view(run_id), self.client.values.codec)
        assert set(FIELDS) <= set(found)
        assert json.loads(json.dumps(found)) == found
        return found

    async def told(self, run_id: str = "r") -> list[Entry]:
        return timeline(await self.client.history(run_id), self.client.values.codec)

    async def diagnosis(self, run_id: str = "r") -> Diagnosis:
        found = await diagnose(self.client, run_id, now=self.owner.now)
        assert found is not None
        json.dumps(found.plain())
        return found


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


def pick(item: dict[str, Any], fields: str) -> dict[str, Any]:
    return {field: item[field] for field in fields.split()}


# -- show --------------------------------------------------------------------------------------------------------


@in_world
async def test_a_running_task_is_what_the_run_waits_for(world: World) -> None:
    await world.start(buy, ORDER, attributes={"tenant": "acme"})
    found = await world.shown()
    assert pick(found, "workflow version status attention seq result error attributes epoch owner") == {
        "workflow": "buy",
        "version": 2,
        "status": "running",
        "attention": False,
        "seq": 2,
        "result": None,
        "error": None,
        "attributes": {"tenant": "acme"},
        "epoch": 1,
        "owner": None,
    }
    (item,) = found["waiting"]
    assert pick(item, "kind id name state attempt") == {
        "kind": "task",
        "id": "1",
        "name": "price",
        "state": "running",
        "attempt": 1,
    }
    assert re.fullmatch(r"2023-11-14T22:13:21\.000Z", item["since"])


@in_world
async def test_the_owner_is_that_of_the_partition_until_it_gives_it_back(world: World) -> None:
    await world.start(buy, ORDER)
    place = world.owner.places["r"]
    world.owner.epoch, world.owner.name = 5, "w-5"
    await world.owner.lease(place)
    assert pick(await world.shown(), "partition epoch owner") == {"partition": place, "epoch": 5, "owner": "w-5"}
    await world.owner.lease(place, released=True)
    assert pick(await world.shown(), "epoch owner") == {"epoch": 5, "owner": None}


@in_world
async def test_every_kind_of_wait_is_named(world: World) -> None:
    await world.start(buy, ORDER)
    failure = ev.Failure("retryable", "ConnectionError", "refused")
    await world.owner.outcome("r", failure=failure)
    (item,) = (await world.shown())["waiting"]
    assert pick(item, "kind state attempt code message") == {
        "kind": "task",
        "state": "backoff",
        "attempt": 1,
        "code": "ConnectionError",
        "message": "refused",
    }
    assert item["due"] > item["since"]
    await world.owner.due("r", "1", later=10)
    await world.owner.outcome("r", Decimal("9.90"))
    (item,) = (await world.shown())["waiting"]
    assert pick(item, "kind name question answer") == {
        "kind": "interrupt",
        "name": "approval",
        "question": {"question": "Approve?", "amount": "9.90"},
        "answer": "Answer",
    }
    await world.start(chatter, 1, "c")
    assert pick((await world.shown("c"))["waiting"][0], "kind name") == {"kind": "receive", "name": "note"}
    await world.take(world.client.signal("c", note, "hi"))
    (item,) = (await world.shown("c"))["waiting"]
    assert (item["kind"], item["due"] > item["since"]) == ("timer", True)
    world.owner.slots = 0
    await world.start(graph, {"text": "x"}, "g")
    assert pick((await world.shown("g"))["waiting"][0], "kind state attempt") == {
        "kind": "task",
        "state": "queued",
        "attempt": 0,
    }


@in_world
async def test_a_parked_op_asks_for_attention(world: World) -> None:
    await world.to_payment()
    await world.owner.decide("r", Recover())
    found = await world.shown()
    assert (found["status"], found["attention"], found["error"]) == ("waiting", True, None)
    (item,) = found["waiting"]
    assert pick(item, "kind id name class code key may_have_happened") == {
        "kind": "parked",
        "id": "3",
        "name": "pay",
        "class": "unknown",
        "code": "OUTCOME_UNKNOWN",
        "key": "pay/o-1",
        "may_have_happened": True,
    }


@in_world
async def test_blocked_failed_cancelled_and_completed_runs(world: World) -> None:
    await world.start(broken, "no", "b")
    blocked = await world.shown("b")
    assert pick(blocked, "status attention") == {"status": "blocked", "attention": True}
    assert pick(blocked["error"], "class code checkpoint requires_operator") == {
        "class": "code",
        "code": "WORKFLOW_BUG",
        "checkpoint": f"b@{blocked['seq']}",
        "requires_operator": True,
    }
    await world.start(buy, ORDER)
    await world.owner.outcome("r", Decimal(1))
    await world.take(world.client.resume("r", {"approved": False}))
    failed = await world.shown()
    assert (failed["status"], failed["error"]["code"], failed["error"]["requires_operator"]) == (
        "failed",
        "REJECTED",
        False,
    )
    assert failed["error"]["details"] == {"order": {"id": "o-1", "amount": "9.90"}}
    await world.start(chatter, 1, "c")
    await world.take(world.client.cancel("c"))
    assert (await world.shown("c"))["status"] == "cancelled"
    await world.start("echo", "x", "e")
    assert pick(await world.shown("e"), "status result waiting") == {
        "status": "completed",
        "result": "x",
        "waiting": [],
    }
    assert "result" not in brief(await world.view("e"), world.client.values.codec)


@in_world
async def test_pending_and_damaged_runs_are_shown_too(world: World) -> None:
    await world.take(world.client.signal("p", note, "early"))
    assert pick(await world.shown("p"), "status workflow version started_at") == {
        "status": "pending",
        "workflow": None,
        "version": None,
        "started_at": None,
    }
    await world.start("echo", "x", "d")
    end = await world.owner.events_end(world.owner.places["d"])
    await world.owner.damage("d", end - 1, "event 3 is lost")
    found = await world.shown("d")
    assert (found["status"], found["attention"], found["error"]["code"]) == ("blocked", True, "RUN_DAMAGED")
    assert found["error"]["requires_operator"]


# -- timeline ----------------------------------------------------------------------------------------------------


@in_world
async def test_the_timeline_tells_the_story(world: World) -> None:
    await world.start(buy, ORDER)
    await world.owner.outcome("r", failure=ev.Failure("retryable", "ConnectionError", "refused"))
    world.owner.epoch, world.owner.name = 2, "w-2"
    await world.owner.due("r", "1", later=5)
    await world.owner.outcome("r", Decimal("9.90"))
    world.owner.now += 3600 * SECOND
    await world.take(world.client.resume("r", {"approved": "maybe"}))
    await world.take(world.client.resume("r", Answer(approved=True), interrupt="approval"))
    await world.owner.decide("r", Recover())
    await world.take(world.client.complete("r", "3", "p-1", operator="ada"))
    entries = await world.told()
    texts = [re.sub(r"again in [\d.]+ m?s", "again in N", entry.text) for entry in entries]
    assert texts == [
        'buy version 2 started by w-1 (epoch 1) with {"id": "o-1", "amount": "9.90"}',
        'task price started, attempt 1: ("o-1")',
        "attempt 1 of task price failed after 1.0 s: ConnectionError: refused; again in N",
        "taken over by w-2 (epoch 2)",
        "task price started, attempt 2",
        'task price completed after 8.0 s, attempt 2: "9.90"',
        'asks: {"question": "Approve?", "amount": "9.90"}',
        "resume refused: INPUT_INVALID: expected bool, got str at $.approved",
        'answered after 1 h: {"approved": true}',
        'task pay started, attempt 1, key pay/o-1: ("o-1")',
        texts[10],
        'task pay completed by ada after 2.0 s: "p-1"',
        'effect paid out, key paid/o-1: {"status": "paid", "amount": "9.90"}',
        'run completed after 1 h: {"status": "paid", "amount": "9.90"}',
    ]
    assert texts[10].startswith("task pay parked, waits for an operator: OUTCOME_UNKNOWN: attempt 1 of task 'pay'")
    assert [entry.level for entry in entries] == (
        "info info warn warn info good ask warn good info bad good good good".split()
    )
    assert entries[2].delta == "+1.0 s"
    assert [entry.op for entry in entries][:3] == ["", "1", "1"]


@in_world
async def test_waits_steps_and_ends_are_told(world: World) -> None:
    await world.take(world.client.signal("c", note, "early", command_id="s"))
    await world.take(world.client.signal("c", note, "early", command_id="s"))
    await world.start(chatter, 2, "c")
    await world.take(world.client.signal("c", note, "late"))
    await world.owner.due("c", "3", later=60)
    assert [entry.text for entry in await world.told("c")] == [
        'signal note arrived: "early"',
        "signal came again: signal s was received before",
        "chatter version 1 started by w-1 (epoch 1) with 2",
        "waits for signal note",
        "took signal note after 0 ms",
        "waits for signal note",
        'signal note arrived: "late"',
        "took signal note after 1.0 s",
        "sleeps until 2023-11-14T22:14:24.000Z",
        "slept 1 min 1 s",
        'run completed after 1 min 2 s: ["early", "late"]',
    ]
    await world.start(graph, {"text": "x"}, "g")
    await world.owner.outcome("g", [{"text": "y"}, None, []])
    await world.take(world.client.cancel("g", force=True))
    assert [entry.text for entry in await world.told("g")][3:] == [
        "step done: changed text; next: check",
        'asks: "y"',
        "cancel by force asked for",
        "run cancelled by force, without clean-up after 2.0 s",
    ]
    await world.start(broken, "no", "b")
    await world.take(world.client.retry("b", operator="ada"))
    assert [entry.level for entry in await world.told("b")][-1] == "bad"


@in_world
async def test_every_event_has_a_sentence_and_a_plain_form(world: World) -> None:
    bodies = [
        ev.AttemptReturned("1", 1, "the worker stops"),
        ev.AttemptNoted("1", 1, b'{"id": 7}'),
        ev.PatchMarked("4", "new"),
        ev.RunRepaired((ev.Change("a", "set", b"1"),), "ada", "typo"),
        ev.InputHeld("op.completed", "1", 1, b"1"),
        ev.HeldDropped("gone"),
        ev.RunUnblocked("ada"),
        ev.RunExpired("old"),
        ev.OutcomeLate("1", 1, b"1"),
        ev.OpFailed("1", 1, ev.Failure("terminal", "NO", "no")),
        ev.RunFailed(ev.Failure("terminal", "NO", ""), cancel_requested=True),
        ev.RunForked("r", 3, "f", b"\x01", (("1", b"2"),)),
    ]
    await world.start(buy, ORDER)
    run = world.owner.runs["r"]
    await world.owner.write(
        *(ev_(run, seq, body) for seq, body in enumerate(bodies, start=run.seq + 1)),
    )
    history = await world.client.history("r")
    codec = world.client.values.codec
    assert all(entry.text for entry in timeline(history, codec))
    lines = list(history_lines(history, codec))
    assert json.loads(json.dumps(lines)) == lines
    first = lines[0]
    assert pick(first, "event_id run_id seq type op epoch cause offset") == {
        "event_id": f"{run.identity}/1",
        "run_id": "r",
        "seq": 1,
        "type": "run.started",
        "op": None,
        "epoch": 1,
        "cause": None,
        "offset": 0,
    }
    assert first["payload"]["base"] == {"input": {"id": "o-1", "amount": "9.90"}}
    assert re.fullmatch(r"[0-9a-f]{32}", first["payload"]["seed"])
    assert lines[1]["op"] == "1"
    assert lines[-1]["payload"]["outcomes"] == {"1": 2}
    assert lines[-2]["payload"]["error"] == {"class": "terminal", "code": "NO", "message": "", "details": None}


def ev_(run: Any, seq: int, body: ev.Body) -> Any:
    from streams.kernel.events import Event

    return Event(run.run_id, run.identity, seq, run.at + seq, None, None, 1, body)


# -- diagnose ----------------------------------------------------------------------------------------------------


@in_world
async def test_a_diagnosis_answers_the_questions(world: World) -> None:
    await world.to_payment()
    place = world.owner.places["r"]
    await world.owner.checkpoint("r")
    await world.owner.lease(place)
    await world.owner.decide("r", Recover())
    found = await world.diagnosis()
    assert found.checkpoint is not None
    assert (found.checkpoint.id, found.checkpoint.offset) == ("r@6", 0)
    assert [(task.name, task.outcome) for task in found.tasks_done] == [("price", "completed")]
    (task,) = found.tasks_open
    assert task[:6] == ("3", "pay", "parked", 1, True, True)
    assert (found.ownership.current, found.ownership.run_owner, found.ownership.run_epoch) == (True, "w-1", 1)
    assert found.last_error is not None
    assert (found.last_error.kind, found.last_error.code, found.last_error.op) == ("unknown", "OUTCOME_UNKNOWN", "3")
    assert found.last_error.requires_operator
    assert found.advice[0].commands == (
        "streams complete r --op 3 --value JSON",
        "streams retry r --op 3",
        "streams skip r --op 3",
    )
    await world.take(world.client.complete("r", "3", "p-1"))
    ended = await world.diagnosis()
    (effect,) = ended.effects
    assert (effect.effect, effect.key, effect.effect_id) == ("paid", "paid/o-1", f"r@{found_offset(world)}/4")
    assert [step.text for step in ended.nexts] == ["nothing: it is completed"]
    assert ended.advice == []
    text = "\n".join(ended.lines())
    assert "task done: op 3: pay completed by operator, attempt 1" in text
    assert "last checkpoint: r@6 (offset 0)" in text


def found_offset(world: World) -> int:
    return int(world.owner.runs["r"].identity.rpartition("@")[2])


@in_world
async def test_what_a_run_would_do_next(world: World) -> None:
    async def next_of(run_id: str = "r") -> str:
        return re.sub(r"\d{4}-\S+Z", "TIME", "; ".join(s.text for s in (await world.diagnosis(run_id)).nexts))

    await world.start(buy, ORDER)
    assert await next_of() == "waits for task price (attempt 1 of 3), open for 0 ms"
    await world.owner.decide("r", Returned("1", 1, "the worker stops"))
    assert (
        await next_of()
        == "retries task price (attempt 2 of 3) at TIME, due 0 ms ago: it is done as soon as a worker owns the run"
    )
    await world.owner.due("r", "1")
    await world.owner.outcome("r", Decimal(1))
    world.owner.now += 90 * SECOND
    assert (await next_of()).startswith("waits for an answer to interrupt 2 (approval), for 1 min 30 s: {")
    await world.start(chatter, 1, "c")
    assert await next_of("c") == "waits for signal note, for 0 ms"
    await world.take(world.client.signal("c", note, "x"))
    assert await next_of("c") == "wakes up at TIME, in 1 min"
    world.owner.slots = 0
    await world.start(graph, {"text": "x"}, "g")
    assert await next_of("g") == "starts task doc.draft when a slot is free, queued for 0 ms"
    await world.take(world.client.signal("p", note, "x"))
    assert await next_of("p") == "waits for its start; 1 signals are kept for it"
    await world.start(broken, "no", "b")
    assert (await next_of("b")).startswith("nothing before an operator has acted: WORKFLOW_BUG; 1 inputs are kept")


@in_world
async def test_blocked_runs_come_with_commands(world: World) -> None:
    await world.start(broken, "no", "b; rm")
    found = await world.diagnosis("b; rm")
    assert found.advice[0].commands == ("streams retry 'b; rm'", "streams cancel 'b; rm' --force")
    assert found.last_error is not None
    assert (found.last_error.code, found.last_error.requires_operator) == ("WORKFLOW_BUG", True)
    lines = found.lines()
    assert "    streams retry 'b; rm'" in lines
    assert lines[1] == "last checkpoint: none yet; the run is its events"
    assert await diagnose(world.client, "nobody", now=0) is None


@in_world
async def test_ownership_compares_the_run_with_the_lease(world: World) -> None:
    await world.start(chatter, 1)
    place = world.owner.places["r"]
    none = (await world.diagnosis()).ownership
    assert (none.current, none.text) == (False, f"no worker has ever claimed partition {place}")
    world.owner.epoch, world.owner.name = 4, "w-4"
    await world.owner.lease(place)
    moved = (await world.diagnosis()).ownership
    assert (moved.current, moved.run_owner, moved.lease_owner) == (False, "w-1", "w-4")
    assert "w-4 owns it now (epoch 4" in moved.text
    await world.owner.lease(place, address="rack-7:9000", host="rack-7")
    found = (await world.diagnosis()).ownership
    assert found.address == "rack-7:9000"
    assert "w-4 at rack-7:9000 owns it now" in found.text
    await world.owner.lease(place, released=True)
    assert "gave partition" in (await world.diagnosis()).ownership.text
    world.owner.epoch = 0
    await world.owner.lease(place)
    assert "leases were lost" in (await world.diagnosis()).ownership.text
    world.owner.name = f"{socket.gethostname()}/999999999/x"
    await world.owner.lease(place)
    gone = (await world.diagnosis()).ownership
    assert (gone.alive, "its process is gone" in gone.text) == (False, True)


def test_whether_the_owners_process_runs() -> None:
    lease = Lease(0, "w", 1, (), None, 0, 0, "t", 0)
    here = socket.gethostname()
    assert is_alive(lease) is None
    assert is_alive(lease._replace(host=here, pid=os.getpid())) is True
    assert is_alive(lease._replace(owner=f"{here}/{os.getpid()}/ab")) is True
    assert is_alive(lease._replace(host="elsewhere", pid=os.getpid())) is None


@in_world
async def test_commands_that_nobody_has_taken_are_counted(world: World) -> None:
    await world.start(chatter, 1)
    await world.log.rewind_group("shop.workers", "shop.commands", {world.owner.places["r"]: 1})
    assert (await world.diagnosis()).backlog == 0
    await world.client.signal("r", note, "x")
    found = await world.diagnosis()
    assert found.backlog == 1
    assert any("that no worker has taken yet: up to 1" in text for text in found.lines())


# -- advice and words --------------------------------------------------------------------------------------------


def test_the_page_of_error_codes_is_the_table() -> None:
    page = Path(__file__).parents[2] / "docs" / "errors.md"
    assert page.read_text("utf-8") == errors_page(), (
        "python -c \"from streams.ops.advice import errors_page; print(errors_page(), end='')\" > docs/errors.md"
    )


def test_every_code_of_the_engine_has_advice() -> None:
    design = """NON_DETERMINISM WORKFLOW_BUG WORKFLOW_UNKNOWN VERSION_UNSUPPORTED SCHEMA_VERSION_UNSUPPORTED
        VALUE_TOO_LARGE VALUE_NOT_STORABLE RUN_DAMAGED OUTCOME_UNKNOWN RETRIES_EXHAUSTED"""
    assert set(design.split()) <= set(ADVICE)
    streams = Path(__file__).parents[2] / "streams"
    inner = {"UNKNOWN", "HELD_DROPPED"}  # caught inside, or only for the eyes of whoever reads a torn log
    raised = re.compile(r'(?:Refused|Fault|CommandUnreadable|CommandRejected)\(\s*"([A-Z_]{4,})"')
    failed = re.compile(r'Failure\(\s*"[a-z]+",\s*"([A-Z_]{4,})"')
    for room in ("kernel", "wire", "runtime", "authoring"):
        for path in (streams / room).rglob("*.py"):
            text = path.read_text("utf-8")
            codes = {*raised.findall(text), *failed.findall(text)}
            assert codes - inner <= {*ADVICE}, path


def test_unknown_codes_get_general_advice() -> None:
    assert advice_for("Strange", "r").commands == ("streams retry r", "streams cancel r --force")
    assert advice_for("ConnectionError", "r", "3/1").commands[0] == "streams retry r --op 3/1"
    assert advice_for("VALUE_TOO_LARGE", "r").commands == ("streams retry r", "streams cancel r --force")
    assert advice_for("VALUE_TOO_LARGE", "r", "1").commands == (
        "streams complete r --op 1 --value JSON",
        "streams skip r --op 1",
    )


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (-5, "0 ms"),
        (0, "0 ms"),
        (7_300, "7 ms"),
        (1_000_000, "1.0 s"),
        (59_900_000, "60 s"),
        (61_000_000, "1 min 1 s"),
        (3_600_000_000, "1 h"),
        (3_725_000_000, "1 h 2 min"),
        (90_000_000_000, "1 d 1 h"),
    ],
)
def test_spans_in_words(us: int, text: str) -> None:
    assert span(us) == text


def test_times_and_values_in_words() -> None:
    assert iso(1_700_000_000_123_456) == "2023-11-14T22:13:20.123Z"
    assert iso(10**18) == f"{10**18} µs"
    assert line({"a": "ä"}) == '{"a": "ä"}'
    assert len(line("x" * 1000)) == 200
