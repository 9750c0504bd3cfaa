"""How a demo tells its story: numbered steps on a terminal, on stderr when the result goes out as JSON."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from streams.cli.terminal import console, safe, show
from streams.errors import UsageError

__all__ = ["Narrator"]

_YES, _NO = {"y", "yes", "approve"}, {"n", "no", "reject"}


class Narrator:
    """Prints as things happen and keeps no line open, so nothing flickers."""

    def __init__(self, *, stderr: bool) -> None:
        self.console = console(stderr=stderr)
        self._stderr = stderr
        self._steps = 0

    def title(self, title: str, subtitle: str) -> None:
        self.console.print()
        self.console.print(Text(f"  {title}", style="bold"))
        self.console.print(Text(f"  {subtitle}", style="dim"))
        self.console.print()

    def step(self, text: str, *, note: str = "") -> None:
        """The next thing that has happened."""
        self._line(text, note, "cyan", "")

    def kill(self, text: str, *, note: str = "") -> None:
        """Somebody was killed."""
        self._line(text, note, "red", "bold red")

    def done(self, text: str, *, note: str = "") -> None:
        """The end, if it is a good one."""
        self._line(text, note, "green", "bold green")

    def failed(self, text: str) -> None:
        """What is not as it was promised."""
        self.console.print(Text.assemble("     ", ("✗ ", "bold red"), (safe(text), "red")), soft_wrap=True)

    def _line(self, text: str, note: str, number_style: str, style: str) -> None:
        self._steps += 1
        grid = Table.grid(padding=(0, 1))
        grid.add_column(width=4, justify="right")
        grid.add_column(overflow="fold")
        line = Text.assemble((safe(text), style))
        if note:
            line.append("\n" + safe(note), style="dim")
        grid.add_row(Text(str(self._steps), style=f"bold {number_style}"), line)
        show(grid, stderr=self._stderr)

    def table(self, title: str, table: RenderableType) -> None:
        """Something larger, with room around it."""
        self.console.print(Text(f"\n  {title}", style="bold"))
        show(Padding(table, (0, 0, 0, 4)), stderr=self._stderr)

    def facts(self, title: str, facts: Mapping[str, Any]) -> None:
        """A few named values."""
        self.console.print(Text(f"\n  {title}", style="bold"))
        grid = Table.grid(padding=(0, 2))
        for name, value in facts.items():
            grid.add_row("  ", Text(safe(name), style="dim"), Text(safe(value)))
        show(grid, stderr=self._stderr)

    def question(self, question: Mapping[str, Any]) -> None:
        """The question of an interrupt as a person would see it."""
        body = Table.grid(padding=(0, 2))
        asked = safe(question.get("question", ""))
        for name, value in question.items():
            if name != "question":
                body.add_row(Text(safe(name), style="dim"), Text(safe(value)))
        panel = Panel(body, title=Text(asked, style="bold yellow"), title_align="left", expand=False, padding=(0, 2))
        self.console.print()
        show(Padding(panel, (0, 0, 0, 2)), stderr=self._stderr)

    async def answer(self, *, given: bool | None) -> bool:
        """The answer that was given on the command line, else from the keyboard, else yes."""
        if given is None and sys.stdin.isatty():
            while given is None:
                self.console.print(Text("  Accept? [y/n] ", style="bold"), end="")
                typed = (await _line_of_stdin()).strip().lower()
                given = True if typed in _YES else False if typed in _NO else None
            self.console.print()
            return given
        approved = given is not False
        said = "--approve" if given else "--reject" if given is False else "no keyboard here, so: --approve"
        self.console.print(Text.assemble(("  Accept? ", "bold"), "yes" if approved else "no", (f"  ({said})\n", "dim")))
        return approved


async def _line_of_stdin() -> str:
    """One typed line. Not input() in a thread: Ctrl-C could not end that."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(sys.stdin.fileno(), lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(sys.stdin.fileno())
    line = sys.stdin.readline()
    if not line:
        raise UsageError("the keyboard was closed; answer with --approve or --reject")
    return line
