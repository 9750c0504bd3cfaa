"""Any interleaving of inputs, crashes and deployments keeps the invariants, and once faults stop the run ends.

The harness checks every decision: the cached coroutine against the replay, the fold, the journal, ids, sizes, statuses.
STREAMS_HYPOTHESIS=deep searches for minutes.
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import Phase as Stage
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from streams.kernel import bodies as ev
from streams.kernel import commands as cmd
from streams.kernel.commands import Command
from streams.kernel.inputs import Due, Noted, Outcome
from streams.kernel.run import WORKED_ON, OpPhase, Phase, Status, is_terminal
from tests.kernel.harness import SECOND, Harness, failure
from tests.kernel.programs import VARIANTS, build, programs

DEEP = os.environ.get("STREAMS_HYPOTHESIS") == "deep"
FAILURES = [
    failure("BOOM"),
    failure("NO", "terminal"),
    failure("LOST", "unknown"),
    failure("NOT_DONE", "exhausted"),
    failure("STOPPED", "cancelled"),
    failure("VALUE_TOO_LARGE", "terminal"),
]
ERRORS = [
    ("retryable", "BUSY", "try again"),
    ("terminal", "DECLINED", "no money"),
    ("unknown", "LOST", "nobody knows"),
    ("fatal", "WHAT", "no class"),
]
APPS = {variant: build(variant) for variant in VARIANTS}
long_programs = st.tuples(st.just("seq"), st.lists(programs, min_size=2, max_size=5))
BAD = ["mined", "mined", "mined", "other", "gone", "newer", "good"]


class Runs(RuleBasedStateMachine):
    """One run of a drawn program."""

    def __init__(self) -> None:
        super().__init__()
        self.harness = Harness(APPS["good"], slots=2)
        self.variant = "good"

    @initialize(
        program=long_programs,
        graph=st.sampled_from([False, False, True]),
        early=st.lists(st.sampled_from(["nothing", "nothing", "signal", "deploy", "cancel"]), max_size=2),
        variant=st.sampled_from(["mined", "gone", "newer"]),
    )
    def begin(self, program: Any, graph: bool, early: list[str], variant: str) -> None:
        run = self.harness
        for what in early:
            if what == "signal":
                run.signal("word", 1)
            elif what == "cancel" and "cancel" not in early[1:]:
                run.cancel()
            elif what == "deploy":
                self._deploy(variant)
        self.workflow, self.input = (
            ("graph", {"programs": [program, program], "rounds": 2, "log": []}) if graph else ("program", program)
        )
        run.start(self.workflow, self.input, version=1)

    def _deploy(self, variant: str) -> None:
        self.variant = variant
        self.harness.deploy(APPS[variant])

    @property
    def active(self) -> bool:
        return self.harness.run.phase is Phase.ACTIVE

    def _op(self, data: st.DataObject, *phases: OpPhase) -> str | None:
        ids = [op.id for op in self.harness.ops(*phases)] if phases else list(self.harness.run.ops)
        return data.draw(st.sampled_from(ids)) if ids else None

    # -- the world -----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.active)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        op = self._op(data, OpPhase.RUNNING)
        if op is not None:
            run = self.harness
            name = run.run.ops[op].name
            if run.app.task_named(name) is None:
                run.fail(op, failure("TASK_UNKNOWN", "code"))
            elif name.startswith("graph."):
                run.feed(run.execute(run.run.ops[op]))
            else:
                run.done(op, data.draw(st.integers(0, 9)))

    @precondition(lambda self: self.active)
    @rule(data=st.data(), error=st.sampled_from(FAILURES))
    def fails(self, data: st.DataObject, error: ev.Failure) -> None:
        op = self._op(data, OpPhase.RUNNING)
        if op is not None:
            self.harness.fail(op, error)

    @precondition(lambda self: self.active)
    @rule(data=st.data())
    def returned(self, data: st.DataObject) -> None:
        op = self._op(data, OpPhase.RUNNING)
        if op is not None:
            self.harness.returned(op)

    @precondition(lambda self: self.active)
    @rule(data=st.data())
    def noted(self, data: st.DataObject) -> None:
        op = self._op(data)
        if op is not None:
            self.harness.feed(Noted(op, self.harness.run.ops[op].attempt, b'"note"'))

    @rule(data=st.data(), attempt=st.integers(0, 4), good=st.booleans())
    def late(self, data: st.DataObject, attempt: int, good: bool) -> None:
        known = [body.op for body in self.harness.of(ev.OpScheduled)]
        op = data.draw(st.sampled_from([*known, "99"]))
        state = self.harness.run.ops.get(op)
        if state is None or state.attempt != attempt or state.phase is not OpPhase.RUNNING:
            before = self.harness.run
            self.harness.feed(Outcome(op, attempt, b"1" if good else None, None if good else failure()))
            assert self.harness.run == before

    @rule(
        data=st.data(),
        value=st.sampled_from([3, 4, "bad"]),
        error=st.sampled_from([None, None, *ERRORS]),
        other=st.sampled_from([{}, {}, {}, {"attempt": 9}, {"epoch": 99}, {"effect_id": "r@7/1"}]),
        again=st.booleans(),
    )
    def replies(self, data: st.DataObject, value: Any, error: Any, other: Any, again: bool) -> None:
        known = [body.op for body in self.harness.of(ev.OpScheduled) if body.kind == "request"]
        if known:
            op = data.draw(st.sampled_from(known))
            for _ in range(2 if again else 1):
                self._reply(op, value, error, other)

    def _reply(self, op: str, value: Any, error: Any, other: Any) -> None:
        run = self.harness
        before = run.run.ops.get(op)
        run.reply(op, value, error=error, **other)
        if before is None or other or before.phase is OpPhase.HELD:
            counts = False
        elif error is None:
            counts = value != "bad"
        else:
            out, parked = before.phase is OpPhase.WAITING, before.phase is OpPhase.PARKED
            counts = {"terminal": True, "unknown": not parked, "retryable": out}.get(error[0], False)
        after = run.run.ops.get(op)
        assert counts == (after != before), (before, after)

    @precondition(lambda self: self.active)
    @rule(data=st.data())
    def due(self, data: st.DataObject) -> None:
        op = self._op(data)
        if op is not None:
            self.harness.due(op)

    @precondition(lambda self: self.active)
    @rule()
    def next_time(self) -> None:
        run = self.harness
        timed = [op for op in run.run.ops.values() if op.due is not None and op.phase is not OpPhase.HELD]
        if timed:
            first = min(timed, key=lambda op: op.due or 0)
            run.now = max(run.now, first.due or 0)
            run.due(first.id)

    @rule(seconds=st.integers(-100, 100))
    def clock(self, seconds: int) -> None:
        self.harness.now += seconds * SECOND

    @precondition(lambda self: self.active and self.harness.run.blocked is None)
    @rule(times=st.integers(1, 3))
    def help(self, times: int) -> None:
        for _ in range(times):
            if self.active and self.harness.run.blocked is None:
                self._help()

    # -- people --------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.active)
    @rule(data=st.data(), value=st.one_of(st.integers(0, 9), st.just("bad")), bare=st.booleans(), again=st.booleans())
    def answer(self, data: st.DataObject, value: Any, bare: bool, again: bool) -> None:
        asked = [op.id for op in self.harness.run.ops.values() if op.kind == "interrupt"]
        if not asked:
            return
        op = None if bare else data.draw(st.sampled_from(asked))
        command_id = f"answer {len(self.harness.log)}"
        self.harness.resume(value, op, command_id=command_id)
        if again and value != "bad":
            before = self.harness.run
            self.harness.resume(value, op, command_id=command_id)
            assert bare or self.harness.run == before

    @precondition(lambda self: self.active)
    @rule(value=st.one_of(st.integers(0, 9), st.just("bad")), number=st.integers(0, 20))
    def signal(self, value: Any, number: int) -> None:
        self.harness.signal("word", value, f"signal {number}")

    @precondition(lambda self: self.active)
    @rule(sure=st.integers(0, 9))
    def cancel(self, sure: int) -> None:
        if sure == 9 or self.harness.run.cancel_requested:
            self.harness.cancel()
        elif sure == 8 and self.harness.run.seq % 5 == 0:
            self.harness.cancel(force=True)

    @precondition(lambda self: self.active)
    @rule(data=st.data(), what=st.sampled_from(["retry", "retry", "skip", "complete"]))
    def operator(self, data: st.DataObject, what: str) -> None:
        op = self._op(data)
        if op is None:
            return
        if what == "retry":
            self.harness.retry(op)
        elif what == "skip":
            self.harness.skip(op)
        else:
            self.harness.complete(op, self._value(op))

    @precondition(lambda self: self.harness.run.seq % 4 == 0)
    @rule(same=st.booleans())
    def start_again(self, same: bool) -> None:
        before = self.harness.run
        self.harness.start(self.workflow, self.input if same else ["other"], version=1)
        assert self.harness.run == before

    def _value(self, op: str) -> Any:
        return {} if self.harness.run.ops[op].name.startswith("graph.") else 5

    # -- workers and code ----------------------------------------------------------------------------------------

    @precondition(lambda self: self.active)
    @rule()
    def evict(self) -> None:
        self.harness.evict()

    @precondition(lambda self: self.active)
    @rule()
    def take_over(self) -> None:
        self.harness.take_over()

    @precondition(lambda self: self.active)
    @rule(data=st.data(), kind=st.sampled_from(["outcome", "reply", "due", "cancel", "signal", "answer", "retry"]))
    def abort(self, data: st.DataObject, kind: str) -> None:
        input_ = self._input(data, kind)
        if input_ is not None:
            self.harness.abort(input_)

    @precondition(lambda self: self.active)
    @rule(
        data=st.data(),
        kind=st.sampled_from(["outcome", "reply", "due", "signal", "answer", "retry"]),
        sure=st.integers(0, 3),
    )
    def stop(self, data: st.DataObject, kind: str, sure: int) -> None:
        input_ = self._input(data, kind)
        if input_ is not None and sure == 3:
            self.harness.offset += 1
            self.harness.stop(input_)

    def _input(self, data: st.DataObject, kind: str) -> Any:
        run = self.harness
        op = self._op(data)
        requests: dict[str, Any] = {
            "cancel": cmd.Cancel(),
            "signal": cmd.Signal("word", b"3"),
            "answer": cmd.Resume(data.draw(st.sampled_from([b"3", b'"bad"'])) if kind == "answer" else b"", op),
            "retry": cmd.Retry(),
        }
        if kind in requests:
            return Command("r", requests[kind], f"x{len(run.log)}", run.offset)
        if kind == "reply" and op is not None:
            state = run.run.ops[op]
            reply = cmd.Reply(op, f"{run.run.identity}/{op}", state.attempt, state.epoch, b"3")
            return Command("r", reply, f"x{len(run.log)}", run.offset)
        if op is None or kind == "reply" or (kind == "outcome" and run.run.ops[op].name.startswith("graph.")):
            return None
        return Due(op) if kind == "due" else Outcome(op, run.run.ops[op].attempt, b"3")

    @precondition(lambda self: self.active)
    @rule(variant=st.sampled_from(BAD))
    def deploy(self, variant: str) -> None:
        # The next step of a graph would begin with other code, and no other version could go on from there.
        entered = len(self.harness.run.journal) > 0 and self.workflow == "program"
        if variant != "other" or entered:
            self._deploy(variant)

    @precondition(lambda self: self.harness.run.blocked is not None)
    @rule(good=st.booleans())
    def repair(self, good: bool) -> None:
        if good:
            self._deploy("good")
        run = self.harness
        if self.variant == "other" and len(run.run.journal) == 0:
            return  # it would enter with other code, and no other version could go on from there
        held, unblocked = run.run.held, len(run.of(ev.RunUnblocked))
        run.retry()
        if len(run.of(ev.RunUnblocked)) == unblocked:
            assert run.run.held == held, "a retry that changed nothing lost what was held"
        if self.variant == "good":
            assert run.run.blocked is None, run.run.blocked

    # -- the end -------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        run = self.harness
        if run.run.seq == 0:
            return
        self._deploy("good")
        if run.run.blocked is not None:
            run.retry()
            assert run.run.blocked is None, run.run.blocked
        for _ in range(400):
            if is_terminal(run.run):
                break
            assert run.run.blocked is None, run.run.blocked
            self._help()
        assert is_terminal(run.run), run.run.ops
        assert run.fold() == run.run
        self._check_end()

    def _help(self) -> None:
        """Give the run what it names."""
        run = self.harness
        # What is worked on first: code that has ended waits for it, while a receive of it takes nothing any more.
        op = min(run.run.ops.values(), key=lambda op: op.kind not in WORKED_ON)
        if op.phase is OpPhase.RUNNING:
            if op.asked or run.app.task_named(op.name) is None:
                run.fail(op.id, failure("STOPPED", "terminal"))
            else:
                run.feed(run.execute(op))
        elif op.phase is OpPhase.PARKED:
            run.complete(op.id, self._value(op.id))
        elif op.kind == "request" and op.phase is OpPhase.WAITING:
            run.reply(op.id, 1)
        elif op.phase is OpPhase.QUEUED:
            run.due(op.id)
        elif op.due is not None:
            run.now = max(run.now, op.due)
            run.due(op.id)
        elif op.kind == "interrupt":
            run.resume(1, op.id)
        else:
            assert op.kind == "receive"
            run.signal("word", 1)

    def _check_end(self) -> None:
        run = self.harness
        taken = [body.number for body in run.of(ev.SignalTaken)]
        assert taken == sorted(taken)
        assert len(taken) == len(set(taken))
        asked = bool(run.of(ev.CancelRequested))
        if run.status is Status.CANCELLED and not asked:
            raise AssertionError("cancelled, though nobody asked")
        if asked and run.status is Status.COMPLETED:
            assert run.of(ev.RunCompleted)[0].cancel_requested
        ends = [body.op for body in run.of(ev.OpCompleted, ev.OpFailed, ev.TimerFired, ev.InterruptAnswered)]
        assert len(ends) == len(set(ends)), "an op settled twice"


TestRuns = Runs.TestCase
TestRuns.settings = settings(
    max_examples=3_000 if DEEP else 300,
    stateful_step_count=80 if DEEP else 40,
    deadline=None,
    derandomize=not DEEP,
    suppress_health_check=list(HealthCheck),
    phases=[Stage.explicit, Stage.reuse, Stage.generate, Stage.shrink],
    print_blob=True,
)
