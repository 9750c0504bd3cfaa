"""What subscribers note of each call of user code: one file a process, one write a line, so that a kill tears none."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

from streams import EffectContext

__all__ = ["Call", "note", "read_calls"]

_files: dict[int, int] = {}


class Call(NamedTuple):
    """User code was called: a handler, or a look-up."""

    what: str
    key: str
    effect_id: str
    epoch: int
    attempt: int
    delivery: int
    pid: int


def note(ctx: EffectContext, what: str) -> None:
    """Before the work, so that no work is without its note."""
    pid = os.getpid()
    if pid not in _files:
        path = Path(os.environ["STAGE_FOLDER"]) / f"calls-{pid}.jsonl"
        _files[pid] = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    token = ctx.fencing_token
    call = Call(what, ctx.idempotency_key, ctx.effect_id, token.epoch, token.attempt, ctx.delivery, pid)
    os.write(_files[pid], json.dumps(call).encode() + b"\n")


def read_calls(folder: Path) -> list[Call]:
    """All calls of all processes, each process in its own order."""
    return [
        Call(*json.loads(line))
        for path in sorted(folder.glob("calls-*.jsonl"))
        for line in path.read_text("utf-8").splitlines()
    ]
