"""What to do about damage: the rows of the table of advice that belong to `streams rebuild`."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ROWS", "Row"]

_RUN, _COMMAND = "run", "command"
_DRY, _REPAIR = "streams rebuild RUN --reason TEXT --dry-run", "streams rebuild RUN --reason TEXT"
_RETRY, _FORCE = "streams retry RUN", "streams cancel RUN --force"


class Row(NamedTuple):
    """As `Advice`."""

    code: str
    stops: str
    means: str
    do: str
    commands: tuple[str, ...]


ROWS = (
    Row(
        "RUN_DAMAGED",
        _RUN,
        "The run's events do not follow on one another, or a record cannot be read. The message names the offset. Its"
        " other inputs wait among the dead letters; all other runs go on.",
        "Look at the history around that offset, and at who else writes to the topics. Then repair the run: the dry "
        "run shows which state can still be made and what is lost with the rest; the repair goes on from there, and "
        "what waits comes back in order. Or end it.",
        ("streams history RUN", _DRY, _REPAIR, _FORCE),
    ),
    Row(
        "REPAIR_PENDING",
        _RUN,
        "The run was repaired a moment ago, and the commands that have waited for it are being sent back.",
        "Wait a moment: its owner does it, and begins again if it dies over it.",
        (),
    ),
    Row(
        "REPAIRED",
        _RUN,
        "The run was repaired, and an operator is to look before anything runs: `--parked` was asked for, or what is "
        "lost had begun work that will be done again. History has the reason of the repair.",
        "Look at what has left already (`streams history RUN`, the ledger of the effects), then let it go on, or "
        "end it.",
        ("streams diagnose RUN", _RETRY, _FORCE),
    ),
    Row(
        "NOT_DAMAGED",
        _COMMAND,
        "A repair was sent for a run that its owner can fold. Nothing was changed.",
        "Nothing. If a reader of the log sees damage, a foreign program has written there while the owner was at work: "
        "the owner goes by what it has written itself, and its next checkpoint covers the record.",
        (),
    ),
    Row(
        "REPAIR_STALE",
        _COMMAND,
        "The run has moved on since the repair was made for it.",
        "Look again, and repair what there is now.",
        (_DRY,),
    ),
    Row(
        "REPAIR_INVALID",
        _COMMAND,
        "The repair has no reason, or its state is none that the run can have had. The message names the field.",
        "Let `streams rebuild RUN` make the command.",
        (_DRY,),
    ),
    Row(
        "NOT_REPAIRABLE",
        _COMMAND,
        "Too little of the run is left: its first events are gone, and no checkpoint of it can be read.",
        "End the run, and start what it was for again under another id.",
        (_FORCE,),
    ),
    Row(
        "WORKERS_RUNNING",
        "rebuild",
        "A rebuild of the checkpoints writes as the owner of all partitions. The message names who else is in the "
        "group; a worker that was killed is in it until its session is over.",
        "Stop the workers, then run it again.",
        (),
    ),
    Row(
        "PARTITION_TAKEN",
        "rebuild",
        "A worker has started while the rebuild was under way. It refuses to serve what is not finished.",
        "Stop it, then run the rebuild again.",
        (),
    ),
    Row(
        "COMMIT_IN_DOUBT",
        "rebuild",
        "The log did not say whether a transaction of the rebuild was committed.",
        "Run it again: it looks at what is there.",
        (),
    ),
)
