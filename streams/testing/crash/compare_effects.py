"""What differs in the effects that subscribers have carried out, apart from epochs, owners, deliveries and times."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from streams.authoring.app import App
from streams.authoring.task import NotFound
from streams.effects.port import Entry, Status

if TYPE_CHECKING:
    from streams.testing.crash.compare import Comparer
    from streams.testing.crash.world import Execution

__all__ = ["effect_differences", "parked_effects", "without_offset"]

Said = tuple[str, str, str, str]
"""The run, what differs, without a crash, and with it."""


def without_offset(key: str | None, run_id: str) -> str | None:
    """A key without the offset of the run's start, which the replies of other runs move."""
    return None if key is None else re.sub(rf"(?<={re.escape(run_id)}@)\d+", "…", key)


def parked_effects(base: Execution, found: Execution) -> Iterator[tuple[str, str, str]]:
    """Effects that need a person now and did not without a crash: run, effect with its key, and why."""
    before = _entries(base)
    for name, entry in _entries(found).items():
        old = before.get(name)
        if entry.status is Status.PARKED and (old is None or old.status is not Status.PARKED):
            code = entry.error.code if entry.error is not None else "?"
            yield entry.run_id, f"effect {entry.key.operation} ({name[1]})", code


def effect_differences(app: App, comparer: Comparer, base: Execution, found: Execution) -> Iterator[Said]:
    """Outcomes in the ledger, dead letters, what transactional handlers have written, and calls of handlers."""
    parked = {run_id for run_id, _, _ in parked_effects(base, found)}
    yield from (said for said in _outcomes(comparer, base, found) if said[0] not in parked)
    letters = [{given for given in side.served.given_up if given.run_id not in parked} for side in (base, found)]
    for given in sorted({_plain(given) for given in letters[0]} ^ {_plain(given) for given in letters[1]}):
        sides = ["a dead letter" if given in {_plain(one) for one in side} else "none" for side in letters]
        yield (given[1], f"effect {given[0]} ({given[2]}) given up with {given[3]}", *sides)  # type: ignore[misc]
    tables = [comparer.seen(_without_offsets(side)) for side in (base, found)]
    if not parked and tables[0] != tables[1]:
        yield "", "what transactional handlers have written", *(repr(table)[:200] for table in tables)  # type: ignore[misc]
    yield from _calls(app, base, found)


def _plain(given: Any) -> tuple[str, str, str, str]:
    return given.effect, given.run_id, without_offset(given.key, given.run_id) or "", given.code


def _entries(execution: Execution) -> dict[tuple[str, str], Entry]:
    """By effect and key."""
    entries = execution.served.entries.values()
    return {(one.key.operation, without_offset(one.key.key, one.run_id) or ""): one for one in entries}


def _without_offsets(execution: Execution) -> dict[Any, Any]:
    """The keys of messages among the keys of the table, without the offsets of the runs' starts."""
    short = {entry.key.key: without_offset(entry.key.key, entry.run_id) for entry in execution.served.entries.values()}
    return {
        short.get(key, key) if isinstance(key, str) else key: value for key, value in execution.served.tables.items()
    }


def _outcomes(comparer: Comparer, base: Execution, found: Execution) -> Iterator[Said]:
    before, after = _entries(base), _entries(found)
    for name in {**before, **after}:
        sides = [before.get(name), after.get(name)]
        entry = sides[1] or sides[0]
        assert entry is not None
        if _differ(comparer.differ, *sides):
            what = f"the outcome of effect {name[0]} ({name[1]})"
            yield entry.run_id, what, *(_told(comparer.shown, side) for side in sides)  # type: ignore[misc]


def _differ(differ: Callable[[bytes | None, bytes | None], bool], before: Entry | None, after: Entry | None) -> bool:
    if before is None or after is None or before.status is not after.status:
        return True
    if before.status is Status.DONE:
        return differ(before.response, after.response)
    return _code(before) != _code(after)


def _code(entry: Entry) -> str:
    return "" if entry.error is None else entry.error.code


def _told(shown: Callable[[bytes | None], str], entry: Entry | None) -> str:
    if entry is None:
        return "none"
    return f"done with {shown(entry.response)}" if entry.status is Status.DONE else f"{entry.status} ({_code(entry)})"


def _calls(app: App, base: Execution, found: Execution) -> Iterator[Said]:
    """At most one more call for each crash; none once it was done, or where only a look-up or a person may allow it."""
    counts = [_counted(side) for side in (base, found)]
    for name, count in counts[1].items():
        effect, run_id, key = name
        subscription = app.subscriptions[effect]
        if subscription.transactional:
            continue  # what is rolled back may be done again; what it has written is compared
        what = f"the subscriber of {effect} ({key})"
        late = sum(_late(found, name))
        if late:
            yield run_id, f"{what} after its outcome was in the ledger", "no call", f"{late} calls"
            continue
        if subscription.reconcile is not None:
            more, rule = _not_found(found, name), ", for a look-up has not said that it was not done"
        elif subscription.idempotent:
            more, rule = len(found.strikes), ""
        else:
            more, rule = 0, ", for it must not be repeated blindly"
        if count > counts[0][name] + more:
            yield run_id, what, f"at most {counts[0][name] + more} calls{rule}", f"{count} calls"


Name = tuple[str, str, str]


def _name(call: Any) -> Name:
    return call.effect, call.run_id, without_offset(call.key, call.run_id) or ""


def _counted(execution: Execution) -> Counter[Name]:
    return Counter(_name(call) for call in execution.calls if call.effect and not call.look_up)


def _late(found: Execution, name: Name) -> Iterator[bool]:
    for strike in found.strikes:
        done = {(key.operation, key.key) for key in strike.done}
        for call in found.calls[strike.calls :]:
            yield call.effect != "" and not call.look_up and _name(call) == name and (call.effect, call.key) in done


def _not_found(found: Execution, name: Name) -> int:
    return sum(
        call.effect != "" and call.look_up and _name(call) == name and isinstance(call.answer, NotFound)
        for call in found.calls
    )
