"""`start --from`: a run for each line of a file, in batches, with a progress bar on a terminal."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from streams.cli.logs import connect
from streams.cli.parser import no_constant
from streams.cli.terminal import complain, console, note, plain, print_json
from streams.client import Client, Sent
from streams.errors import Refused, UsageError, ValueRefused
from streams.wire.keys import check_run_id

__all__ = ["start_all"]

CHUNK_BYTES = 65_536
COMPLAINTS_MAX = 20
OPEN_MAX = 10_000
"""Starts whose answers are waited for at once; the file is read no faster than workers answer."""

SILENCE_SECONDS = 5.0
"""How long nothing must be answered before we stop waiting: then no worker is there."""

Counts = Counter[str]


async def start_all(args: argparse.Namespace) -> int:
    """Start them all, and say how many were new. 1 where a line was bad or a start refused."""
    with _opened(args.source) as file:
        async with connect(args, patient=True) as client:
            counts = await _Bulk(args, client, file).run()
    if getattr(args, "json", False):
        print_json({name: counts[name] for name in ("lines", "new", "known", "refused", "bad", "unanswered")})
    else:
        _summary(counts)
    return 1 if counts["refused"] or counts["bad"] else 0


def _summary(counts: Counts) -> None:
    parts = [f"{counts['new']} new", f"{counts['known']} already there", f"{counts['refused']} refused"]
    if counts["bad"]:
        parts.append(f"{counts['bad']} bad lines")
    if counts["unanswered"]:
        parts.append(f"{counts['unanswered']} in the log, not yet taken by a worker")
    style = "red" if counts["bad"] or counts["refused"] else "green"
    console().print(plain(f"{counts['lines']} lines: {', '.join(parts)}", style), soft_wrap=True)


@contextmanager
def _opened(source: str) -> Iterator[IO[bytes]]:
    if source == "-":
        yield sys.stdin.buffer
        return
    try:
        file = Path(source).open("rb")  # noqa: SIM115 - closed below; only opening it is a matter of usage
    except OSError as error:
        raise UsageError(f"--from: cannot read {source}: {error.strerror}") from error
    with file:
        yield file


class _Bulk:
    """One pass over a file."""

    def __init__(self, args: argparse.Namespace, client: Client, file: IO[bytes]) -> None:
        self._args = args
        self._client = client
        self._file = file
        self._counts: Counts = Counter()
        self._open: set[asyncio.Task[None]] = set()
        self._answered_at = 0.0
        self._bar: tuple[Progress, TaskID] | None = None

    async def run(self) -> Counts:
        """Start what can be started, and wait for the answers."""
        args, loop = self._args, asyncio.get_running_loop()
        self._answered_at = loop.time()
        with self._progress():
            starts = self._client.start_many(
                args.workflow, self._starts(), version=args.version, attributes=dict(args.attr)
            )
            async for sent in starts:
                self._follow(sent)
                if len(self._open) >= OPEN_MAX:
                    await self._until_fewer(OPEN_MAX // 2)
            await self._until_fewer(0)
        self._counts["unanswered"] = len(self._open)
        for task in self._open:
            task.cancel()
        return self._counts

    async def _starts(self) -> AsyncIterator[tuple[str, Any]]:
        """The good lines as (run id, input); bad ones are told of and left out."""
        number = 0
        while lines := await asyncio.to_thread(self._file.readlines, CHUNK_BYTES):
            for line in lines:
                number += 1
                if not line.strip():
                    continue
                self._counts["lines"] += 1
                try:
                    yield self._parse(line)
                except (UsageError, ValueRefused) as error:
                    self._complain("bad", f"line {number}: {error}")

    def _parse(self, line: bytes) -> tuple[str, Any]:
        field = self._args.id_field
        try:
            value = json.loads(line.decode("utf-8-sig"), parse_constant=no_constant)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"no JSON in UTF-8: {error}") from error
        if not isinstance(value, dict):
            raise UsageError("no JSON object")
        if field not in value:
            raise UsageError(f"no field {field!r}; it has: {', '.join(map(str, value)) or 'none'}")
        name = value[field]
        if not isinstance(name, (str, int)) or isinstance(name, bool):
            raise UsageError(f"the field {field!r} is no text or whole number, so it cannot name a run")
        run_id = check_run_id(str(name))
        self._client.values.encode(value, f"run {run_id!r}")
        return run_id, value

    # -- answers -------------------------------------------------------------------------------------------------

    def _follow(self, sent: Sent) -> None:
        task = asyncio.create_task(self._answer(sent))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _answer(self, sent: Sent) -> None:
        try:
            new = await self._client.accepted(sent, timeout=None)
            self._counts["new" if new else "known"] += 1
        except Refused as refused:
            self._complain("refused", f"run {sent.run_id}: {refused}")
        self._answered_at = asyncio.get_running_loop().time()
        self._show()

    async def _until_fewer(self, limit: int) -> None:
        """Wait until at most `limit` answers are missing, or nobody answers any more."""
        loop = asyncio.get_running_loop()
        self._answered_at = max(self._answered_at, loop.time() - SILENCE_SECONDS / 2)
        while len(self._open) > limit and loop.time() - self._answered_at < SILENCE_SECONDS:
            await asyncio.wait(self._open, timeout=0.2, return_when=asyncio.FIRST_COMPLETED)

    def _complain(self, kind: str, text: str) -> None:
        self._counts[kind] += 1
        if self._counts[kind] <= COMPLAINTS_MAX:
            complain(text)
        elif self._counts[kind] == COMPLAINTS_MAX + 1:
            note(f"… more of these ({kind}) are only counted")

    # -- progress ------------------------------------------------------------------------------------------------

    @contextmanager
    def _progress(self) -> Iterator[None]:
        out = console(stderr=True)
        if not out.is_terminal:
            with nullcontext():
                yield
            return
        columns = (TextColumn("starting runs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=out, transient=True, refresh_per_second=5) as progress:
            self._bar = (progress, progress.add_task("", total=None))
            yield

    def _show(self) -> None:
        if self._bar is not None:
            progress, bar = self._bar
            answered = self._counts["new"] + self._counts["known"] + self._counts["refused"]
            progress.update(bar, completed=answered, total=answered + len(self._open) - 1)
