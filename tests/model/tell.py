"""Steps of a trace in words."""

from __future__ import annotations

from tests.model.state import IDS

_LOGS = ("events", "checkpoints", "leases")


def told(label: tuple) -> str:
    """One step of a trace."""
    what, *rest = label
    return _TELL.get(what, _plain)(what, *rest)


def _who(number: int) -> str:
    return "ABCDEFGH"[number]


def _id(tid: int) -> str:
    return f"{_who(tid // IDS)}/{tid % IDS + 1}"


def _plain(what: str, number: int | str = "", *rest: object) -> str:
    who = _who(number) if isinstance(number, int) else str(number)
    return " ".join([f"{who}:", what, *(str(part) for part in rest if part not in ((), "", None))])


def _takes(what: str, number: int, works: tuple, checkpoint: str) -> str:
    events = [
        f"command {command} of partition {partition} (event {seq} of run {run})"
        for partition, decided in works
        for run, seq, command in decided
    ]
    return f"{_who(number)}: {what} {', '.join(events)}{' with a checkpoint' if checkpoint else ''}"


def _meanwhile(what: str, number: int, partition: int, events: tuple) -> str:
    return _takes(what, number, ((partition, events),), "")


def _lease(what: str, number: int, partition: int, lease: tuple | None) -> str:
    said = "none" if lease is None else f"epoch {lease[1]} of {_id(lease[2])}, applied {lease[3]}, tail {lease[4]}"
    return f"{_who(number)}: {what}: {said}"


def _offsets(what: str, number: int, offsets: tuple) -> str:
    said = ", ".join(f"{offset} for partition {partition}" for partition, offset in offsets)
    return f"{_who(number)}: {what}: {said}"


def _stable(what: str, number: int, partition: int, offset: int) -> str:
    return f"{_who(number)}: {what} of partition {partition} is {'none' if offset < 0 else offset}"


def _ends(what: str, number: int, partition: int, ends: tuple = ()) -> str:
    said = ", ".join(f"{end} {name}" for name, end in zip(_LOGS, ends, strict=False))
    return f"{_who(number)}: {what} of partition {partition}{f': {said}' if said else ''}"


def _restored(what: str, number: int, partition: int, seqs: tuple, applied: int) -> str:
    return f"{_who(number)}: {what} partition {partition}: runs at {list(seqs)}, the next command is {applied}"


def _marker(what: str, tid: int, committed: bool, log: int) -> str:
    kind = "commit" if committed else "abort"
    return f"broker: the {kind} {what} of {_id(tid)} in {_LOGS[log % 3]}[{log // 3}]"


def _offset_marker(what: str, tid: int, committed: bool) -> str:
    end = "the group's" if committed else "dropped"
    return f"broker: the offsets of {_id(tid)} are {end}"


def _broker(what: str, tid: int) -> str:
    return f"broker: {what}: the transaction of {_id(tid)}"


def _settles(what: str, number: int, tid: int) -> str:
    return f"{_who(number)}: {what} the id {_id(tid)}"


def _claims(what: str, number: int, partition: int, epoch: int) -> str:
    return f"{_who(number)}: {what} partition {partition} under epoch {epoch}"


def _again(what: str, number: int, partition: int, epoch: int) -> str:
    return f"{_who(number)}: {what} of partition {partition}: epoch {epoch} was seen, so it claims above it, from 2"


def _of_partition(what: str, number: int, partition: int) -> str:
    return f"{_who(number)}: {what} partition {partition}"


def _sweeps(what: str, number: int, partition: int, checkpoints: tuple, lease: tuple) -> str:
    covered = ", ".join(f"run {run} at {seq}" for run, seq in checkpoints) or "none"
    return f"{_who(number)}: {what} partition {partition}: checkpoints {covered}; a lease with tail {lease[2]}"


def _expels(what: str, number: int) -> str:
    return f"group: expels {_who(number)}, whose partitions go to the others"


def _gives(what: str, number: int, partition: int, other: int) -> str:
    return f"{_who(number)}: {what} partition {partition}, which goes to {_who(other)}"


def _set(what: str, partition: int, offset: int) -> str:
    return f"outside: the group's offset of partition {partition} is {'deleted' if offset < 0 else f'set to {offset}'}"


def _lost(what: str, partition: int) -> str:
    return f"outside: {what} of partition {partition}"


_TELL = {
    "1, 2: takes": _takes,
    "2: decides meanwhile": _meanwhile,
    "3, 4: lease": _lease,
    "3: sends offsets": _offsets,
    "1: stable offset": _stable,
    "2: ends": _ends,
    "6-8: restored": _restored,
    "marker": _marker,
    "marker of offsets": _offset_marker,
    "commits": _broker,
    "aborts after the time-out": _broker,
    "a late request arrives and commits": _broker,
    "5: claims": _claims,
    "6: its leases were lost": _again,
    "is to give up": _of_partition,
    "releases": _of_partition,
    "gets it back": _of_partition,
    "sweeps": _sweeps,
    "settles": _settles,
    "the group expels": _expels,
    "gives up": _gives,
    "the group's offset is set": _set,
    "the leases are lost": _lost,
}
