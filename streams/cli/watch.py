"""What a worker tells the person at its terminal: what it owns, and what needs somebody. Quiet otherwise."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from rich.text import Text

from streams.cli.terminal import console, error_text, print_json, safe
from streams.observer import Observer

__all__ = ["TerminalObserver", "dated", "ranges"]

LINES_PER_SECOND_MAX = 5
"""Lines of one kind; what is more is counted, since a provider that is down fails thousands of tasks at once."""

_GATHER_SECONDS = 0.3
_COUNT_SECONDS = 1.0
_STYLES = {
    "owns": "green",
    "refused": "bold red",
    "blocked": "bold red",
    "parked": "yellow",
    "dead": "yellow",
    "retry": "dim",
    "redo": "dim",
    "note": "cyan",
    "skipped": "cyan",
    "ledger": "yellow",
    "started": "dim",
    "status": "cyan",
    "ended": "bold red",
}


class TerminalObserver(Observer):
    """Prints lines; with `as_json` objects instead. To a supervisor it tells both, in objects with a `line`."""

    def __init__(self, *, as_json: bool = False, supervised: bool = False) -> None:
        self._as_json = as_json or supervised
        self._supervised = supervised
        self._console = console()
        self._states: dict[int, str] = {}
        self._told: str | None = None
        self._gathering: asyncio.TimerHandle | None = None
        self._counts: dict[str, int] = {}
        self._skipped: Counter[int] = Counter()

    # -- what the engine calls -----------------------------------------------------------------------------------

    def partition(self, number: int, state: str, epoch: int, detail: str) -> None:
        self._states[number] = state
        if state == "refused":
            again = "nothing is written there; it is tried again every 30 s"
            self._say("refused", f"partition {number}: {detail} ({again})", partition=number, detail=detail)
        elif self._gathering is None:
            # They come one by one within milliseconds, and one line is enough.
            self._gathering = asyncio.get_running_loop().call_later(_GATHER_SECONDS, self._tell_owned)
        del epoch

    def joined(self, partitions: int) -> None:
        if self._supervised:
            self._print("joined", "", {"partitions": partitions})

    def redo(self, reason: str) -> None:
        self._say("redo", f"a turn is done again: {reason}", reason=reason)

    def dead_letter(self, topic: str, partition: int, offset: int, reason: str) -> None:
        where = f"{topic}[{partition}]@{offset}"
        self._say(
            "dead", f"dead letter {where}: {reason}", topic=topic, partition=partition, offset=offset, reason=reason
        )

    def skipped(self, partition: int, commands: int) -> None:
        if not self._skipped:  # a rewound group brings thousands, turn by turn
            asyncio.get_running_loop().call_later(_COUNT_SECONDS, self._tell_skipped)
        self._skipped[partition] += commands

    def run_blocked(self, run_id: str, code: str, message: str) -> None:
        cure = f"mend it, then: streams retry {run_id} (or: streams diagnose {run_id})"
        if code == "RUN_DAMAGED":
            cure = f"see what can be repaired: streams rebuild {run_id} --reason TEXT --dry-run"
        elif code == "REPAIRED":
            cure = f"see: streams diagnose {run_id}"
        self._say(
            "blocked", f"{run_id}: {error_text(code, message)} · {cure}", run_id=run_id, code=code, message=message
        )

    def op_parked(self, run_id: str, op: str, code: str, message: str) -> None:
        cure = f"then: streams retry {run_id} --op {op} (or skip, or complete)"
        text = f"{run_id} op {op}: {error_text(code, message)} · {cure}"
        self._say("parked", text, run_id=run_id, op=op, code=code, message=message)

    def attempt_failed(self, run_id: str, op: str, task: str, attempt: int, code: str, message: str) -> None:
        name = f"op {op} ({task})" if task else f"op {op}"
        fields = {"run_id": run_id, "op": op, "task": task, "attempt": attempt, "code": code, "message": message}
        self._say("retry", f"{run_id} {name}, attempt {attempt} failed: {error_text(code, message)}", **fields)

    def message(self, text: str) -> None:
        self._say("note", text, text=text)

    # -- printing ------------------------------------------------------------------------------------------------

    def _tell_owned(self) -> None:
        self._gathering = None
        owned = sorted(number for number, state in self._states.items() if state == "running")
        pending = any(state in ("created", "restoring") for state in self._states.values())
        text = f"partitions {ranges(owned)}" if owned else "no partitions; other workers have them all"
        if text != self._told and not (pending and not owned):
            self._told = text
            self._say("owns", text, partitions=owned)

    def _tell_skipped(self) -> None:
        skipped, self._skipped = self._skipped, Counter()
        one = "1 command was" if skipped.total() == 1 else f"{skipped.total()} commands were"
        each = ", ".join(f"partition {number}: {count}" for number, count in sorted(skipped.items()))
        text = f"{one} applied before and skipped, since the group was moved back ({each})"
        self._say("skipped", text, commands=skipped.total(), partitions=dict(sorted(skipped.items())))

    def _say(self, kind: str, line: str, /, **fields: Any) -> None:
        if not self._muted(kind):
            self._print(kind, line, fields)

    def _print(self, kind: str, text: str, fields: dict[str, Any]) -> None:
        if self._supervised:
            fields = {**fields, "line": text}
        if self._as_json:
            print_json({"at": datetime.now(UTC).isoformat(timespec="milliseconds"), "kind": kind, **fields}, flush=True)
            return
        self._console.print(dated(kind, text), soft_wrap=True)

    def _muted(self, kind: str) -> bool:
        count = self._counts.get(kind, 0)
        self._counts[kind] = count + 1
        if count == 0:
            asyncio.get_running_loop().call_later(1.0, self._end_second, kind)
        return count >= LINES_PER_SECOND_MAX

    def _end_second(self, kind: str) -> None:
        hidden = self._counts.pop(kind) - LINES_PER_SECOND_MAX
        if hidden > 0:
            self._print(kind, f"… and {hidden} more of these", {"more": hidden})


def dated(kind: str, text: str, who: str = "") -> Text:
    """A line for the terminal: when, whose, what kind, and what."""
    now = datetime.now().astimezone().strftime("%H:%M:%S ")
    return Text.assemble((now, "dim"), (who and f"{who:<4}", "bold"), (f"{kind:<8}", _STYLES.get(kind, "")), safe(text))


def ranges(numbers: Iterable[int]) -> str:
    """0, 1, 2, 5 as "0-2, 5"."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
