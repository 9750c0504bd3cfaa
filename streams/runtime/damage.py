"""Runs that cannot be folded, inside a turn: their mark, and the two commands that they take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streams.errors import Refused
from streams.kernel import bodies as ev
from streams.kernel.commands import Cancel, Command, Repair
from streams.kernel.events import Event
from streams.kernel.inputs import SentBack
from streams.kernel.repair import repair
from streams.kernel.run import REPAIR_PENDING
from streams.log.port import NewRecord, Record
from streams.runtime.inputs import Damage, SendBack
from streams.runtime.outgoing import Unwritable, encode_events, end_damaged
from streams.runtime.working import Working
from streams.wire.records import Damaged, encode_checkpoint, encode_event

if TYPE_CHECKING:
    from streams.runtime.partition import Hot, Partition
    from streams.runtime.turn import Turn

__all__ = ["command_of_damaged", "note_damage", "send_back"]


def note_damage(turn: Turn, item: Damage) -> None:
    """Write down that a run cannot be folded; from then on it does not pin the tail."""
    if item.hot.damaged is None:
        return
    turn.damages.append(item)
    run_id, identity, seq = item.hot.run.run_id, item.hot.run.identity, item.hot.run.seq
    data = encode_checkpoint(Damaged(run_id, item.offset, item.hot.damaged or "", identity, seq))
    turn.add(NewRecord(turn.engine.topics.checkpoints, item.partition.number, run_id.encode(), data), None)


def command_of_damaged(turn: Turn, partition: Partition, record: Record, hot: Hot, command: Command) -> None:
    """A damaged run takes `cancel --force` and a repair; everything else waits among the dead letters."""
    request = command.request
    if isinstance(request, Repair):
        _repair(turn, partition, hot, command, request)
    elif isinstance(request, Cancel) and request.force:
        run, event = end_damaged(hot.run, command.offset, turn.now, partition.epoch)
        working = turn.working[partition.number, command.run_id] = Working(partition, hot)
        working.run, working.live, working.touched = run, None, True
        turn.add_event(working, event, encode_event(event))
    else:
        cure = f"this command comes back once the run is repaired: streams rebuild {command.run_id} --reason TEXT"
        turn.dead(partition, record, f"run {command.run_id!r} is damaged: {hot.damaged}; {cure}", "RUN_DAMAGED")


def _repair(turn: Turn, partition: Partition, hot: Hot, command: Command, request: Repair) -> None:
    try:
        run, event = repair(hot.run, command, request, turn.now, partition.epoch)
        (data,) = encode_events([event])
    except Refused as refused:
        _reject(turn, partition, command, refused.code, refused.message)
    except Unwritable as unwritable:
        _reject(turn, partition, command, *unwritable.stop)
    else:
        working = turn.working[partition.number, command.run_id] = Working(partition, hot)
        working.run, working.live, working.touched = run, None, True
        turn.add_event(working, event, data)
        turn.repaired.append((partition, command.run_id))


def _reject(turn: Turn, partition: Partition, command: Command, code: str, message: str) -> None:
    """On record, and the run stays damaged."""
    body = ev.CommandRejected(command.type, code, message, command.command_id)
    identity = f"?@{command.offset}"
    event = Event(command.run_id, identity, None, turn.now, None, command.offset, partition.epoch, body)
    key = command.run_id.encode()
    turn.add(NewRecord(turn.engine.topics.events, partition.number, key, encode_event(event)), None)


def send_back(turn: Turn, item: SendBack) -> None:
    """Write the commands that have waited for a repair, and that this is done: once, for the turn does both or none."""
    place = (item.partition.number, item.run_id)
    hot = item.partition.runs.get(item.run_id)
    working = turn.working.get(place)
    run = working.run if working is not None else hot.run if hot is not None else None
    if run is None or run.blocked is None or run.blocked.code != REPAIR_PENDING:
        return
    turn.happened(item.partition, item.run_id, SentBack())
    if not turn.is_stopped(*place):  # else one of them is what the log refuses
        for record in item.records:
            turn.add(record, turn.working[place])
