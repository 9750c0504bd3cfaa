"""The web pages of the live view: plain HTML, in which everything that a user wrote is escaped."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any
from urllib.parse import quote

__all__ = ["counts_page", "run_page"]

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem}"
    "table{border-collapse:collapse;width:100%}td,th{border-bottom:1px solid #ccc;padding:.3rem .6rem;text-align:left}"
    "pre{background:#f4f4f4;padding:1rem;overflow:auto}.warn{background:#fff3cd;padding:.5rem 1rem}"
)


_BACK = '<p><a href="/">all runs</a>'
_FORM = '<form action="/run"><p><label>run <input name="id" autofocus></label> <button>show</button></form>'


def counts_page(app: str, counts: Mapping[str, Any], latest: Sequence[Mapping[str, Any]]) -> str:
    """How many runs stand where, and those that changed last."""
    rows = "".join(f"<tr><td>{escape(name)}<td>{number}" for name, number in sorted(counts["statuses"].items()))
    number = counts["runs"]
    if number:
        runs = "".join(_row(run) for run in latest)
        text = (
            f"<p>{number} run{'' if number == 1 else 's'}<table><tr><th>status<th>runs{rows}</table>"
            '<p><a href="/run">find a run</a>'
            f"<h2>Changed last</h2><table><tr><th>run<th>workflow<th>status<th>changed{runs}</table>"
        )
    else:
        text = "" if counts["missing_partitions"] else "<p>No runs yet. They appear here as soon as they are started."
    return _page(f"Runs of {app}", f"{_warning(counts)}{text}")


def run_page(app: str, run_id: str, run: Mapping[str, Any] | None) -> str:
    """The last known state of one run; without an id, a form that asks for one."""
    title = f"{run_id} of {app}" if run_id else f"Find a run of {app}"
    if run is None:
        known = f"<p>No run {escape(repr(run_id))} is known here." if run_id else ""
        return _page(title, f"{known}{_FORM}{_BACK}", again=False)  # loaded anew, it would lose what is being typed
    text = json.dumps(run, indent=2, ensure_ascii=False, default=str)
    return _page(title, f"<p>status: <b>{escape(str(run['status']))}</b><pre>{escape(text)}</pre>{_BACK}")


def _row(run: Mapping[str, Any]) -> str:
    run_id = str(run["run_id"])
    link = f'<a href="/run?id={quote(run_id, safe="")}">{escape(run_id)}</a>'
    rest = "".join(f"<td>{escape(str(run[field] or ''))}" for field in ("workflow", "status", "changed_at"))
    return f"<tr><td>{link}{rest}"


def _warning(counts: Mapping[str, Any]) -> str:
    notes = []
    if counts["missing_partitions"]:
        places = ", ".join(map(str, counts["missing_partitions"]))
        notes.append(f"Not counted: the runs of partitions {places}, which no worker of this view shows just now.")
    if counts["unreadable"]:
        notes.append(f"{counts['unreadable']} records of the topic are no events and were passed over.")
    return "".join(f'<p class="warn">{escape(note)}' for note in notes)


def _page(title: str, body: str, *, again: bool = True) -> str:
    refresh = '<meta http-equiv="refresh" content="5">' if again else ""
    head = f'<meta charset="utf-8">{refresh}<title>{escape(title)}</title>'
    return (
        f"<!doctype html><html lang=en><head>{head}<style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>{body}"
    )
