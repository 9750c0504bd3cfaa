"""Which run a refused record is blamed on: it is blocked in the redo, and its neighbours are unharmed."""

from __future__ import annotations

from streams.errors import SendRefused
from streams.runtime.inputs import Item
from streams.runtime.outgoing import Stop
from streams.runtime.turn import Turn

__all__ = ["blame"]


def blame(turn: Turn, items: list[Item], error: SendRefused, stopped: dict[tuple[int, str], Stop]) -> list[Item]:
    """Prepare the redo of a turn with a record that can never be written; return the inputs to put back.

    Where no record can be blamed, half of the inputs is redone, until a single one is left. A run that cannot even be
    blocked raises the error: going on without it would lose its input.
    """
    blamed = () if error.index is None else (error.index, *error.others)
    owners = [owner for owner in map(turn.owners.__getitem__, blamed) if owner is not None]
    if not owners and len(items) > 1:
        half = len(items) // 2
        rest = items[half:]
        del items[half:]
        return rest
    keys = {(owner.partition.number, owner.run.run_id) for owner in owners or list(turn.working.values())[:1]}
    if not keys or any(key in stopped for key in keys):
        raise error
    stopped.update(dict.fromkeys(keys, Stop(error.code, str(error))))
    return []
