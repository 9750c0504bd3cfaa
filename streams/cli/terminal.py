"""What the command line writes: tables and JSON on stdout, complaints on stderr, nothing that a value could forge."""

from __future__ import annotations

import io
import json
import re
import sys
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

__all__ = [
    "complain",
    "console",
    "error_text",
    "note",
    "plain",
    "prepare_streams",
    "print_json",
    "safe",
    "short_json",
    "show",
    "text_of",
]

PIPE_COLUMNS = 120
PIPE_COLUMNS_MAX = 20_000
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def prepare_streams() -> None:
    """Make odd text print as escapes instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def console(*, stderr: bool = False) -> Console:
    """A console for this moment's stdout or stderr: colours on a terminal, wide plain text in a pipe."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PIPE_COLUMNS
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False, soft_wrap=False)


def show(renderable: RenderableType, *, stderr: bool = False) -> None:
    """Print a table: fitted to a terminal; in a pipe a line a row, however long, for grep and its kin."""
    out = console(stderr=stderr)
    if out.is_terminal:
        out.print(renderable)
        return
    out.width = PIPE_COLUMNS_MAX
    with out.capture() as captured:
        out.print(renderable)
    out.file.write("".join(line.rstrip() + "\n" for line in captured.get().splitlines()))


def safe(text: object) -> str:
    """Text of users with control characters spelt out: it must not move the cursor or pass for a line of ours."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], str(text))


def error_text(code: str, message: str) -> str:
    """An error on one line; messages of exceptions begin with their code already."""
    return message if message.startswith(f"{code}:") else f"{code}: {message}" if message else code


def plain(value: object, style: str = "") -> Text:
    """Text of users for a table."""
    return Text(safe(value), style=style)


def short_json(value: object, limit: int = 100) -> str:
    """A value on one line, cut where it gets long."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return safe(text if len(text) <= limit else text[: limit - 1] + "…")


def text_of(value: object) -> str:
    """A value of a JSON object for people: a text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def print_json(value: Any, *, flush: bool = False) -> None:
    """One JSON value on one line. `flush` for what somebody may be following."""
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") in ("utf8", "utf8sig")
    print(json.dumps(value, ensure_ascii=not unicode, separators=(", ", ": "), default=str), flush=flush)


def complain(text: str) -> None:
    """The one line for what went wrong."""
    line = safe(re.sub(r"\s*\n\s*", " ", text.strip()))
    console(stderr=True).print(Text("streams: ", style="bold red") + Text(line), soft_wrap=True)


def note(text: str) -> None:
    """A remark beside the output, on stderr."""
    console(stderr=True).print(Text(safe(text), style="dim"), soft_wrap=True)
