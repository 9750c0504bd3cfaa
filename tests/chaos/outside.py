"""The world outside the log: each worker's file of task calls, and a provider that makes a payment once a key."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from streams import TaskContext
from tests.chaos.marks import Marks

__all__ = ["Call", "Outside", "payments", "read_calls", "receipt"]


class Call(NamedTuple):
    """A task was called, or a look-up; `ended` where it came back."""

    key: str
    run: str
    attempt: int
    epoch: int
    pid: int
    what: str
    ended: bool


class Outside:
    """What tasks see of the world. One file a process, appended with one write a line, so that a kill tears none."""

    def __init__(self, folder: Path, marks: Marks | None = None) -> None:
        self.folder = folder
        (folder / "payments").mkdir(parents=True, exist_ok=True)
        self._marks = marks
        self._file = os.open(folder / f"calls-{os.getpid()}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @contextmanager
    def call(self, ctx: TaskContext, what: str) -> Iterator[None]:
        """Note the beginning of a call and its end, and count it as running between them."""
        self._note(ctx, what, ended=False)
        if self._marks is not None:
            self._marks.add(1)
        try:
            yield
        finally:
            if self._marks is not None:
                self._marks.add(-1)
            self._note(ctx, what, ended=True)

    def _note(self, ctx: TaskContext, what: str, *, ended: bool) -> None:
        epoch, attempt = ctx.fencing_token.epoch, ctx.attempt
        call = Call(ctx.idempotency_key, ctx.run_id, attempt, epoch, os.getpid(), what, ended)
        os.write(self._file, json.dumps(call).encode() + b"\n")

    def pay(self, key: str, amount: int) -> str:
        """Make the payment, or find it made. The link appears with its content or not at all."""
        path = self._payment(key)
        draft = path.with_suffix(f".{os.getpid()}.{os.urandom(4).hex()}")
        draft.write_text(json.dumps([key, amount]), "utf-8")
        try:
            path.hardlink_to(draft)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
        return receipt(key, amount)

    def find_payment(self, key: str) -> str | None:
        try:
            found, amount = json.loads(self._payment(key).read_text("utf-8"))
        except FileNotFoundError:
            return None
        return receipt(found, amount)

    def _payment(self, key: str) -> Path:
        return self.folder / "payments" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"

    def close(self) -> None:
        os.close(self._file)


def receipt(key: str, amount: int) -> str:
    return f"receipt for {key}: {amount}"


def read_calls(folder: Path) -> list[Call]:
    """All calls of all processes, each process in its own order."""
    return [
        Call(*json.loads(line))
        for path in sorted(folder.glob("calls-*.jsonl"))
        for line in path.read_text("utf-8").splitlines()
    ]


def payments(folder: Path) -> dict[str, int]:
    """The amount paid under each key."""
    return dict(json.loads(path.read_text("utf-8")) for path in (folder / "payments").glob("*.json"))
