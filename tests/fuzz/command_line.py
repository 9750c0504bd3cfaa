"""What stands on a command line: values in JSON, MODULE:APP, and single words."""

from __future__ import annotations

import argparse
import json
import os

from streams.cli import parser
from streams.cli.dead_letters import place
from streams.cli.loader import load_app
from streams.errors import UsageError

__all__ = ["check_json", "check_target", "check_words"]


_MESSAGE_CHARS_MAX = 800


def _text(data: bytes) -> str:
    return os.fsdecode(data).replace("\0", "")  # no argument holds one


def check_json(data: bytes) -> None:
    text = _text(data)
    try:
        value = parser.json_value(text)
    except argparse.ArgumentTypeError as error:
        assert len(str(error)) < _MESSAGE_CHARS_MAX  # noqa: PT017 - of many inputs
        return
    json.dumps(value)


def check_target(data: bytes) -> None:
    """Nothing is loaded: the names begin with one that no module has."""
    text = _text(data)
    try:
        load_app(f"no_such_module_{text}")
    except UsageError as error:
        str(error).encode("utf-8", "surrogateescape")


def check_words(data: bytes) -> None:
    text = _text(data)
    readers = (parser.attribute, parser.seconds, parser.whole_number(1, 100), parser.run_id, parser.duration, place)
    for read in (*readers, parser.effect_name, parser.key, parser.words):
        try:
            read(text)
        except (argparse.ArgumentTypeError, UsageError) as error:
            assert len(str(error)) < _MESSAGE_CHARS_MAX  # noqa: PT017 - of many inputs
