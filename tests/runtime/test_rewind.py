"""The group moved back, ahead, or without its offsets: known commands are skipped and counted, and nothing changes."""

from __future__ import annotations

import pytest

from streams.errors import LogUnavailable
from tests.runtime.history import until
from tests.runtime.lab import PARTITIONS, Lab, case
from tests.runtime.rewinding import HOW, app, fresh, known_log, move, nothing_has_changed, rewind, skipped


@pytest.fixture(autouse=True)
def _fresh() -> None:
    fresh()


@case(app)
@pytest.mark.parametrize("how", list(HOW))
async def test_f21_a_group_that_is_moved_back_repeats_nothing(lab: Lab, how: str):
    known = await known_log(lab)
    again = await move(lab, known, how)
    assert again >= 2
    await nothing_has_changed(lab, known, again)


@case(app)
async def test_f21_a_group_that_is_moved_back_twice_repeats_nothing(lab: Lab):
    known = await known_log(lab)
    for _ in range(2):
        again = await move(lab, known, "to the beginning")
        running = await lab.worker(stop_seconds=0.2)
        await until(lambda running=running, again=again: skipped(running) == again)
        await running.stop()
    # Nothing was committed but leases, and with them the group is where it was before.
    found = await lab.log.group_offsets(lab.topics.group, lab.topics.commands)
    assert found == known.applied
    await nothing_has_changed(lab, known, 0)


@case(app)
async def test_f21_a_group_that_is_moved_ahead_passes_over_nothing(lab: Lab):
    known = await known_log(lab)
    missed = [f"missed{n}" for n in range(12)]
    for run_id in missed:
        await lab.history.start("ships", run_id, "done")
    ends = {n: (await lab.log.span(lab.topics.commands, n)).end for n in range(PARTITIONS)}
    await rewind(lab.log, lab.topics.group, lab.topics.commands, ends)
    running = await lab.worker(stop_seconds=0.2)
    ahead = [told[1] for told in running.told.heard("message") if "was moved ahead" in told[1]]
    assert len(ahead) == len({lab.history.partition(run_id) for run_id in missed})
    await lab.history.ended(*missed)
    assert skipped(running) == 0
    assert {run_id for run_id in (await lab.check()).runs if "missed" not in run_id} == set(known.runs)


@case(app)
async def test_a_group_with_members_is_not_moved(lab: Lab):
    running = await lab.worker()
    before = await lab.log.group_offsets(lab.topics.group, lab.topics.commands)
    with pytest.raises(LogUnavailable, match=r"group rewinds\S*\.workers has members.*w1.*stop them first"):
        await lab.log.rewind_group(lab.topics.group, lab.topics.commands, dict.fromkeys(range(PARTITIONS), 0))
    assert await lab.log.group_offsets(lab.topics.group, lab.topics.commands) == before
    await lab.history.start("ships", "r", "done")
    assert await lab.history.result("r") == "DONE"
    assert skipped(running) == 0
