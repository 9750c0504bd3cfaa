"""The argument parser: one line for every mistake, and the options that all verbs share."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from streams.authoring.declared import check_name
from streams.errors import UsageError
from streams.wire.command_rules import NAME_BYTES_MAX
from streams.wire.keys import check_run_id, flaw_of

__all__ = [
    "LOG_DEFAULT",
    "Verbs",
    "attribute",
    "duration",
    "effect_name",
    "json_value",
    "key",
    "log_url",
    "new_file",
    "no_constant",
    "run_id",
    "seconds",
    "whole_number",
    "words",
]

LOG_DEFAULT = "sqlite:///streams.db"
WORDS_BYTES_MAX = 4_000

Handler = Callable[[argparse.Namespace], int]

_INTRODUCTION = "A durable execution engine whose only server is Kafka."
_GROUPS = {
    "try": "see it work",
    "serve": "run an app",
    "ask": "talk to runs",
    "look": "look at runs",
    "repair": "help runs that wait for an operator",
    "prove": "show that the log is right",
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        verb = self.prog.partition(" ")[2]
        raise UsageError(f"{_plainer(message)}; see: streams {verb + ' ' if verb else ''}--help")


def _plainer(message: str) -> str:
    """Argparse's message without its own vocabulary, the same for all versions of Python."""
    message = re.sub(r"^argument (\S+): ", lambda found: f"{found[1].split('/')[0]}: ", message)
    return message.replace("the following arguments are required: ", "missing: ")


class Verbs:
    """The parser of the whole command line; each family of verbs adds its own."""

    def __init__(self) -> None:
        self._common = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
        shared = self._common.add_argument_group("everywhere")
        shared.add_argument("--log", metavar="URL", help=f"where the log is, else STREAMS_LOG (default: {LOG_DEFAULT})")
        shared.add_argument("--app", metavar="NAME", help="the app, else STREAMS_APP, else the only one in the log")
        shared.add_argument("--json", action="store_true", help="print JSON, for programs")
        self._parser = _Parser(
            prog="streams",
            parents=[self._common],
            allow_abbrev=False,
            usage="streams VERB …",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self._parser.add_argument("--version", action="version", version=f"streams {_version()}")
        self._verbs: dict[str, _Parser] = {}
        self._actions: dict[str, Any] = {}
        self._lines: dict[str, list[str]] = {group: [] for group in _GROUPS}

    def add(self, group: str, name: str, run: Handler, help_: str, example: str = "") -> argparse.ArgumentParser:
        """A verb and the function that runs it; the caller adds its arguments."""
        parser = _Parser(
            prog=f"streams {name}",
            description=help_,
            parents=[self._common],
            allow_abbrev=False,
            epilog=example and f"example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.set_defaults(handler=run, verb=name)
        self._verbs[name] = parser
        self._lines[group].append(f"  {name:<10} {help_}")
        return parser

    def action(self, verb: str, name: str, run: Handler, help_: str, example: str = "") -> argparse.ArgumentParser:
        """An action of a verb that has several, each with arguments of its own."""
        if verb not in self._actions:
            self._actions[verb] = self._verbs[verb].add_subparsers(
                metavar="ACTION", dest="action", required=True, parser_class=_Parser
            )
        parser: argparse.ArgumentParser = self._actions[verb].add_parser(
            name,
            help=help_,
            prog=f"streams {verb} {name}",
            description=help_,
            parents=[self._common],
            allow_abbrev=False,
            epilog=example and f"example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.set_defaults(handler=run)
        return parser

    def parse(self, argv: Sequence[str]) -> argparse.Namespace | None:
        """The arguments, or None for an empty command line. Raises UsageError with one line."""
        if not argv:
            return None
        self._parser.description = self._listing()
        before, name, after = _split(argv)
        shared, left = self._parser.parse_known_args(before)
        if left:
            raise UsageError(f"unknown option {left[0]}; see: streams --help")
        if name is None:
            raise UsageError("which verb? see: streams --help")
        if name not in self._verbs:
            raise UsageError(f"unknown verb {name!r}; there are: {', '.join(self._verbs)}")
        return self._verbs[name].parse_args(after, shared)

    def print_help(self) -> None:
        """What the command line can do."""
        self._parser.description = self._listing()
        self._parser.print_help()

    def _listing(self) -> str:
        parts = [f"{_GROUPS[group]}:\n" + "\n".join(lines) for group, lines in self._lines.items() if lines]
        return "\n\n".join([_INTRODUCTION, *parts, "Each verb explains itself: streams VERB --help"])


def _split(argv: Sequence[str]) -> tuple[list[str], str | None, list[str]]:
    """What stands before the verb, the verb, and the rest; the shared options may stand on either side."""
    place = 0
    while place < len(argv) and argv[place].startswith("-"):
        place += 2 if argv[place] in ("--log", "--app") else 1
    if place >= len(argv):
        return list(argv), None, []
    return list(argv[:place]), argv[place], list(argv[place + 1 :])


def _version() -> str:
    kernel = find_spec("streams.kernel.decide")
    kind = "" if kernel is None or str(kernel.origin).endswith(".py") else " (compiled kernel)"
    try:
        return version("streams-engine") + kind
    except PackageNotFoundError:
        return "(not installed)" + kind


# ---- Values: each reader raises ArgumentTypeError with what to write ------------------------------------------------


def _wrong(message: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(message)


def no_constant(name: str) -> NoReturn:
    """Refuse NaN and the infinities, which Python would read and JSON does not have."""
    raise ValueError(f"{name} is no JSON")


def json_value(text: str) -> Any:
    """A value in JSON."""
    try:
        return json.loads(text, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        hint = """; a text needs its quotes: '"text"'""" if re.fullmatch(r"[\w .-]+", text) else ""
        raise _wrong(f"{_short(text)} is no JSON ({error}){hint}") from error


def attribute(text: str) -> tuple[str, str]:
    """KEY=VALUE."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise _wrong(f"{_short(text)} is no KEY=VALUE, such as tenant=acme")
    return key, value


def run_id(text: str) -> str:
    """The id of a run. Raises UsageError."""
    check_run_id(text)
    return text


def effect_name(text: str) -> str:
    """The name of an effect."""
    try:
        return check_name("effect", text)
    except ValueError as error:
        raise _wrong(
            f"{_short(text)} is no name of an effect: 1 to 100 ASCII letters, digits, '.', '_' or '-'"
        ) from error


def key(text: str) -> str:
    """An idempotency key."""
    if flaw := flaw_of(text, NAME_BYTES_MAX):
        raise _wrong(f"an idempotency key {flaw}")
    return text


def words(text: str) -> str:
    """What a person says, for others to read."""
    if flaw := flaw_of(text, WORDS_BYTES_MAX):
        raise _wrong(f"it {flaw}")
    if not text.strip():
        raise _wrong("it must say something: it is told to whoever asks")
    return text


def seconds(text: str) -> float:
    """A duration."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise _wrong(f"{_short(text)} is no number of seconds")
    return value


def duration(text: str) -> float:
    """How long, in seconds: 60d, 12h, 30m, 90s."""
    found = re.fullmatch(r"([0-9]{1,9})([dhms])", text)
    if found is None:
        raise _wrong(f"{_short(text)} is no length of time, such as 60d, 12h, 30m or 90s")
    return int(found[1]) * {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0}[found[2]]


def new_file(text: str) -> str:
    """An argument that names a file to write: refused before hours of work go into what cannot be kept."""
    path = Path(text)
    if text != "-" and (path.is_dir() or not path.absolute().parent.is_dir()):
        reason = "is a folder" if path.is_dir() else f"cannot be written: there is no folder {path.parent}"
        raise argparse.ArgumentTypeError(f"{text} {reason}")
    return text


def whole_number(minimum: int, maximum: int) -> Callable[[str], int]:
    """A whole number within bounds."""

    def read(text: str) -> int:
        if not re.fullmatch("[0-9]{1,9}", text) or not minimum <= int(text) <= maximum:
            raise _wrong(f"{_short(text)} is no whole number from {minimum} to {maximum}")
        return int(text)

    return read


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "…")


def log_url(args: argparse.Namespace) -> str:
    """The log's address: the flag, the environment, or the default."""
    url = getattr(args, "log", None) or os.environ.get("STREAMS_LOG") or LOG_DEFAULT
    return str(url)
