"""What `show`, `history` and `diagnose` say of requests: when no reply has come, when it came late, and when parked."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from io import StringIO
from typing import Any

from rich.console import Console

from streams import App, Context, RequestFailed, Retry
from streams.cli.render import waits
from streams.cli.render_diagnosis import diagnosis
from streams.client import Client
from streams.kernel import bodies as ev
from streams.log.memory import MemoryLog
from streams.ops.views import show
from streams.wire.messages import EffectMessage
from streams.wire.outbox import message_of
from tests.unit.owner import Owner
from tests.unit.test_ops_views import World, pick

app = App("asks")
payments = app.effect("payments", dict, reply=str, retry=Retry(max_attempts=2, initial=10, max_delay=10))
mails = app.effect("mails", str)


@app.workflow(version=1)
async def pay(ctx: Context, timeout: float | None) -> str:
    try:
        paid = await ctx.request(payments, {"cents": 5}, idempotency_key="pay/o1", timeout=timeout)
    except RequestFailed as failed:
        return failed.kind
    ctx.emit(mails, paid)
    return paid


class Asks(World):
    """The world of this app; the owner writes events only, so the messages are made from them here."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.owner = Owner(self.log, app)
        self.client = Client(self.log, app)

    async def message(self, attempt: int = 1) -> EffectMessage:
        first = next(filter(None, (message_of(stored.event, None) for stored in await self.client.history("r"))))
        return first._replace(attempt=attempt)

    async def reply(self, value: Any = None, *, attempt: int = 1, error: Any = None) -> None:
        await self.take(self.client.reply(await self.message(attempt), value, error=error))

    async def texts(self) -> list[str]:
        return [re.sub(r"\d{4}-\S+Z", "TIME", entry.text) for entry in await self.told()]

    async def next(self) -> str:
        (step,) = (await self.diagnosis()).nexts
        return re.sub(r"\d{4}-\S+Z", "TIME", step.text)


def in_asks(test: Callable[[Asks], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        async def body() -> None:
            world = Asks()
            await world.owner.create()
            async with world.client:
                await asyncio.wait_for(test(world), 60)

        asyncio.run(body())

    run.__name__ = test.__name__
    return run


@in_asks
async def test_an_open_request_is_what_the_run_waits_for(world: Asks) -> None:
    await world.start(pay, 600.0)
    found = await world.shown()
    assert (found["status"], found["attention"]) == ("waiting", False)
    (item,) = found["waiting"]
    assert pick(item, "kind id name effect state attempt key may_have_happened") == {
        "kind": "request",
        "id": "1",
        "name": "payments",
        "effect": "payments",
        "state": "waiting",
        "attempt": 1,
        "key": "pay/o1",
        "may_have_happened": False,
    }
    assert item["since"] < item["due"]
    (line,) = waits(found)
    assert re.fullmatch(r"the reply to request payments \(op 1, attempt 1, until \d\d:\d\d:\d\d\)", line.plain)
    assert await world.next() == "waits for the reply to request payments (attempt 1 of 2), until TIME, for 0 ms"
    diagnosed = await world.diagnosis()
    (request,) = diagnosed.requests_open
    assert (request.op, request.effect, request.state, request.attempt) == ("1", "payments", "waiting", 1)
    assert request.may_have_happened
    assert [(out.effect, out.attempt, out.key) for out in diagnosed.effects] == [("payments", 1, "pay/o1")]
    assert any(text.startswith("request open: op 1: payments (attempt 1, waiting) since") for text in diagnosed.lines())
    assert diagnosed.tasks_open == []


@in_asks
async def test_without_a_time_out_no_end_is_told_of(world: Asks) -> None:
    await world.start(pay, None)
    (line,) = waits(await world.shown())
    assert line.plain == "the reply to request payments (op 1, attempt 1)"
    assert await world.next() == "waits for the reply to request payments (attempt 1 of 2), for 0 ms"
    await world.take(world.client.cancel("r"))
    assert (await world.next()).endswith(", asked to stop")


@in_asks
async def test_the_history_tells_of_each_attempt_and_of_what_came_late(world: Asks) -> None:
    await world.start(pay, 60.0)
    await world.owner.due("r", "1", later=60)
    assert "retries request payments (attempt 2 of 2) at TIME" in await world.next()
    (item,) = (await world.shown())["waiting"]
    assert pick(item, "kind state code may_have_happened") == {
        "kind": "request",
        "state": "backoff",
        "code": "TIMED_OUT",
        "may_have_happened": True,
    }
    await world.owner.due("r", "1", later=60)
    await world.reply("p0", attempt=1)
    await world.reply("p1", attempt=2)
    await world.reply("p2", attempt=2)
    texts = await world.texts()
    assert texts[1] == 'request payments out, attempt 1, key pay/o1, until TIME: {"cents": 5}'
    assert re.match(r"attempt 1 of request payments failed after .* \(it may have done its work\): TIMED_OUT", texts[2])
    assert texts[3] == "request payments out again, attempt 2"
    assert texts[4].startswith("reply refused: STALE_REPLY: the reply is for effect 'r@0/1', attempt 1 of epoch 1")
    assert texts[5] == 'attempt 1 of request payments ended too late to count: "p0"'
    assert re.match(r"request payments completed after .*, attempt 2: \"p1\"", texts[6])
    assert texts[-2].startswith("reply refused: RUN_TERMINAL")
    assert texts[-1] == 'attempt 2 of request payments ended too late to count: "p2"'
    effects = [(out.effect, out.attempt) for out in (await world.diagnosis()).effects]
    assert effects == [("payments", 1), ("payments", 2), ("mails", 0)]


@in_asks
async def test_a_reply_that_was_refused_is_told_while_its_request_is_open(world: Asks) -> None:
    """Whoever sent it takes the request for answered; nothing but this says why the run waits on."""
    await world.start(pay, None)
    assert (await world.diagnosis()).reply_refused == ""
    await world.reply(17)
    found = await world.diagnosis()
    assert found.reply_refused.startswith("the value is no reply to effect 'payments': expected str")
    assert f"a reply was refused: {found.reply_refused}" in found.lines()
    assert found.plain()["reply_refused"] == found.reply_refused
    (advice,) = found.advice
    assert (advice.code, advice.commands) == ("REPLY_INVALID", ("streams complete r --op 1 --value JSON",))
    console = Console(width=200, file=StringIO())
    console.print(diagnosis(found))
    assert "a reply was refused: the value is no reply" in console.file.getvalue()
    await world.reply("p-1")
    ended = await world.diagnosis()
    assert (ended.reply_refused, ended.advice) == ("", [])


@in_asks
async def test_a_parked_request_says_what_an_operator_can_do(world: Asks) -> None:
    await world.start(pay, None)
    await world.reply(error=("unknown", "LOST", "the line broke"))
    found = await world.shown()
    assert (found["status"], found["attention"]) == ("waiting", True)
    (item,) = found["waiting"]
    assert pick(item, "kind effect code") == {"kind": "parked", "effect": "payments", "code": "OUTCOME_UNKNOWN"}
    diagnosed = await world.diagnosis()
    (advice,) = diagnosed.advice
    assert advice.commands == (
        "streams complete r --op 1 --value JSON",
        "streams retry r --op 1",
        "streams skip r --op 1",
    )
    assert diagnosed.last_error is not None
    assert diagnosed.last_error.requires_operator
    assert "request payments is parked, waits for an operator: OUTCOME_UNKNOWN" in await world.next()
    assert diagnosis(diagnosed).renderables
    await world.take(world.client.complete("r", "1", "by hand"))
    assert show(await world.view(), world.client.values.codec)["result"] == "by hand"
    assert [body.operator for body in bodies(await world.client.history("r"), ev.OpCompleted)] == ["operator"]


def bodies(history: list[Any], kind: type) -> list[Any]:
    return [stored.event.body for stored in history if isinstance(stored.event.body, kind)]
