"""The invariants of subscribers and requests find what they are for: each case spoils a true history in one way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from streams.effects.port import Ask, Key, Settlement, Status
from streams.kernel import bodies as ev
from streams.testing.clock import VirtualClock
from streams.testing.loop import run_virtual
from streams.testing.sim.history import History, Served, read_history
from streams.testing.sim.options import Options
from streams.testing.sim.rules_effects import check_effects
from streams.testing.sim.rules_requests import check_requests
from streams.testing.sim.run import simulate
from streams.testing.sim.services import Handled, Work
from streams.testing.sim.watched import WatchedLedger
from tests.sim.planted.faults import FAULTS
from tests.sim.planted.planting import planted

OPTIONS = Options(runs=80, subscribers=2)
SEED = 3


class Story(NamedTuple):
    """A history, and what is known beside it."""

    history: History
    served: Served
    app: Any

    def wrong(self) -> list[str]:
        world: Any = SimpleNamespace(app=self.app, served=self.served)
        return [*check_effects(self.history, world), *check_requests(self.history)]

    # -- spoiling ------------------------------------------------------------------------------------------------

    def entries(self, change: Callable[[dict[Key, Any]], None]) -> Story:
        entries = dict(self.served.entries)
        change(entries)
        return self._replace(served=self.served._replace(entries=entries))

    def entry(self, fits: Callable[[Any], bool], **fields: Any) -> Story:
        def change(entries: dict[Key, Any]) -> None:
            key = next(key for key, entry in entries.items() if fits(entry))
            entries[key] = entries[key]._replace(**fields)

        return self.entries(change)

    def calls(self, change: Callable[[list[Handled]], list[Handled]]) -> Story:
        services: Any = SimpleNamespace(
            calls=change(list(self.served.services.calls)), works=dict(self.served.services.works)
        )
        return self._replace(served=self.served._replace(services=services))

    def works(self, change: Callable[[dict[str, list[Work]]], None]) -> Story:
        spoiled = self.calls(list)
        change(spoiled.served.services.works)
        return spoiled

    def without_letters(self, code: str) -> Story:
        letters = [[one for one in some if one[1].code != code] for some in self.history.effect_letters]
        return self._replace(history=self.history._replace(effect_letters=letters))

    def event(self, fits: Callable[[Any], bool], change: Callable[[Any], Any]) -> Story:
        """Change the first event that fits."""
        events = [list(some) for some in self.history.events]
        number, at = next((n, i) for n, some in enumerate(events) for i, (_, event) in enumerate(some) if fits(event))
        record, event = events[number][at]
        events[number][at] = (record, change(event))
        return self._replace(history=self.history._replace(events=events))

    def replies(self, change: Callable[[list[Any]], list[Any]]) -> Story:
        return self._replace(history=self.history._replace(replies=change(list(self.history.replies))))


@pytest.fixture(scope="module")
def story() -> Story:
    found: list[Story] = []

    async def look(world: Any) -> list[str]:
        found.append(Story(await read_history(world), world.served, world.app))
        return []

    assert simulate(SEED, OPTIONS, check=look, only=()).violations == ()
    return found[0]


def test_a_true_history_is_right(story: Story) -> None:
    assert story.wrong() == []
    assert {entry.status for entry in story.served.entries.values()} == {Status.DONE, Status.FAILED}


def of(operation: str) -> Callable[[Any], bool]:
    return lambda entry: entry.key.operation == operation and entry.status is Status.DONE and not entry.operator


def by_reply(kind: type) -> Callable[[Any], bool]:
    """An outcome of a request."""
    return lambda event: isinstance(event.body, kind) and event.offset is not None and event.run_id.startswith("asked")


def twice(works: dict[str, list[Work]]) -> None:
    key = next(key for key in works if key.startswith("k/asked"))
    works[key] = works[key] * 2


def again(calls: list[Handled]) -> list[Handled]:
    """A call that nobody has looked up before it, of what may have happened."""
    call = next(call for call in calls if call.effect == "payments" and not call.look and not call.act)
    return [*calls, call._replace(order=len(calls))]


def swapped(calls: list[Handled]) -> list[Handled]:
    notes = [at for at, call in enumerate(calls) if call.effect == "notes" and not call.ended]
    first, second = next(
        (a, b) for a in notes for b in notes if calls[a].run_id == calls[b].run_id and calls[a].key < calls[b].key
    )
    calls[first], calls[second] = calls[second], calls[first]
    return calls


def reply_of(event: Any) -> Any:
    return event._replace(body=event.body._replace(value=b'"another"'))


SPOILS: dict[str, tuple[Callable[[Story], Story], str]] = {
    "an entry is missing": (lambda s: s.entries(lambda e: e.pop(next(iter(e)))), "is unknown to the ledger"),
    "an entry has not ended": (lambda s: s.entry(of("payments"), status=Status.CLAIMED), "has not ended"),
    "an entry waits for a person": (lambda s: s.entry(of("blind"), status=Status.PARKED), "has not ended"),
    "an ended entry is claimed": (lambda s: s.entry(of("notes"), claim="claim-1"), "is still claimed"),
    "another response": (lambda s: s.entry(of("payments"), response=b'"other"'), "and outside it is"),
    "another request": (lambda s: s.entry(of("payments"), request_hash=b"other"), "and no dead letter says so"),
    "done twice": (lambda s: s.works(twice), "was done 2 times"),
    "not done": (lambda s: s.works(lambda works: works.clear()), "and outside it is []"),
    "called again": (lambda s: s.calls(again), "without a look-up"),
    "more calls than deliveries": (lambda s: s.entry(of("notes"), deliveries=0), "the ledger counts 0 deliveries"),
    "too many deliveries": (lambda s: s.entry(of("notes"), deliveries=9), "had 9 deliveries"),
    "out of order": (lambda s: s.calls(swapped), "which follows it"),
    "no letter of a refusal": (lambda s: s.without_letters("REFUSED"), "was given up (REFUSED)"),
    "no letter of a conflict": (lambda s: s.without_letters("KEY_CONFLICT"), "and no dead letter says so"),
    "a row too many": (
        lambda s: s._replace(served=s.served._replace(tables={**s.served.tables, "nobody": 1})),
        "nobody has a row",
    ),
    "a row written twice": (
        lambda s: s._replace(served=s.served._replace(tables=dict.fromkeys(s.served.tables, 2))),
        "was written 2 times",
    ),
    "a row missing": (lambda s: s._replace(served=s.served._replace(tables={})), "its row is missing"),
    "a completion with another value": (lambda s: s.event(by_reply(ev.OpCompleted), reply_of), "and the reply said"),
    "a completion of another attempt": (
        lambda s: s.event(by_reply(ev.OpCompleted), lambda e: e._replace(body=e.body._replace(attempt=7))),
        "is of attempt 7",
    ),
    "a completion without a reply": (
        lambda s: s.event(by_reply(ev.OpCompleted), lambda e: e._replace(offset=None)),
        "has completed without a reply",
    ),
    "a reply to another attempt": (
        lambda s: s.replies(lambda replies: [(r, reply._replace(attempt=9), mine) for r, reply, mine in replies]),
        "may be answered",
    ),
    "a reply to nobody": (
        lambda s: s.replies(lambda replies: [(r, reply._replace(effect_id="x"), mine) for r, reply, mine in replies]),
        "and there is no such request",
    ),
    "a request that begins late": (
        lambda s: s.event(
            lambda e: isinstance(e.body, ev.OpScheduled) and e.body.kind == "request",
            lambda e: e._replace(body=e.body._replace(attempt=2)),
        ),
        "begins a request with attempt 2",
    ),
}


@pytest.mark.parametrize("name", SPOILS)
def test_what_is_spoiled_is_found(story: Story, name: str) -> None:
    spoil, text = SPOILS[name]
    wrong = spoil(story).wrong()
    assert any(text in line for line in wrong), wrong[:5]


async def settled_by_nobody() -> list[str]:
    told: list[str] = []
    ledger = WatchedLedger(VirtualClock(asyncio.get_running_loop()), told.append)
    ask = Ask(Key("sim", "payments", "k"), b"hash", "r@1/1", "r", "1", 1, 0, "payments[0]@0")
    await ledger.claim([ask], "s1", 30)
    await ledger.settle([Settlement(ask.key, "of another", Status.DONE)])
    await ledger.claim([ask], "s2", 30)
    return told


def test_the_watched_ledger_tells_of_an_outcome_without_a_claim() -> None:
    assert run_virtual(settled_by_nobody()) == []
    with planted(FAULTS["settlement_ignores_the_claim"]), planted(FAULTS["done_entry_ignored"]):
        told = run_virtual(settled_by_nobody())
    assert [text.partition(", ")[0] for text in told] == [
        "payments k was settled as done by a claim that it does not have",
        "payments k was done",
    ]
