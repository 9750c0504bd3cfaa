"""Tasks whose attempt has begun and never ended, with a real provider: found, not found, unknown, or never twice."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from streams.dev import Kafka
from streams.kernel import bodies as ev
from streams.kernel import commands as cmd
from tests.effects.real.play import play
from tests.effects.real.stage import Pair, Stage
from tests.runtime.history import start, until
from tests.system.processes import on_each_log

pytestmark = pytest.mark.slow

APP = "tests.effects.real.buying"
KINDS = ("looked_up", "blind", "keyed", "once")
SLOW_MS = 20_000
"""The provider has done its work at once, and answers so late that a kill is sure to come before."""


async def die_at(s: Stage, point: str, workflow: str) -> None:
    """A worker dies at this point of the only task of a run, which has the name of its workflow."""
    worker = await s.worker(APP, point)
    await s.history.start(workflow, workflow, workflow)
    assert await worker.gone() == -signal.SIGKILL


async def parked(s: Stage, run_id: str) -> ev.OpParked:
    (found,) = await s.history.seen(run_id, ev.OpParked)
    assert found.reason.code == "OUTCOME_UNKNOWN"
    return found


async def close(s: Stage) -> None:
    await s.close()
    await s.check()


@on_each_log
def test_f26_a_worker_killed_before_the_call_of_a_task(tmp_path: Path, broker: Kafka | None):
    """The start is recorded and nothing was done: the look-up does not find it, and it is carried out then."""

    async def looked_up(s: Stage) -> None:
        await die_at(s, "task.started/hold", "looked_up")
        assert s.outside.asked("looked_up") == []
        await s.worker(APP)
        assert await s.history.result("looked_up") == "rs-1"
        assert s.outside.asked("looked_up") == [("hold/looked_up", 201)]
        await close(s)

    async def once(s: Stage) -> None:
        await die_at(s, "task.started/hold_once", "once")
        await s.worker(APP)
        op = (await parked(s, "once")).op
        assert s.outside.asked("once") == []  # nobody has guessed
        await s.history.send("once", cmd.Complete(op, b'"by hand"'))
        assert await s.history.result("once") == "by hand"
        assert s.outside.asked("once") == []
        await close(s)

    play(tmp_path, Pair(broker), looked_up, once)


@on_each_log
def test_f26_a_worker_killed_between_the_call_of_a_task_and_its_return(tmp_path: Path, broker: Kafka | None):
    """The provider, which would do all of it again, has done the work of four tasks, and their worker dies waiting."""

    async def scene(s: Stage) -> None:
        for kind in KINDS:
            await s.outside.behave(kind, "slow", delay_ms=SLOW_MS)
        first = await s.worker(APP)
        await s.history.send_all([(kind, start(kind, kind)) for kind in KINDS])
        await s.outside.held(*KINDS)
        await first.end()
        await s.worker(APP)
        assert (await s.history.result("looked_up")).startswith("rs-")
        assert await s.history.result("keyed") == "rs-" + str(s.outside.number("keyed"))
        ops = {kind: (await parked(s, kind)).op for kind in ("blind", "once")}
        assert s.outside.all_holds() == dict.fromkeys(KINDS, 1)
        requests = {kind: len(s.outside.asked(kind)) for kind in KINDS}
        assert requests == {"looked_up": 1, "blind": 1, "keyed": 2, "once": 1}
        await s.history.send("blind", cmd.Skip(ops["blind"]))
        await s.history.ended("blind")
        assert s.history.error("blind").code == "SKIPPED"
        await s.history.send("once", cmd.Complete(ops["once"], b'"seen at the provider"'))
        assert await s.history.result("once") == "seen at the provider"
        await close(s)

    play(tmp_path, Pair(broker), scene)


@on_each_log
def test_f26_a_worker_killed_after_the_return_of_a_task(tmp_path: Path, broker: Kafka | None):
    """The work is done, and its outcome was known to a process that is no more."""

    async def looked_up(s: Stage) -> None:
        await s.outside.down()
        await s.outside.up("--ignore-keys")
        await die_at(s, "task.returned/hold", "looked_up")
        await s.worker(APP)
        assert await s.history.result("looked_up") == "rs-1"
        assert s.outside.asked("looked_up") == [("hold/looked_up", 201)]
        await close(s)

    async def once(s: Stage) -> None:
        await die_at(s, "task.returned/hold_once", "once")
        await s.worker(APP)
        await parked(s, "once")
        assert s.outside.holds("once") == 1
        await close(s)

    play(tmp_path, Pair(broker), looked_up, once)


def test_f26_a_provider_that_does_the_work_of_a_task_and_drops_the_connection(tmp_path: Path):
    async def scene(s: Stage) -> None:
        for kind in KINDS:
            await s.outside.behave(kind, "drop_after")
        await s.worker(APP)
        await s.history.send_all([(kind, start(kind, kind)) for kind in KINDS])
        assert (await s.history.result("looked_up")).startswith("rs-")
        assert (await s.history.result("keyed")).startswith("rs-")
        for kind in ("blind", "once"):
            await parked(s, kind)
        assert s.outside.all_holds() == dict.fromkeys(KINDS, 1)
        assert len(s.outside.asked("looked_up")) == 1
        await close(s)

    play(tmp_path, Pair(), scene)


@on_each_log
def test_f26_a_provider_that_is_away_when_a_task_is_looked_up(tmp_path: Path, broker: Kafka | None):
    """A look-up that gets no answer has told nothing: it is asked again, and at last a person is."""

    async def killed_in_the_call(s: Stage) -> None:
        """Worker and provider die together; the look-ups of the next worker meet nobody."""
        await s.outside.down()
        await s.outside.up("--ignore-keys")
        await s.outside.behave("looked_up", "slow", delay_ms=SLOW_MS)
        first = await s.worker(APP)
        await s.history.start("looked_up", "looked_up", "looked_up")
        await s.outside.held("looked_up")
        await first.end()
        await s.outside.down()
        await s.worker(APP)

    async def comes_back(s: Stage) -> None:
        await killed_in_the_call(s)
        failed = await s.history.seen("looked_up", ev.AttemptFailed, 2)
        assert [body.error.code for body in failed[:2]] == ["WORKER_LOST", "RECONCILE_FAILED"]
        await s.outside.up("--ignore-keys")
        assert await s.history.result("looked_up") == "rs-1"
        assert s.outside.holds("looked_up") == 1
        await close(s)

    async def stays_away(s: Stage) -> None:
        await killed_in_the_call(s)
        op = (await parked(s, "looked_up")).op
        await s.outside.up("--ignore-keys")
        await s.history.send("looked_up", cmd.Retry(op))  # the person has seen to it that the provider is back
        assert await s.history.result("looked_up") == "rs-1"
        assert s.outside.holds("looked_up") == 1
        await close(s)

    play(tmp_path, Pair(broker), comes_back, stays_away)


@on_each_log
def test_f26_a_worker_frozen_before_the_call_of_a_task_is_too_late(tmp_path: Path, broker: Kafka | None):
    """The look-up of the next owner does not find the work, which is right; the late call comes under the same key."""

    async def scene(s: Stage) -> None:
        frozen = await s.worker(APP, freeze_at="task.started/hold:1")
        await frozen.owns(2)
        await s.history.start("looked_up", "looked_up", "looked_up")
        await until(lambda: frozen.frozen, "the worker at its crash point")
        await s.worker(APP)
        assert await s.history.result("looked_up") == "rs-1"
        frozen.signal(signal.SIGCONT)
        await until(lambda: len(s.outside.asked("looked_up")) == 2, "the late call")
        await frozen.owns(1)
        assert s.outside.asked("looked_up") == [("hold/looked_up", 201)] * 2
        assert s.outside.holds("looked_up") == 1
        await close(s)

    play(tmp_path, Pair(broker), scene)
