"""The page docs/other-languages.md in parts: blocks by name, tables by heading, commands as lists of arguments."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "docs" / "other-languages.md").read_text("utf-8")

_FENCE = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def block(name: str) -> str:
    """The block that is called so, such as `desk.py`."""
    (found,) = [body for _, called, body in _FENCE.findall(TEXT) if called == name]
    return found


def block_of(language: str) -> str:
    """The only block of this language."""
    (found,) = [body for of, _, body in _FENCE.findall(TEXT) if of == language]
    return found


def section(title: str) -> str:
    """The section with this heading."""
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def lines(name: str) -> list[tuple[str, ...]]:
    """The lines of a block, each cut at its bars."""
    return [tuple(line.split("|", 2 if name == "letters.txt" else 1)) for line in block(name).splitlines()]


def command(program: str, *parts: str) -> list[str]:
    """The arguments of the one command of the page that begins with `program` and holds all of `parts`."""
    (found,) = [line for line, _ in _commands() if line.startswith(f"{program} ") and all(p in line for p in parts)]
    return shlex.split(found)[1:]


def output(program: str) -> list[str]:
    """The lines that the page shows under the only command with this program."""
    (found,) = [shown for line, shown in _commands() if line.startswith(f"{program} ")]
    return found


def results() -> list[list[str]]:
    """The runs whose result the page asks for, each with the lines that it shows."""
    return [[shlex.split(line)[2], *shown] for line, shown in _commands() if line.startswith("streams result ")]


def table(*heading: str) -> list[list[str]]:
    """The rows of the table with these column titles, without the marks of code."""
    begin = "| " + " | ".join(heading) + " |\n"
    rows = TEXT.partition(begin)[2].partition("\n\n")[0].splitlines()[1:]
    assert rows, f"no table {heading}"
    return [[cell.strip().replace("`", "") for cell in row.strip("|").split("|")] for row in rows]


def _commands() -> list[tuple[str, list[str]]]:
    found: list[tuple[str, list[str]]] = []
    for language, _, body in _FENCE.findall(TEXT):
        if language != "console":
            continue
        for line in body.replace("\\\n", " ").splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found
