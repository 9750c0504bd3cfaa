"""The fold and what it stands on: frozen values, damage told, and one state for one journal (F07)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from streams import Context, TaskFailed
from streams.kernel import bodies as ev
from streams.kernel.changes import apply_changes, fresh_base
from streams.kernel.evolve import UnknownEvent, evolve
from streams.kernel.inputs import Due
from streams.kernel.run import OpPhase, Phase, blank
from streams.kernel.vector import Vector
from tests.kernel.harness import Harness, failure
from tests.kernel.test_ops import begin, double, explode, greet, words


def test_a_vector_has_value_semantics() -> None:
    empty: Vector[int] = Vector()
    a = empty.append(1)
    b = a.append(2)
    c = a.append(3)
    assert (list(empty), list(a), list(b), list(c)) == ([], [1], [1, 2], [1, 3])
    assert b.append(4) != c.append(4)
    assert a == Vector([1])
    assert hash(a) == hash(Vector([1]))
    assert (b[-1], b[0], len(b)) == (2, 1, 2)
    assert repr(b) == "Vector([1, 2])"
    for index in (2, -3):
        with pytest.raises(IndexError):
            b[index]


def test_the_empty_vector_that_runs_share_keeps_nothing() -> None:
    shared = blank("a", 0).journal
    shared.append(1)  # type: ignore[arg-type]
    assert shared._buffer == []


def test_appending_to_a_long_vector_copies_nothing() -> None:
    vector: Vector[int] = Vector(range(10_000))
    buffer = vector._buffer
    for i in range(100):
        vector = vector.append(i)
    assert vector._buffer is buffer


def test_changes() -> None:
    base = fresh_base([("a", b"1"), ("l", b"[1]")])
    changes = [ev.Change("l", "extend", b"[2]"), ev.Change("m", "merge", b"{}"), ev.Change("a", "set", b"2")]
    after = apply_changes(base, changes)
    assert {name: list(value.chunks) for name, value in after} == {"a": [b"2"], "l": [b"[1]", b"[2]"], "m": [b"{}"]}
    assert base == fresh_base([("a", b"1"), ("l", b"[1]")])
    with pytest.raises(ValueError, match="cannot merge what was built by extend"):
        apply_changes(after, [ev.Change("l", "merge", b"{}")])


async def short(ctx: Context, n: int) -> int:
    return await ctx.run(double, n)


def test_a_log_that_does_not_fit_is_damage() -> None:
    run = begin(short, 1)
    run.settle()
    first = evolve(blank("r", 0), run.log[0])
    cases = [
        (blank("r", 0), run.log[1], "does not follow"),
        (first, run.log[0], "does not follow"),
        (first, run.log[2], "does not follow"),
        (first, run.log[1]._replace(body=ev.TimerFired("7")), "does not fit its state"),
        (first, run.log[1]._replace(body=ev.SignalTaken("7", 1)), "does not fit its state"),
        (first, run.log[1]._replace(body=ev.HeldDropped("x")), "does not fit its state"),
        (first, run.log[1]._replace(body=ev.RunForked("a", 1, "b", b"")), "is not known to this version"),
        (run.run, run.log[-1]._replace(seq=len(run.log) + 1), "comes after its end"),
    ]
    for state, event, text in cases:
        with pytest.raises(ValueError, match=text):
            evolve(state, event)
    with pytest.raises(UnknownEvent):
        evolve(first, run.log[1]._replace(body=ev.RunForked("a", 1, "b", b"")))


def test_everything_but_identity_hashes_and_result_goes_at_the_end() -> None:
    run = begin(short, 1)
    run.signal("words", "x")
    run.settle()
    state = run.run
    assert state.phase is Phase.COMPLETED
    assert (state.base, state.ops, state.inbox, state.held, len(state.journal), state.seed) == ((), {}, (), (), 0, b"")
    assert state.input_hash
    assert state.workflow == "w"
    assert state.seen == ("c1",)


# -- F07 ---------------------------------------------------------------------------------------------------------


async def parallel(ctx: Context, n: int) -> list[Any]:
    async def branch(i: int) -> list[Any]:
        a = await ctx.run(double, i)
        won = await ctx.first(ctx.run(greet, f"x{i}"), ctx.run(greet, f"y{i}"))
        return [a, won.index, await ctx.run(double, a + won.index), ctx.random()]

    async def failing() -> str:
        try:
            return str(await ctx.run(explode, "X"))
        except TaskFailed as error:
            return error.code

    first = await ctx.first([ctx.spawn(branch(9)), ctx.run(greet, "z"), ctx.receive(words)])
    rest = await ctx.all([*(ctx.spawn(branch(i)) for i in range(3)), ctx.spawn(failing())])
    return [first.index, rest]


def schedule(seed: int, decisions: list[Any] | None = None) -> tuple[Harness, list[Any]]:
    """Let things finish in an order drawn from `seed`, with crashes; or in the order of `decisions`, without any."""
    rng = random.Random(seed)
    run = begin(parallel, 1, checked=False)
    taken: list[Any] = []
    script = iter(decisions or [])
    while run.run.phase is Phase.ACTIVE:
        if decisions is None:
            choices: list[Any] = [op.id for op in run.ops(OpPhase.RUNNING)]
            choices += ["signal"] if not run.run.signals else []
            choice = rng.choice(choices)
        else:
            choice = next(script)
        taken.append(choice)
        if choice == "signal":
            run.signal("words", "w")
        elif run.run.ops[choice].name == "explode":
            run.fail(choice, failure("X", "terminal"))
        else:
            run.feed(run.execute(run.run.ops[choice]))
        if decisions is None and rng.random() < 0.5:
            run.evict()
    return run, taken


@pytest.mark.parametrize("block", range(10))
def test_f07_a_thousand_schedules_give_one_fold_for_each_journal(block: int) -> None:
    for seed in range(block * 100, block * 100 + 100):
        run, taken = schedule(seed)
        assert run.fold() == run.run
        again, _ = schedule(seed, taken)
        assert again.log == run.log
        assert again.result == run.result


def test_f07_steps_are_known_by_their_place_not_by_the_order_of_their_end() -> None:
    async def w(ctx: Context, n: int) -> list[int]:
        return await ctx.all([ctx.run(double, i) for i in range(3)])

    for order in ("123", "321", "213"):
        run = begin(w, 1)
        for op in order[:2]:
            run.feed(run.execute(run.run.ops[op]))
        run.take_over()
        run.feed(Due(order[2]))
        run.feed(run.execute(run.run.ops[order[2]]))
        assert run.result == [0, 2, 4]


def test_f07_an_outcome_and_a_command_in_one_batch_are_two_deliveries() -> None:
    async def w(ctx: Context, n: int) -> int:
        return (await ctx.first(ctx.run(double, 1), ctx.receive(words))).index

    for first in ("outcome", "signal"):
        run = begin(w, 1)
        if first == "outcome":
            run.done("1", 2)
            assert run.result == 0
        else:
            run.signal("words", "x")
            run.done("1", 2)
            assert run.result == 1


def test_what_is_made_without_a_constructor_has_every_field() -> None:
    async def w(ctx: Context, n: int) -> int:
        return await ctx.run(double, n)

    run = begin(w, 1)
    assert run.log
    assert run.run.ops
    made = [*run.log, *run.run.journal, *run.run.ops.values(), run.run]
    assert [len(value) for value in made] == [len(type(value)._fields) for value in made]
