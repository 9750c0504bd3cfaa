"""What a worker does where a poll fails: the log is away, or the next command of a partition is gone."""

from __future__ import annotations

from typing import Any

import pytest

from streams.errors import LogDamaged, LogUnavailable
from streams.kernel.inputs import Due
from streams.runtime.inputs import Happened
from tests.runtime.lab import Lab, case, until
from tests.runtime.test_ownership import app


def failing(lab_worker: Any, errors: list[Exception]) -> None:
    """Its next polls raise these, one after another."""
    member, poll = lab_worker.member, lab_worker.member.poll

    async def wrong(records_max: int, timeout: float) -> Any:
        if errors:
            raise errors.pop(0)
        return await poll(records_max, timeout)

    member.poll = wrong


@case(app)
async def test_a_log_that_is_away_is_told_once_and_its_return_too(lab: Lab):
    running = await lab.worker()
    failing(running.worker, [LogUnavailable("nobody is there") for _ in range(3)])
    await until(lambda: running.told.heard("message", "the log answers again"))
    away = [said for said in running.told.heard("message") if "cannot be reached" in said[1]]
    assert away == [("message", "the log cannot be reached, trying again: nobody is there")]
    failing(running.worker, [LogUnavailable("gone again")])
    await until(lambda: len(running.told.heard("message", "the log answers again")) == 2)
    await lab.history.start("steps", "r", 1)
    assert await lab.history.result("r") == 5


@case(app)
async def test_a_partition_whose_next_command_is_gone_is_refused_alone_and_tried_again(lab: Lab):
    running = await lab.worker(retry_refused_seconds=0.5)
    kept = {n: p for n, p in running.worker.owner.partitions.items() if n != 2}
    failing(running.worker, [LogDamaged("the commands are gone", 2)])
    await until(lambda: running.told.heard("partition", 2, "refused"))
    assert running.told.heard("partition", 2, "refused")[0][4] == "the commands are gone"
    assert running.owned == set(kept), "the others go on"
    assert {n: running.worker.owner.partitions[n] for n in kept} == kept, "without having been restored again"
    await running.owns(4)
    await lab.history.start("steps", "r", 1)
    assert await lab.history.result("r") == 5


@case(app, "memory")
@pytest.mark.parametrize("what", ["rebalance", "expire"])
async def test_f24_a_full_inbox_keeps_no_worker_from_learning_what_has_become_of_its_group(lab: Lab, what: str):
    """Its turns are refused until a poll has brought a new snapshot; that poll must not wait for a turn."""
    running = await lab.worker(inbox_max=1, turn_inputs_max=1)
    partition = running.worker.owner.partitions[0]
    async with running.worker.turn_lock:
        for number in range(6):
            await lab.history.start("steps", f"r{number}", number)
        await until(lambda: len(running.worker.inbox) > 1, "a full inbox")
        for _ in range(5):
            running.worker.put(Happened(partition, "nobody", Due("1")))
        if what == "rebalance":
            lab.log.rebalance(lab.topics.group, lab.topics.commands)
        else:
            lab.log.expire(lab.topics.group, lab.topics.commands, "w1")
    for number in range(6):
        assert await lab.history.result(f"r{number}") == number + 4
