"""When a run needs its owner next: from the run alone, for every phase of its ops."""

from __future__ import annotations

import pytest

from streams.kernel.bodies import Failure
from streams.kernel.run import REPAIR_CODES, REPAIR_PENDING, OpPhase, OpState, Phase, Run, stub_of
from streams.kernel.wake import AT_ONCE, Stage, Wake, times_of, wake_of

NEVER = Wake(Stage.OPEN, None)
ACTIVE = Run("r", "r@0", phase=Phase.ACTIVE, seq=3, at=50)


def with_ops(*ops: tuple[OpPhase, int | None]) -> Run:
    made = [OpState(f"o.{n}", "task", "o", None, b"", phase, 7, due) for n, (phase, due) in enumerate(ops)]
    return ACTIVE._replace(ops={op.id: op for op in made})


@pytest.mark.parametrize(
    ("ops", "at"),
    [
        ([], None),
        ([(OpPhase.WAITING, None)], None),
        ([(OpPhase.PARKED, 5), (OpPhase.HELD, 6)], None),
        ([(OpPhase.WAITING, 90), (OpPhase.BACKOFF, 80), (OpPhase.WAITING, None)], 80),
        ([(OpPhase.WAITING, 90), (OpPhase.QUEUED, None)], AT_ONCE),
        ([(OpPhase.WAITING, 90), (OpPhase.RUNNING, 95)], AT_ONCE),
        ([(OpPhase.WAITING, -4)], AT_ONCE),
    ],
)
def test_an_active_run_wakes_with_the_first_of_its_ops(ops: list[tuple[OpPhase, int | None]], at: int | None) -> None:
    assert wake_of(with_ops(*ops)) == Wake(Stage.OPEN, at)


def test_nothing_wakes_a_run_whose_repair_has_failed_and_one_that_is_under_way_is_gone_on_with() -> None:
    busy = with_ops((OpPhase.WAITING, 90))
    assert wake_of(busy._replace(blocked=Failure("code", "WORKFLOW_BUG", ""))) == Wake(Stage.OPEN, 90)
    assert wake_of(busy._replace(blocked=Failure("code", REPAIR_PENDING, ""))) == Wake(Stage.OPEN, AT_ONCE)
    for code in REPAIR_CODES - {REPAIR_PENDING}:
        assert wake_of(busy._replace(blocked=Failure("code", code, ""))) == NEVER


def test_a_run_at_rest_tells_since_when() -> None:
    done = ACTIVE._replace(phase=Phase.COMPLETED, result=b"1")
    assert wake_of(done) == Wake(Stage.ENDED, 50)
    assert wake_of(stub_of(done)) == Wake(Stage.STUB, 50)
    assert wake_of(ACTIVE._replace(phase=Phase.PENDING)) == Wake(Stage.EARLY, 50)
    assert list(times_of(done)) == []
    assert wake_of(ACTIVE) == NEVER
