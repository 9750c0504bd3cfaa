"""The verb `export`: writes histories, or flat rows that DuckDB and its kin read."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TextIO

from streams.cli.logs import connect
from streams.cli.parser import Verbs, new_file, run_id, whole_number
from streams.cli.terminal import note
from streams.cli.verify import reading
from streams.errors import UnknownRun
from streams.ops.export import COLUMNS, Chosen, export

__all__ = ["add"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def add(verbs: Verbs) -> None:
    """Declare the verb."""
    parser = verbs.add(
        "prove",
        "export",
        _run,
        "write histories as JSON lines, or flat rows for SQL",
        "streams export --format rows --out events.jsonl\n"
        """  duckdb -c "SELECT type, count(*) FROM 'events.jsonl' GROUP BY ALL\"""",
    )
    parser.add_argument("runs", metavar="RUN", nargs="*", type=run_id, help="only these runs (default: all)")
    parser.add_argument(
        "--format",
        choices=("jsonl", "rows"),
        default="jsonl",
        help="jsonl: one event a line, as history --json; rows: one flat object of typed columns a line",
    )
    parser.add_argument(
        "--out", type=new_file, metavar="FILE", default="-", help="where to (default: -, the standard output)"
    )
    parser.add_argument("--since", metavar="T", type=_time, help="events from then on: ISO 8601, UTC unless it says")
    parser.add_argument("--until", metavar="T", type=_time, help="events before this time")
    parser.add_argument(
        "--partition", metavar="N", type=whole_number(0, 99_999), action="append", help="only this one; may be repeated"
    )
    parser.add_argument("--columns", action="store_true", help="print the columns of rows as DuckDB takes them")


def _time(text: str) -> int:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        message = f"{text!r} is no time; write it like 2026-01-31 or 2026-01-31T12:00:00+01:00"
        raise argparse.ArgumentTypeError(message) from error
    return ((found if found.tzinfo else found.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)


def _run(args: argparse.Namespace) -> int:
    if args.columns:
        print("{" + ", ".join(f"{name}: '{type_}'" for name, type_ in COLUMNS.items()) + "}")
        return 0
    return asyncio.run(_export(args))


async def _export(args: argparse.Namespace) -> int:
    chosen = Chosen(frozenset(run.encode() for run in args.runs), args.partition, args.since, args.until)
    seen: set[bytes] = set()
    events = damaged = 0
    async with connect(args) as client:
        with _writing(args.out) as file, reading("exporting") as progress:
            lines = export(
                client.log, client.topics, args.format, chosen, client.values.codec, seen=seen, progress=progress
            )
            async for line in lines:
                json.dump(line, file, ensure_ascii=args.out == "-" and not _is_unicode(), default=str)
                file.write("\n")
                events += 1
                damaged += "damage" in line and line["damage"] is not None
            unknown = sorted(run for run in args.runs if run.encode() not in seen)
            if unknown:
                raise UnknownRun("UNKNOWN_RUN", f"app {client.topics.app!r} has no event of run {unknown[0]!r}")
    if args.out != "-":
        note(f"{events:,} events written to {args.out}")
    if damaged:
        note(f"{damaged:,} records are no events: their lines have `damage` and the bytes in `raw`")
    return 0


def _is_unicode() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") in ("utf8", "utf8sig")


@contextmanager
def _writing(out: str) -> Iterator[TextIO]:
    """The file; it gets its name when all of it is written, so that nobody takes half an export for a whole one."""
    if out == "-":
        yield sys.stdout
        sys.stdout.flush()
        return
    path = Path(out)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
