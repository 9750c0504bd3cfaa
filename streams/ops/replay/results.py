"""Compares how the runs of a copied app ended with how those of the first one did."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from streams.client import PartitionView, RunView
from streams.client.reading import Progress
from streams.kernel.run import is_result_gone, is_terminal
from streams.log.port import Log
from streams.wire.topics import Topics, topics_of
from streams.wire.values import ValueCodec

__all__ = ["Outcome", "Results", "compare_results"]

EXAMPLES_MAX = 3


class Outcome(StrEnum):
    """How a run of the copy compares."""

    SAME = "same"
    DIFFERS = "differs"
    NOT_ENDED = "not_ended"
    MISSING = "missing"
    NEW = "new"
    RESULT_GONE = "result_gone"


class End(NamedTuple):
    """How a run stands, in few bytes: a digest stands for its result."""

    status: str
    result: bytes | None
    error: tuple[str, str] | None
    gone: bool
    ended: bool


class Example(NamedTuple):
    """A run that is not the same, with both sides."""

    run_id: str
    outcome: Outcome
    old: dict[str, Any] | None
    new: dict[str, Any] | None


@dataclass(slots=True)
class Results:
    """All runs: counts, and the first few of each kind that is not the same."""

    runs: int = 0
    counts: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    examples: list[Example] = field(default_factory=list)

    @property
    def same(self) -> bool:
        """Whether there were runs, and all of them ended as they had ended before."""
        return self.runs > 0 and self.counts[Outcome.SAME] == self.runs

    def add(self, run_id: str, old: End | None, new: End | None) -> None:
        """Count one run."""
        outcome = _judge(old, new)
        self.runs += 1
        self.counts[outcome] += 1
        if outcome is not Outcome.SAME and self.counts[outcome] <= EXAMPLES_MAX:
            self.examples.append(Example(run_id, outcome, _plain(old), _plain(new)))

    def plain(self) -> dict[str, Any]:
        """As JSON shows it."""
        counts = {outcome.value: count for outcome, count in self.counts.items()}
        return {"runs": self.runs, **counts, "examples": [example._asdict() for example in self.examples]}


async def compare_results(
    log: Log, old: str, new: str, *, runs: Collection[str] = (), progress: Progress | None = None
) -> Results:
    """Compare all runs of both apps, or those named. It keeps a few hundred bytes a run of the copy.

    A run that waits in both counts as the same where it waits in the same status.
    """
    results = Results()
    wanted = set(runs)
    copies = await _all_ends(log, topics_of(new), wanted, progress)
    topics = topics_of(old)
    for number in range(await _count(log, topics)):
        for run_id, end in (await _ends(log, topics, number, wanted, progress)).items():
            results.add(run_id, end, copies.pop(run_id, None))
    for run_id, end in copies.items():
        results.add(run_id, None, end)
    return results


async def _count(log: Log, topics: Topics) -> int:
    found = await log.describe_topics([topics.events])
    return found[topics.events].partitions if topics.events in found else 0


async def _all_ends(log: Log, topics: Topics, wanted: set[str], progress: Progress | None) -> dict[str, End]:
    found: dict[str, End] = {}
    for number in range(await _count(log, topics)):
        found |= await _ends(log, topics, number, wanted, progress)
    return found


async def _ends(log: Log, topics: Topics, number: int, wanted: set[str], progress: Progress | None) -> dict[str, End]:
    keys = {run_id.encode() for run_id in wanted} or None
    view = await PartitionView.load(log, topics, number, keys=keys, progress=progress)
    codec = ValueCodec()
    return {run_id: _end(found, codec) for run_id, found in view.runs.items()}


def _end(view: RunView, codec: ValueCodec) -> End:
    run = view.run
    if run is None:
        return End(view.status.value, None, None, gone=False, ended=False)
    result = None if run.result is None else codec.digest(run.result)
    error = run.error or run.blocked
    text = None if error is None else (error.code, error.message)
    return End(view.status.value, result, text, gone=is_result_gone(run), ended=is_terminal(run))


def _judge(old: End | None, new: End | None) -> Outcome:
    if old is None:
        return Outcome.NEW
    if new is None:
        return Outcome.MISSING
    if old.ended and not new.ended:
        return Outcome.NOT_ENDED
    if old.status == new.status and (old.gone or new.gone):
        return Outcome.RESULT_GONE
    return Outcome.SAME if old == new else Outcome.DIFFERS


def _plain(end: End | None) -> dict[str, Any] | None:
    if end is None:
        return None
    error = None if end.error is None else {"code": end.error[0], "message": end.error[1]}
    return {"status": end.status, "result_digest": None if end.result is None else end.result.hex(), "error": error}
