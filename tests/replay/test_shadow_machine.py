"""Random programs, inputs, crashes, blocks and repairs: under unchanged code every history is the same."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, Phase, settings

from streams.kernel import bodies as ev
from streams.kernel.events import Event
from streams.ops.replay import Verdict, shadow_history
from tests.kernel.test_machine import APPS, DEEP, Runs

SEEN: set[str] = set()


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
        super().teardown()
        if log:
            same(log, APPS["good"])
        if any(isinstance(event.body, ev.OpScheduled) for event in log):
            for variant, code in (("gone", "WORKFLOW_UNKNOWN"), ("newer", "VERSION_UNSUPPORTED")):
                found = shadow_history(APPS[variant], log)
                assert (found.verdict, found.kind) == (Verdict.WOULD_BLOCK, code), found


TestShadowedRuns = ShadowedRuns.TestCase
TestShadowedRuns.settings = settings(
    max_examples=2_000 if DEEP else 150,
    stateful_step_count=60 if DEEP else 30,
    deadline=None,
    derandomize=not DEEP,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    print_blob=True,
)
