"""Mistakes in what is decided: tasks and their budgets, repeats, ends, timers, histories."""

from __future__ import annotations

from tests.sim.planted.planting import Edit, Fault

__all__ = ["FAULTS"]

_ATTEMPTS, _DECIDE, _DRAFT, _DRIVE = (f"streams.kernel.{name}" for name in ("attempts", "decide", "draft", "drive"))
_EVOLVE = "streams.kernel.evolve"

FAULTS = [
    Fault(
        "late_outcome_taken",
        "The outcome of an attempt that was given up counts for the one that runs now",
        (
            Edit(
                _ATTEMPTS,
                "op.phase is OpPhase.RUNNING and op.attempt == outcome.attempt",
                "op.phase is OpPhase.RUNNING",
            ),
            Edit("streams.runtime.attempt", "        if not self._reported:\n", "        if True:\n"),
        ),
        test="tests/kernel/test_attempts.py::test_a_late_success_of_an_older_attempt_does_not_count",
    ),
    Fault(
        "terminal_guard_left_out_on_signals",
        "A signal to a run that has ended is taken in",
        (
            Edit(
                _DECIDE,
                "    if is_terminal(run):\n        _require_open(draft, command)\n    if request.name not in",
                "    if request.name not in",
            ),
        ),
        test="tests/kernel/test_commands.py::test_f09_nothing_brings_an_ended_run_back",
    ),
    Fault(
        "terminal_guard_left_out_on_answers",
        "An answer to a run that has ended is taken for one to a question that is gone",
        (Edit(_DECIDE, "    _require_open(draft, command)\n    op = _interrupt(", "    op = _interrupt("),),
        test="tests/kernel/test_commands.py::test_commands_for_a_run_that_is_not_started",
    ),
    Fault(
        "terminal_guard_left_out_in_the_fold",
        "An event after the end of a run is folded",
        (Edit(_EVOLVE, "if is_terminal(run) and not isinstance(event.body, ev.RunExpired):", "if False:"),),
        test="tests/kernel/test_fold.py::test_a_log_that_does_not_fit_is_damage",
    ),
    Fault(
        "duplicate_signal_taken_twice",
        "A signal whose id is known is taken in again",
        (Edit(_DECIDE, "    if command.command_id in run.seen:  # also", "    if False:  # also"),),
    ),
    Fault(
        "duplicate_answer_taken_twice",
        "An answer that comes twice answers the next question too",
        (Edit(_DECIDE, "    known = command.command_id in draft.run.seen", "    known = False"),),
    ),
    Fault(
        "answer_not_remembered",
        "The id of an answer is not kept with the run",
        (
            Edit(
                _EVOLVE,
                "    _settle(state, event, body.op, body.value)\n    _remember(state, body.command_id)\n",
                "    _settle(state, event, body.op, body.value)\n",
            ),
        ),
    ),
    Fault(
        "inbox_lost_between_generations",
        "A super-step drops the signals that nobody has received yet",
        (
            Edit(
                _EVOLVE,
                "    state[_GENERATION] += 1\n",
                "    state[_GENERATION] += 1\n    state[_INBOX] = ()\n",
            ),
        ),
    ),
    Fault(
        "early_cancel_forgotten",
        "A run that was cancelled before its start begins all the same",
        (
            Edit(
                _DECIDE,
                "    if run.cancel_requested:\n        draft.emit(body",
                "    if False:\n        draft.emit(body",
            ),
        ),
    ),
    Fault(
        "cancelled_run_goes_on",
        "A cancel between two super-steps is passed over, and the run begins the next one",
        (Edit(_DRIVE, "        if not draft.run.cancel_requested:\n", "        if True:\n"),),
        test="tests/kernel/test_graph.py::test_a_cancel_while_a_branch_of_a_finished_step_still_runs_is_not_lost",
    ),
    Fault(
        "cancel_loses_waits",
        "The ops that end with a cancel are not named in it, so that they stay open",
        (
            Edit(
                _DRIVE,
                "withdrawn = tuple(op.id for op in ops if not is_out(op) and op.phase is not OpPhase.HELD)",
                "withdrawn = ()",
            ),
        ),
        test="tests/kernel/test_cancel.py::test_the_outcome_of_a_cancelled_task_can_be_awaited_in_clean_up",
    ),
    Fault(
        "run_owned_left_out",
        "A run does not say that another epoch goes on with it",
        (
            Edit(
                _DRAFT,
                "        if run.seq > 0 and run.epoch != self.env.epoch:",
                "        if False:",
            ),
        ),
    ),
    Fault(
        "budget_counted_at_the_end",
        "An attempt uses up the budget when it fails, and a worker that dies uses up none",
        (
            Edit(
                _EVOLVE,
                "spent = 1 if op.phase is OpPhase.PARKED else op.spent + 1",
                "spent = 0 if op.phase is OpPhase.PARKED else op.spent",
            ),
            Edit(
                _EVOLVE,
                "op._replace(phase=OpPhase.BACKOFF, due=body.due, maybe=body.maybe, error=body.error)",
                "op._replace(phase=OpPhase.BACKOFF, due=body.due, maybe=body.maybe, error=body.error, "
                'spent=op.spent + (body.error.code != "WORKER_LOST"))',
            ),
        ),
    ),
    Fault(
        "budget_ignored",
        "A task is tried again as often as it fails",
        (Edit("streams.kernel.retry", "op.spent < policy.max_attempts + looks:", "op.spent < 999:"),),
        test="tests/kernel/test_attempts.py::test_the_budget_and_the_recorded_back_off",
    ),
    Fault(
        "unknown_outcome_repeated",
        "A task that must not be repeated blindly is repeated blindly",
        (
            Edit(
                "streams.kernel.retry",
                "    if not spec.idempotent and not spec.reconciles:\n",
                "    if spec is None:\n",
            ),
        ),
    ),
    Fault(
        "look_up_left_out",
        "What may have happened is done again without a look-up",
        (
            Edit(
                "streams.runtime.attempt",
                "if op.maybe and self.task.reconcile is not None:",
                "if False and self.task.reconcile is not None:",
            ),
        ),
    ),
    Fault(
        "look_up_only_after_a_crash",
        "An attempt that failed is repeated without a look-up, though its answer may have been lost",
        (
            Edit(
                "streams.kernel.retry",
                'maybe = op.maybe or failure.kind == "unknown" or spec.reconciles',
                'maybe = failure.kind == "unknown"',
            ),
        ),
    ),
    Fault(
        "key_per_attempt",
        "Each attempt gets an idempotency key of its own",
        (
            Edit(
                "streams.runtime.attempt", 'idempotency_key=op.key or "",', 'idempotency_key=f"{op.key}/{op.attempt}",'
            ),
        ),
    ),
    Fault(
        "effects_keyed_by_epoch",
        "The idempotency key of an effect changes with the owner",
        (
            Edit(
                "streams.wire.outbox",
                '        idempotency_key=key or "",\n',
                '        idempotency_key=f"{key}/{event.epoch}",\n',
            ),
        ),
    ),
    Fault(
        "argument_hash_left_out",
        "A replay does not compare the arguments of what the code does",
        (Edit("streams.kernel.fault", "return hashlib.blake2b(data, digest_size=8).digest()", 'return b"-" * 8'),),
        test="tests/kernel/test_blocked.py::test_an_answer_that_no_longer_fits_is_dropped_on_record_and_the_question_stays_open",
    ),
    Fault(
        "back_off_cut_short",
        "An attempt begins when its timer rings, though the clock went back since",
        (
            Edit(
                _ATTEMPTS, "(op.phase is OpPhase.BACKOFF and (op.due or 0) <= draft.now)", "op.phase is OpPhase.BACKOFF"
            ),
        ),
        test="tests/kernel/test_attempts.py::test_the_budget_and_the_recorded_back_off",
    ),
    Fault(
        "timer_fires_early",
        "A timer fires when it rings, though the clock went back since",
        (
            Edit(
                _ATTEMPTS,
                "op.phase is OpPhase.WAITING and op.due is not None and op.due <= draft.now",
                "op.phase is OpPhase.WAITING and op.due is not None",
            ),
        ),
        test="tests/kernel/test_ops.py::test_f20_sleep",
    ),
    Fault(
        "time_goes_back",
        "The time of an event is that of the worker's clock, also where the run is further on",
        (Edit(_DRAFT, "self.now = max(env.now, run.at)", "self.now = env.now"),),
    ),
    Fault(
        "histories_share_their_end",
        "Two journals that grow from one write into the same place",
        (Edit("streams.kernel.vector", "if len(buffer) != self._length or not buffer:", "if not buffer:"),),
    ),
    Fault(
        "results_in_the_order_of_their_coming",
        "What parallel tasks give is told apart by which of them was ready first",
        (
            Edit(
                "streams.kernel.combine",
                "taken = [op.take() for op in ops]",
                "taken = [op.take() for op in sorted(ops, key=lambda op: op.order)]",
            ),
        ),
    ),
    Fault(
        "losers_not_withdrawn",
        "`first` leaves its losers as they are",
        (Edit("streams.kernel.combine", "            if op is not winner:\n", "            if op is None:\n"),),
        test="tests/kernel/test_ops.py::test_first_withdraws_its_losers",
    ),
    Fault(
        "end_before_the_tasks",
        "A run ends while tasks of it are open",
        (
            Edit(
                _DRIVE, "        if any(op.kind in _JOINED for op in run.ops.values()):\n            return None\n", ""
            ),
        ),
    ),
    Fault(
        "blocked_run_forgets_its_input",
        "What reaches a run whose code has a mistake is not kept for the time when it is mended",
        (
            Edit(
                _DRIVE,
                "        draft.emit(delivery.held or _held_form(delivery.body))\n    block",
                "        pass\n    block",
            ),
        ),
    ),
    Fault(
        "different_start_taken_for_a_repeat",
        "A start with another input counts as the same",
        (Edit(_DECIDE, "    if run.input_hash in _digests(draft, request):\n", "    if True:\n"),),
    ),
]
