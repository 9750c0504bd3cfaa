"""Random programs, inputs, crashes, blocks and repairs: under unchanged code every history is the same."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import Phase as Stage
from hypothesis.stateful import run_state_machine_as_test

from streams.kernel import bodies as ev
from streams.kernel import commands as cmd
from streams.kernel.commands import Command
from streams.kernel.events import Event
from streams.kernel.run import Phase
from streams.ops.replay import Verdict, shadow_history
from tests.kernel.test_machine import APPS, DEEP, Runs

SEEN: set[str] = set()
LIKE_THE_KERNEL: set[str] = set()


def same(history: list[Event], app: Any) -> None:
    found = shadow_history(app, history)
    assert found.verdict is Verdict.SAME, f"{found}\n" + "\n".join(
        f"{event.seq} c{event.cause} {event.body}" for event in history
    )
    SEEN.update(event.type for event in history)


class ShadowedRuns(Runs):
    """The machine of the kernel's tests. What was committed until any moment is a history too."""

    def teardown(self) -> None:
        log = self.harness.log
        if log:
            same(list(log), APPS["good"])
            self._would_block_as_the_kernel_does()
        super().teardown()
        if log:
            same(log, APPS["good"])
        if any(isinstance(event.body, ev.OpScheduled) for event in log):
            for variant, code in (("gone", "WORKFLOW_UNKNOWN"), ("newer", "VERSION_UNSUPPORTED")):
                found = shadow_history(APPS[variant], log)
                assert (found.verdict, found.kind) == (Verdict.WOULD_BLOCK, code), found

    def _would_block_as_the_kernel_does(self) -> None:
        """What it says of the next delivery under other code is what the kernel does with one."""
        run, before = self.harness, self.variant
        if run.run.phase is not Phase.ACTIVE or run.run.blocked is not None or run.run.cancel_requested:
            return
        for variant in ("good", "other", "gone", "newer"):
            found = shadow_history(APPS[variant], run.log)
            self._deploy(variant)
            decision = run.peek(Command("r", cmd.Cancel(), "c", run.offset), cached=False)
            if decision.live is not None:
                decision.live.close()
            blocked = decision.run.blocked
            assert (blocked is not None) == (found.ahead == "would block at the next delivery"), (blocked, found)
            if blocked is not None:
                assert found.block is not None
                assert found.block.code == blocked.code
                LIKE_THE_KERNEL.add(blocked.code)
        self._deploy(before)


SETTINGS = settings(
    max_examples=2_000 if DEEP else 150,
    stateful_step_count=60 if DEEP else 30,
    deadline=None,
    derandomize=not DEEP,
    suppress_health_check=list(HealthCheck),
    phases=[Stage.explicit, Stage.reuse, Stage.generate, Stage.shrink],
    print_blob=True,
)


def test_random_histories_are_the_same_and_blocks_are_foretold() -> None:
    """With every kind of event among them, and blocks of every kind; otherwise it would prove little."""
    run_state_machine_as_test(ShadowedRuns, settings=SETTINGS)
    assert {"op.parked", "held.dropped", "run.unblocked", "attempt.returned", "state.advanced", "timer.fired"} <= SEEN
    assert {"NON_DETERMINISM", "WORKFLOW_UNKNOWN", "VERSION_UNSUPPORTED"} <= LIKE_THE_KERNEL
