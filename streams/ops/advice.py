"""What each error code means and what an operator can do: the one table that diagnoses and docs are made of."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import NamedTuple

from streams.ops.advice_effects import EFFECT_ROWS
from streams.ops.advice_repair import ROWS
from streams.ops.advice_requests import REQUEST_ROWS

__all__ = ["ADVICE", "Advice", "advice_for", "errors_page"]


class Advice(NamedTuple):
    """`stops` says what the code stops. In `commands`, RUN and OP stand for the run and the op."""

    code: str
    stops: str
    means: str
    do: str
    commands: tuple[str, ...] = ()


_RUN, _OP, _COMMAND, _TRY = "run", "op", "command", "attempt"
_RETRY, _FORCE = "streams retry RUN", "streams cancel RUN --force"
_RETRY_OP, _SKIP = "streams retry RUN --op OP", "streams skip RUN --op OP"
_COMPLETE = "streams complete RUN --op OP --value JSON"

_TABLE = (
    Advice(
        "NON_DETERMINISM",
        _RUN,
        "The code does something else than the recorded run did at the same place. The message names both sides. "
        "Either the code was changed under a running run, or it depends on something that is not recorded: a clock, "
        "chance, the order of a set, a global.",
        "Deploy code that does what was recorded (raise `version=` for the changed one and keep the old), then retry."
        " The journal is unharmed, and what arrives meanwhile is kept in order.",
        (_RETRY, _FORCE),
    ),
    Advice(
        "WORKFLOW_BUG",
        _RUN,
        "Workflow code raised an exception that is no `Fail`, awaited something that is no op, or never came to a "
        "wait. The step was taken back as a whole.",
        "Mend the code, deploy it, then retry: the same step is done again with the same outcome. The part before it "
        "must stay as it was.",
        (_RETRY, _FORCE),
    ),
    Advice(
        "WORKFLOW_UNKNOWN",
        _RUN,
        "The worker has no workflow or graph of this name.",
        "Start a worker whose app defines it, then retry; if the name was mistyped at the start, end the run.",
        (_RETRY, _FORCE),
    ),
    Advice(
        "VERSION_UNSUPPORTED",
        _RUN,
        "The worker has the workflow, but not the version that the run was started with.",
        "Deploy that version beside the new one (two `@app.workflow` functions with one name), then retry.",
        (_RETRY, _FORCE),
    ),
    Advice(
        "SCHEMA_VERSION_UNSUPPORTED",
        _RUN,
        "A newer release of streams wrote the state or an event of the run. Nothing is wrong with it. Its partition is "
        "refused, so that an older worker changes nothing; the others go on.",
        "Run workers of that release (or upgrade the tool that told you); the partition is tried again every 30 s and "
        "then goes on by itself.",
    ),
    Advice(
        "VALUE_UNREADABLE",
        _RUN,
        "A stored value has a type that the app does not know any more, or a form that does not fit its class.",
        "Bring the class back under its old name (`app.types(OldName=NewClass)`), or give its new field a default; "
        "then retry.",
        (_RETRY, _FORCE),
    ),
    Advice(
        "VALUE_TOO_LARGE",
        "run, op or command",
        "A value is over 256 KB, a record over 900 KB, or the values that a run keeps over 700 KB. In a task's result"
        " the op is parked, since its work is done; in workflow code the run is blocked; in a command it is refused.",
        "Keep large values elsewhere and pass a reference. For a parked op: complete it with a reference. For a "
        "blocked run: mend the code, then retry.",
        (_COMPLETE, _SKIP, _RETRY, _FORCE),
    ),
    Advice(
        "TOPIC_MISSING",
        _RUN,
        "A topic that the run writes to, such as that of an effect, was deleted while workers ran.",
        "Create the app's topics again, then retry: the step is done again with the same outcome.",
        ("streams topics create MODULE:APP", _RETRY, _FORCE),
    ),
    Advice(
        "VALUE_NOT_STORABLE",
        "run, op or command",
        "A value holds something that would not come back equal. The message has the path to it. In a task's result "
        "the op is parked, since its work is done; in workflow code the run is blocked.",
        "For a parked op: complete it with a storable value, or mend the task and retry it if a repeat does no harm. "
        "For a blocked run: mend the code, then retry.",
        (_COMPLETE, _RETRY_OP, _SKIP, _RETRY, _FORCE),
    ),
    Advice(
        "GRAPH_EMPTY",
        _RUN,
        "The graph has no nodes in the worker's code.",
        "Deploy the graph with its nodes, then retry.",
        (_RETRY, _FORCE),
    ),
    Advice(
        "ENGINE_BUG",
        _RUN,
        "The engine itself failed while it decided for this run. That is our fault; other runs go on.",
        "Report it with the run's history. A retry after an upgrade goes on from the same place.",
        ("streams history RUN --json", _RETRY, _FORCE),
    ),
    Advice(
        "OUTCOME_UNKNOWN",
        _OP,
        "An attempt may or may not have done its work: the worker died, or the time ran out, after it had begun. The "
        "task is not idempotent, or its look-up could not tell. A request: the reply says that nobody can tell.",
        "Look in the outside system under the idempotency key. It happened: complete the op with what it gave. It did"
        " not: retry. Go on without it: skip, and the code sees a failure with the code SKIPPED.",
        (_COMPLETE, _RETRY_OP, _SKIP),
    ),
    Advice(
        "RETRIES_EXHAUSTED",
        _OP,
        "All attempts of the task or request failed; the last error is in the message. The op is parked where its "
        "retry says `on_exhausted='park'`, else it has failed and the code has been told.",
        "For a parked op: remove the cause and retry, which gives a fresh budget.",
        (_RETRY_OP, _COMPLETE, _SKIP),
    ),
    Advice(
        "TASK_UNKNOWN",
        _OP,
        "The worker has no task of this name: it was renamed or removed while runs still need it.",
        'Deploy it under the old name (`@app.task(name="…")`), then retry the op.',
        (_RETRY_OP, _COMPLETE, _SKIP),
    ),
    Advice(
        "RECONCILE_FAILED",
        "attempt, op",
        "The look-up of a task with `reconcile` raised, so whether the work was done is still unknown. It is tried "
        "again; at last the op is parked.",
        "See whether the outside system answers. For a parked op, look yourself under the key.",
        (_RETRY_OP, _COMPLETE, _SKIP),
    ),
    Advice(
        "NOT_DONE",
        _TRY,
        "The look-up of a task with `reconcile` says that the last attempt did not do its work, and none is left.",
        "Nothing: the op fails with RETRIES_EXHAUSTED, or is parked with it.",
    ),
    Advice(
        "WORKER_LOST",
        _TRY,
        "The worker stopped during the attempt, so it may have done its work. It is looked up, tried again, or "
        "parked, as the task says.",
        "Nothing, unless it happens again and again: then the task may be what kills the worker.",
    ),
    Advice(
        "ATTEMPT_TIMED_OUT",
        _TRY,
        "The attempt took longer than the task's `timeout`, and may have done its work.",
        "Raise `timeout=`, or find out why it is slow. It is tried again by itself.",
    ),
    Advice(
        "ATTEMPT_STOPPED",
        _TRY,
        "The attempt was stopped before its end: its run was cancelled, or the worker was shutting down.",
        "Nothing.",
    ),
    Advice(
        "ATTEMPT_RETURNED",
        _TRY,
        "A worker that stopped in good order gave the attempt back, and it may have done its work.",
        "Nothing; a task that is not idempotent parks with OUTCOME_UNKNOWN.",
    ),
    Advice(
        "TIMED_OUT",
        "attempt, op",
        "No answer came before the time given at the interrupt, or no reply before that given at the request.",
        "Nothing: the code has been told, or the request is made again by the `retry` of its effect. If it happens "
        "again and again, see whether anybody carries the effect out.",
    ),
    Advice(
        "WITHDRAWN",
        _OP,
        "The op was taken back before it had an outcome: it lost in `first`, or its run was cancelled.",
        "Nothing: the code has been told.",
    ),
    Advice(
        "SKIPPED",
        _OP,
        "An operator skipped the op; the code sees it as a failure.",
        "Nothing.",
    ),
    Advice(
        "INPUT_INVALID",
        _COMMAND,
        "The value does not fit the type that the workflow, signal, interrupt, task or request asks for; the message "
        "has the path.",
        "Send it again in the right form. An interrupt stays open.",
    ),
    Advice(
        "INPUT_CONFLICT",
        _COMMAND,
        "The run id was used before, with another input or another workflow. The first run is unharmed.",
        "Choose another run id. Starting again with the same input is no conflict.",
    ),
    Advice(
        "UNKNOWN_RUN",
        _COMMAND,
        "No run of this id has been started in this app, or it ended so long ago that it has been forgotten.",
        "Look for it; a signal or a cancel may come before the start, other commands may not.",
        ("streams runs", "streams history RUN"),
    ),
    Advice(
        "RUN_TERMINAL",
        _COMMAND,
        "The run has ended; nothing changes it any more.",
        "Start another.",
        ("streams show RUN",),
    ),
    Advice(
        "RESULT_EXPIRED",
        _COMMAND,
        "The run ended so long ago (7 days unless set otherwise) that only how it ended is still known.",
        "Its last event holds the result for as long as the events are kept.",
        ("streams history RUN",),
    ),
    Advice(
        "NO_SUCH_INTERRUPT",
        _COMMAND,
        "The answer fits no open interrupt: it was answered before, timed out, or several are open and none was named.",
        "See what is open, and name it.",
        ("streams show RUN", "streams resume RUN --value JSON --interrupt ID"),
    ),
    Advice(
        "NO_SUCH_OP",
        _COMMAND,
        "The run has no open op of this id, or it is none that takes the command.",
        "See what is open.",
        ("streams show RUN",),
    ),
    Advice(
        "OP_BUSY",
        _COMMAND,
        "An attempt of the op is running, so nobody may decide over it.",
        "Wait for its outcome or time-out.",
    ),
    Advice(
        "NOT_A_TASK",
        _COMMAND,
        "Only tasks and requests can be completed.",
        "Answer an interrupt with resume; skip another op.",
        (_SKIP,),
    ),
    Advice(
        "NOTHING_TO_RETRY",
        _COMMAND,
        "Nothing is parked, or several ops are.",
        "Name one.",
        (_RETRY_OP,),
    ),
    Advice(
        "UNKNOWN_SIGNAL",
        _COMMAND,
        "The app declares no signal of this name.",
        "Declare it with `app.signal`, or mend the name; the message lists those that exist.",
    ),
    Advice(
        "INBOX_FULL",
        _COMMAND,
        "The run keeps as many signals as it can hold: 100 before its start, else as fit into its 700 KB.",
        "Let it take some first.",
    ),
    Advice(
        "NOT_SUPPORTED",
        _COMMAND,
        "This release of streams does not know the command.",
        "Upgrade the workers.",
    ),
    Advice(
        "NO_EFFECT",
        _COMMAND,
        "The command was legal and changed nothing.",
        "Nothing.",
    ),
    Advice(
        "DUPLICATE",
        _COMMAND,
        "The command was taken before; it is not taken twice. A reply: the request has its outcome already.",
        "Nothing. What a second reply says is kept in the history, should it be another one.",
    ),
    Advice(
        "DEAD_LETTER",
        _COMMAND,
        "The record is no command, lies on the wrong partition, or was meant for a damaged run. Its bytes are kept "
        "among the dead letters with the reason.",
        "Mend the producer; the reason says what was expected. What was meant for a damaged run comes back by itself "
        "when that is repaired.",
    ),
    Advice(
        "COMMAND_INVALID",
        _COMMAND,
        "The bytes are no command: a field is missing, unknown, or of the wrong kind.",
        "Mend the producer; the reason names the field.",
    ),
    Advice(
        "KEY_INVALID",
        _COMMAND,
        "The key of the record is no run id.",
        "Give the run id as key: 1 to 200 bytes of UTF-8 without control characters.",
    ),
    Advice(
        "EARLY_INPUT_EXPIRED",
        _COMMAND,
        "A signal or a cancel came for a run that nobody has started within a day. It lies among the dead letters as a "
        "command.",
        "Start the run, then produce the dead letter's value again under the same key.",
    ),
    Advice(
        "WRONG_PARTITION",
        _COMMAND,
        "The command lies on another partition than its run id belongs to; taking it would make a second copy of the "
        "run.",
        "Produce with the murmur2 partitioner and the run id as key; then send the dead letter's bytes again.",
    ),
    *(Advice(*row) for row in (*REQUEST_ROWS, *EFFECT_ROWS, *ROWS)),
)

ADVICE: dict[str, Advice] = {advice.code: advice for advice in _TABLE}

_OTHERS = {
    "run": Advice(
        "",
        _RUN,
        "The run was stopped for an operator.",
        "See the message; mend the cause, then retry.",
        (_RETRY, _FORCE),
    ),
    "op": Advice(
        "",
        _OP,
        "The op waits for an operator.",
        "See the message; remove the cause and retry, or decide over it yourself.",
        (_RETRY_OP, _COMPLETE, _SKIP),
    ),
}


def advice_for(code: str, run_id: str, op: str | None = None) -> Advice:
    """What to do about a blocked run, or about its parked op `op`, with commands to be copied."""
    found = ADVICE.get(code) or _OTHERS["run" if op is None else "op"]
    commands = tuple(_fill(command, run_id, op) for command in found.commands if op is None or command != _RETRY)
    if op is None:
        commands = tuple(command for command in commands if "OP" not in command.split())
    else:
        commands = tuple(command for command in commands if not command.endswith("--force"))
    return found._replace(code=code, commands=commands)


def _fill(command: str, run_id: str, op: str | None) -> str:
    words = {"RUN": shlex.quote(run_id), "OP": "OP" if op is None else shlex.quote(op)}
    return " ".join(words.get(word, word) for word in command.split(" "))


def errors_page() -> str:
    """The page `docs/errors.md`."""
    return "\n".join(_page()) + "\n"


def _page() -> Iterator[str]:
    yield "# What to do at each error code"
    yield ""
    yield (
        "`streams diagnose RUN` shows the codes of a run with the commands filled in. A *blocked* run waits as a "
        "whole; a *parked* op waits alone, and other branches of its run go on; a refused command has changed nothing. "
        "Other codes come from your own code: what it gave to `Fail`, or the name of an exception class."
    )
    yield ""
    yield "This page is made from the table in `streams/ops/advice.py`; a test keeps the two equal."
    for advice in _TABLE:
        yield ""
        yield f"## {advice.code}"
        yield ""
        yield f"*Stops: {advice.stops}.* {advice.means}"
        yield ""
        yield f"**Do:** {advice.do}"
        if advice.commands:
            yield ""
            yield "```sh"
            yield from advice.commands
            yield "```"
