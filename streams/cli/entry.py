"""From arguments to an exit code (0 done, 1 refused or failed, 2 wrong usage) and one line for what went wrong."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

from streams.cli import (
    ask,
    dead_letters,
    demo,
    dev,
    export,
    ledger,
    look,
    rebuild,
    replay,
    serve,
    subscribe,
    topics,
    verify,
)
from streams.cli.parser import Verbs
from streams.cli.terminal import complain, prepare_streams
from streams.errors import StreamsError, UsageError

__all__ = ["main"]

FAILED, WRONG_USAGE, INTERRUPTED, PIPE_CLOSED = 1, 2, 130, 141

_FAMILIES = (demo, dev, serve, subscribe, topics, ask, look, rebuild, dead_letters, verify, export, replay, ledger)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code. Nothing but `--help` and the like raises SystemExit inside."""
    prepare_streams()
    try:
        return _run(sys.argv[1:] if argv is None else argv)
    except UsageError as error:
        return _failed(str(error), WRONG_USAGE)
    except StreamsError as error:
        return _failed(str(error), FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # What is left in the buffer has nowhere to go; without this the interpreter would complain at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except OSError as error:
        return _failed(str(error), FAILED)
    except Exception as error:  # noqa: BLE001 - a bug of ours; the user gets one line and the way to see more
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return _failed(f"internal error: {text} (STREAMS_DEBUG=1 shows where)", FAILED)


def _run(argv: Sequence[str]) -> int:
    verbs = Verbs()
    for family in _FAMILIES:
        family.add(verbs)
    try:
        args = verbs.parse(argv)
    except SystemExit as done:  # --help and --version have printed what was asked for
        return int(done.code or 0)
    if args is None:
        verbs.print_help()
        return 0
    code: int = args.handler(args)
    sys.stdout.flush()  # here a closed pipe is still ours to handle
    return code


def _failed(text: str, code: int) -> int:
    if os.environ.get("STREAMS_DEBUG") and code == FAILED:
        traceback.print_exc()
    complain(text)
    return code
