"""`crash_everywhere`: a user's workflow with a worker that dies at every single point, one after another."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from typing import Any, TypeVar

from streams.authoring.app import App
from streams.errors import UsageError
from streams.runtime.settings import WorkerSettings
from streams.testing.crash.compare import Comparer, Normal
from streams.testing.crash.positions import DOUBTS, Plan, Position, Probe, parse_plan
from streams.testing.crash.report import Finding, Parked, Report
from streams.testing.crash.scenario import Script
from streams.testing.crash.serving import NOTHING_SERVED
from streams.testing.crash.world import Execution, Seen, World
from streams.testing.loop import Stuck, run_virtual

__all__ = ["Progress", "Runner", "crash_everywhere", "usual_settings"]

W = TypeVar("W")
Progress = Callable[[int, int], None]
"""Told how many executions are done, and how many there will be."""

_PAIRS_MAX = 200
_CHECKPOINT_BYTES = 1_000
_SWEEP_SECONDS = 1e8
_VIRTUAL_SECONDS_MAX = 50_000.0
"""For whatever takes the loop's own time: the sleeps of tasks, not those of workflows. It takes some 30 s to pass."""

_NOTHING = Execution({}, {}, {}, (), (), (), (), (), (), "", (), Seen(), NOTHING_SERVED)


class Runner:
    """Everything that the executions have in common."""

    def __init__(
        self,
        app: App,
        script: Script,
        resources: Callable[[], Any] | None,
        check: Callable[[Any], object] | None,
        settings: WorkerSettings,
        seed: int,
    ) -> None:
        self.app, self.script, self.resources = app, script, resources
        self.settings, self.seed = settings, seed
        self._check = check
        self._first: Seen | None = None

    def run(self, plan: Plan = ()) -> Execution:
        """One execution in a fresh world."""
        world = World(
            self.app, self.script, Probe(plan), resources=self.resources, check=self._seen, settings=self.settings
        )
        try:
            return run_virtual(world.run(), self.seed, seconds_max=_VIRTUAL_SECONDS_MAX)
        except Stuck as stuck:
            return _NOTHING._replace(stuck=str(stuck))
        except Exception as error:  # noqa: BLE001 - what a callback of user code raises is a finding
            return _NOTHING._replace(errors=(error,))
        finally:
            world.dispose()

    def _seen(self, resources: Any) -> Seen:
        """Ask the check. Compared at once, for what a dead worker's tasks clean up later may change the same object."""
        try:
            value = self._check(resources) if self._check is not None else None
        except Exception as error:  # noqa: BLE001 - whatever the check raises is a finding
            return Seen(error=error)
        seen = Seen(value, repr(value), same=self._first is None or bool(value == self._first.value))
        self._first = self._first or seen
        return seen


def crash_everywhere(
    app: App,
    scenario: Script,
    *,
    resources: Callable[[], W] | None = None,
    check: Callable[[W], object] | None = None,
    only: str | Iterable[str] | None = None,
    crashes: int = 1,
    doubts: bool = True,
    handovers: bool = True,
    points_max: int | None = None,
    seed: int = 0,
    normal: Normal = lambda value: value,
    settings: WorkerSettings | None = None,
    progress: Progress | None = None,
) -> Report:
    """Run `scenario` once without a crash, then once for each point at which its worker can die.

    Each execution has a fresh log, and the production runtime in virtual time: no sleep takes any real time. The
    worker dies at its point as by kill -9, and another one takes over. What must not differ then is compared: status,
    result, error and effects of every run, its ops and their outcomes, and how often tasks were called.

    `resources` makes the outside world of the tasks (`ctx.resources`), a fresh one for each execution; without it the
    app's own lifespan is entered. `check` gets that world at the end: what it raises is a finding, and so is what it
    returns where that is not equal to what it returned without a crash.

    `doubts`: also lose the answer to every commit, in three ways. `handovers`: also stop the worker gracefully after
    every turn. `crashes=2`: also let a second worker die, at sampled pairs of points. `points_max` samples where there
    are more; `seed` decides which. `only` repeats positions of a report. `normal` is how results, payloads and outcomes
    are seen when they are compared. `settings` are the worker's; one partition unless they say otherwise.

    Raises what the scenario or the check raises without any crash.
    """
    _refuse_loop()
    runner = Runner(app, scenario, resources, check, settings or usual_settings(), seed)
    base = _without(runner)
    chance = random.Random(seed)  # noqa: S311 - a sample, no secret
    comparer = Comparer(app, base, normal)
    findings: list[Finding] = []
    parked: list[Parked] = []
    seconds: list[Plan] = []
    if only is not None:
        plans = [_known(parse_plan(text), base) for text in ([only] if isinstance(only, str) else only)]
    else:
        plans = list(_plans(base, doubts=doubts, handovers=handovers))
    plans, left_out = _sample(plans, None if only is not None else points_max, chance)
    done: list[str] = []

    def execute(plan: Plan, total: int) -> None:
        found = runner.run(plan)
        _judge(plan, found, comparer, findings, parked)
        if crashes > 1 and len(plan) == 1 and len(found.passed) > 1:
            more = _positions(found, 1, doubts=doubts, handovers=handovers)
            seconds.extend((*plan, second) for second in more)
        done.append(_name(plan))
        if progress is not None:
            progress(len(done), total)

    for plan in plans:
        execute(plan, len(plans))
    pairs, more = _sample(seconds if only is None else [], points_max or _PAIRS_MAX, chance)
    for plan in pairs:
        execute(plan, len(plans) + len(pairs))
    workflows = sorted({run.workflow for run in base.runs.values() if run.workflow})
    return Report(
        ", ".join(workflows) or app.name, len(done) + 1, tuple(done), left_out + more, tuple(findings), tuple(parked)
    )


def usual_settings() -> WorkerSettings:
    """One partition, and no sweeps, which would only lengthen the sleeps of a workflow."""
    return WorkerSettings(partitions=1, checkpoint_bytes_min=_CHECKPOINT_BYTES, sweep_seconds=_SWEEP_SECONDS)


def _refuse_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError("crash_everywhere brings its own event loop: call it from a plain function, not from a coroutine")


def _without(runner: Runner) -> Execution:
    """The execution without a crash, which must be right. It shows where a worker can die."""
    base = runner.run()
    for error in (*base.errors, base.seen.error):
        if error is not None:
            raise error
    if base.stuck:
        raise UsageError(f"without any crash, the scenario waits in vain for {base.stuck}{_states(base)}")
    if base.seen.value is False:
        raise UsageError("the check returned False without any crash")
    if not base.runs:
        raise UsageError("the scenario has started no run: begin with `await s.start(workflow, input)`")
    return base


def _states(base: Execution) -> str:
    lines = [
        f"\n  {run.run_id} is {run.phase}"
        + (f", blocked with {run.blocked.code}: {run.blocked.message}" if run.blocked is not None else "")
        + "".join(f"\n    {op.id} ({op.name}) is {op.phase}" for op in run.ops.values())
        for run in base.runs.values()
    ]
    return "".join(lines)


def _plans(base: Execution, *, doubts: bool, handovers: bool) -> Iterator[Plan]:
    yield from ((position,) for position in _positions(base, 0, doubts=doubts, handovers=handovers))


def _known(plan: Plan, base: Execution) -> Plan:
    """Raise UsageError for a first position that the scenario does not pass."""
    names = [_name(one) for one in _plans(base, doubts=True, handovers=True)]
    if str(plan[0]) not in names:
        near = get_close_matches(str(plan[0]), names, 5, 0.1) or names[:5]
        raise UsageError(f"only={_name(plan)!r}: the scenario does not pass {plan[0]}; it does pass {', '.join(near)}")
    return plan


def _positions(found: Execution, life: int, *, doubts: bool, handovers: bool) -> Iterator[Position]:
    """What there is before the first strike (0), or after it (1)."""
    yield from found.passed[life]
    for number in range(1, found.commits[life] + 1) if doubts else ():
        yield from (Position(point, number) for point in DOUBTS)
    for point, count in found.turns[life].items() if handovers else ():
        yield from (Position(point, number) for number in range(1, count + 1))


def _sample(plans: list[Plan], most: int | None, chance: random.Random) -> tuple[list[Plan], int]:
    """At most so many of them, in their order, and how many were left out."""
    if most is None or len(plans) <= most:
        return plans, 0
    kept = sorted(chance.sample(range(len(plans)), most))
    return [plans[number] for number in kept], len(plans) - most


def _name(plan: Plan) -> str:
    return "+".join(map(str, plan))


def _judge(plan: Plan, found: Execution, comparer: Comparer, findings: list[Finding], parked: list[Parked]) -> None:
    name = _name(plan)
    after = found.strikes[-1].last if found.strikes else "nothing"
    if found.missed and not found.errors:
        text = "it was not passed: the code takes another course each time"
        findings.append(Finding(name, after, "", f"position {found.missed[0]}", "it is passed", text))
        return
    findings += [Finding(name, after, *difference) for difference in comparer.differences(found)]
    parked += [Parked(name, *op) for op in comparer.parked(found)]
