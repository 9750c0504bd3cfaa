"""The repair of a run that cannot be folded: what its owner decides, and what every fold makes of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings

from streams.errors import Refused
from streams.kernel import bodies as ev
from streams.kernel.commands import Command, Repair
from streams.kernel.events import Event
from streams.kernel.evolve import UnknownEvent, evolve
from streams.kernel.repair import order_of, repair, waits_for_repair
from streams.kernel.restate import STATE_FIELDS, changes_of, run_of
from streams.kernel.run import REPAIR_PENDING, Phase, Run
from tests.unit.test_wire_records import JOURNAL, OPS, RUN, RUNS

NAMELESS = Run("r1", "r1@?")


@settings(max_examples=200, deadline=None)
@given(RUNS)
def test_a_state_comes_back_from_its_changes_whatever_it_holds(run: Run) -> None:
    assert run_of(run.run_id, run.identity, changes_of(run)) == run._replace(seq=0, at=0, epoch=0)


def test_changes_name_only_what_differs_and_are_readable() -> None:
    changes = {change.field: json.loads(change.value) for change in changes_of(Run("r1", "r1@5", seed=b"\xff{}"))}
    assert changes == {"seed": "\u00ff{}"}
    assert changes_of(Run("r1", "r1@5")) == ()
    assert set(STATE_FIELDS) == set(Run._fields) - {"run_id", "identity", "seq", "at", "epoch"}


@pytest.mark.parametrize(
    "change",
    [
        ev.Change("seq", "set", b"1"),
        ev.Change("nobody", "set", b"1"),
        ev.Change("seed", "extend", b'"x"'),
        ev.Change("seed", "set", b"7"),
        ev.Change("seed", "set", '"\u6c49"'.encode()),
        ev.Change("seed", "set", b"no json"),
        ev.Change("seed", "set", b"\xff"),
        ev.Change("version", "set", b"true"),
        ev.Change("version", "set", b"1.5"),
        ev.Change("phase", "set", b'"asleep"'),
        ev.Change("ops", "set", b"{}"),
        ev.Change("ops", "set", b'[["1","tsk","t",null,"","waiting",0]]'),
        ev.Change("ops", "set", b'[["1"]]'),
        ev.Change("journal", "set", b"[[1,2,3]]"),
        ev.Change("seen", "set", b'["\\ud800"]'),
        ev.Change("base", "set", b'[["a"]]'),
        ev.Change("base", "set", b"[" * 50_000),
    ],
    ids=lambda change: f"{change.field} {change.value[:20]!r}",
)
def test_changes_that_make_no_state_are_refused_by_name(change: ev.Change) -> None:
    with pytest.raises(ValueError, match=change.field):
        run_of("r1", "r1@5", (change,))
    with pytest.raises(ValueError, match="at most once"):
        run_of("r1", "r1@5", (ev.Change("seed", "set", b'"x"'),) * 2)


def command(request: Repair, offset: int = 50) -> Command:
    return Command("r1", request, "c-1", offset, "ada")


def request(state: Run = RUN, seq: int = 20, **more: Any) -> Repair:
    return Repair(state.identity, seq, changes_of(state), "why", **more)


@pytest.mark.parametrize("known", [NAMELESS, RUN._replace(seq=20), RUN._replace(seq=12, ops={}, held=(), version=7)])
def test_f06_every_fold_comes_to_the_same_state_whatever_it_knew_of_the_damage(known: Run) -> None:
    run, event = repair(known, command(request()), request(), 1_000, 9)
    assert (event.seq, event.type, event.offset, event.epoch) == (21, "run.repaired", 50, 9)
    assert (run.seq, run.epoch, run.offset, run.at) == (21, 9, 50, 1_000)
    assert (run.ops, run.journal, run.phase) == (OPS, JOURNAL, Phase.ACTIVE)
    for before in (Run("r1", "r1@5"), RUN, RUN._replace(seq=20, offset=49, workflow="another")):
        assert evolve(before, event) == run
    with pytest.raises(ValueError, match="does not follow"):
        evolve(RUN._replace(seq=21), event)
    with pytest.raises(ValueError, match="after its end"):
        evolve(RUN._replace(phase=Phase.COMPLETED), event)


def test_f06_the_repaired_run_waits_until_its_commands_are_back() -> None:
    run, _ = repair(NAMELESS, command(request()), request(), 1_000, 9)
    assert waits_for_repair(run)
    assert run.blocked is not None
    assert (run.blocked.code, order_of(run)) == (REPAIR_PENDING, ("ada", False))
    parked, _ = repair(NAMELESS, command(request(parked=True)), request(parked=True), 1_000, 9)
    assert order_of(parked) == ("ada", True)
    stopped = RUN._replace(blocked=ev.Failure("code", "WORKFLOW_BUG", "it was stopped before"))
    assert order_of(repair(NAMELESS, command(request(stopped)), request(stopped), 1_000, 9)[0]) == ("ada", True)
    ended = RUN._replace(phase=Phase.COMPLETED, ops={}, result=b"1")
    assert repair(NAMELESS, command(request(ended)), request(ended), 1_000, 9)[0].blocked is None


@pytest.mark.parametrize(
    ("known", "wrong", "offset", "code"),
    [
        (RUN._replace(seq=21), request(), 50, "REPAIR_STALE"),
        (RUN._replace(identity="r1@6"), request(), 50, "REPAIR_STALE"),
        (NAMELESS, request()._replace(reason="\t"), 50, "REPAIR_INVALID"),
        (NAMELESS, request(), RUN.offset, "REPAIR_INVALID"),
        (NAMELESS, request(RUN._replace(workflow="")), 50, "REPAIR_INVALID"),
        (NAMELESS, request(RUN._replace(size=700_001)), 50, "VALUE_TOO_LARGE"),
    ],
)
def test_f06_a_repair_that_does_not_fit_is_refused(known: Run, wrong: Repair, offset: int, code: str) -> None:
    with pytest.raises(Refused) as refused:
        repair(known, command(wrong, offset), wrong, 1_000, 9)
    assert refused.value.code == code


def test_f25_a_field_of_a_newer_release_is_no_damage() -> None:
    body = ev.RunRepaired((ev.Change("mood", "set", b"1"),), "ada", "why")
    with pytest.raises(UnknownEvent):
        evolve(RUN, Event("r1", "r1@5", RUN.seq + 1, 1_000, None, None, 4, body))
