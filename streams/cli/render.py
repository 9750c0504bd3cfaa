"""Structured answers as tables and colours for a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from streams.cli.terminal import error_text, plain, safe, short_json
from streams.ops.timeline import Entry

__all__ = ["facts", "history_lines", "history_table", "local_time", "run_facts", "runs_table", "status_text", "waits"]

_LEVELS = {"good": "green", "bad": "bold red", "warn": "yellow", "ask": "bold yellow", "dim": "dim", "info": ""}
_STATUSES = {
    "pending": "dim",
    "running": "cyan",
    "waiting": "yellow",
    "blocked": "bold red",
    "cancelling": "magenta",
    "completed": "green",
    "failed": "red",
    "cancelled": "dim",
}


def local_time(iso: str | None, pattern: str = "%Y-%m-%d %H:%M:%S") -> str:
    """A time of the log in the reader's own zone."""
    if iso is None:
        return ""
    try:
        return datetime.fromisoformat(iso).astimezone().strftime(pattern)
    except ValueError:  # beyond the calendar, where the log gives a number
        return iso


def status_text(run: Mapping[str, Any]) -> Text:
    """The status in its colour, with a mark where somebody has to act."""
    return Text.assemble(
        (run["status"], _STATUSES.get(run["status"], "")), (" !" if run["attention"] else "", "bold red")
    )


def facts(pairs: Iterable[tuple[str, Text | str]]) -> Table:
    """Named values, one a line."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in pairs:
        grid.add_row(name, value if isinstance(value, Text) else plain(value))
    return grid


def run_facts(run: Mapping[str, Any]) -> Table:
    """What `show` prints of a run."""
    version = f" v{run['version']}" if run["version"] else ""
    since = f"{local_time(run['started_at'])}, " if run["started_at"] else ""
    pairs: list[tuple[str, Text | str]] = [
        ("run", plain(run["run_id"], "bold")),
        ("workflow", f"{run['workflow'] or '?'}{version}"),
        ("status", status_text(run)),
        ("since", f"{since}last event {local_time(run['changed_at'])} (seq {run['seq']})"),
        ("place", f"partition {run['partition']}, epoch {run['epoch']}, owner {run['owner'] or 'nobody'}"),
    ]
    if run["attributes"]:
        pairs.append(("attributes", ", ".join(f"{name}={value}" for name, value in run["attributes"].items())))
    if run["error"]:
        pairs.append(("error", plain(_error(run["error"]), "red")))
    pairs.extend(("waits for", line) for line in waits(run))
    if run.get("result") is not None:
        pairs.append(("result", json.dumps(run["result"], ensure_ascii=False, indent=2)))
    if run["result_expired"]:
        gone = f"not kept any more; streams history {run['run_id']} shows it for as long as the events are kept"
        pairs.append(("result", plain(gone, "dim")))
    return facts(pairs)


def waits(run: Mapping[str, Any]) -> list[Text]:
    """What a run waits for, a line for each op, with what a person can do."""
    return [_wait(run["run_id"], item) for item in run["waiting"]]


def _wait(run_id: str, item: Mapping[str, Any]) -> Text:
    kind, op = item["kind"], item["id"]
    if kind == "parked":
        text = f"op {op} ({item['name']}) is parked: {_error(item)}"
        return _with_cure(plain(text, "yellow"), f"streams retry {run_id} --op {op}")
    if kind == "interrupt":
        type_ = f" ({item['answer']})" if item.get("answer") else ""
        text = f"an answer to {short_json(item['question'])}{type_}"
        return _with_cure(plain(text, "yellow"), f"streams resume {run_id} --value JSON --interrupt {op}")
    if kind == "timer":
        return plain(f"timer {op} until {local_time(item.get('due'))}")
    if kind == "receive":
        return _with_cure(plain(f"signal {item['name']}"), f"streams signal {run_id} {item['name']} --value JSON")
    if kind == "request" and item.get("state") == "waiting":
        until = f", until {local_time(item['due'], '%H:%M:%S')}" if item.get("due") else ""
        return plain(f"the reply to request {item['name']} (op {op}, attempt {item['attempt']}{until})")
    due = f", again at {local_time(item['due'], '%H:%M:%S')}" if item.get("due") else ""
    error = f": {_error(item)}" if item.get("code") else ""
    return plain(
        f"{kind} {item['name']} (op {op}, {item.get('state', '')}, attempt {item.get('attempt', 1)}{due}){error}"
    )


def _with_cure(text: Text, command: str) -> Text:
    return Text.assemble(text, "\n→ ", (safe(command), "bold"))


def runs_table(runs: Sequence[Mapping[str, Any]]) -> Table:
    """What `runs` prints."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("run", "workflow", "status", "what", "changed"):
        table.add_column(name, overflow="fold", no_wrap=name in ("status", "changed"))
    for run in runs:
        table.add_row(
            plain(run["run_id"]),
            plain(run["workflow"] or ""),
            status_text(run),
            _summary(run),
            plain(local_time(run["changed_at"], "%m-%d %H:%M:%S"), "dim"),
        )
    return table


def _summary(run: Mapping[str, Any]) -> Text:
    """The one thing to know of a run in a list."""
    if run["error"]:
        return plain(_cut(_error(run["error"])), "red")
    kinds: dict[str, list[str]] = {}
    for item in run["waiting"]:
        kinds.setdefault(item["kind"], []).append(item["name"])
    parts = [f"{kind} {', '.join(sorted(set(names)))}" for kind, names in kinds.items()]
    return plain(_cut("; ".join(parts)), "yellow" if "parked" in kinds else "")


def _error(item: Mapping[str, Any]) -> str:
    return error_text(item.get("code") or "", item.get("message") or "")


def _cut(text: str, limit: int = 80) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def history_table(entries: Iterable[Entry]) -> Table:
    """A run's timeline."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(style="dim", no_wrap=True, justify="right")
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for entry in entries:
        table.add_row(_clock(entry), entry.delta, plain(entry.op), plain(entry.text, _LEVELS[entry.level]))
    return table


def history_lines(entries: Sequence[Entry]) -> Group:
    """A run's timeline with one line an entry, cut where the terminal ends."""
    wide = max((len(entry.delta) for entry in entries), default=0)
    lines = [
        Text.assemble((f"{_clock(entry)}  {entry.delta:>{wide}}  ", "dim"), (safe(entry.text), _LEVELS[entry.level]))
        for entry in entries
    ]
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return Group(*lines)


def _clock(entry: Entry) -> str:
    return local_time(entry.time, "%H:%M:%S.%f")[:-3]
