"""The whole stack in one folder: what `streams dev up`, `down` and `status` do."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from streams.dev.kafka import Kafka, read_kafka, start_kafka, stop_kafka
from streams.dev.postgres import Postgres, read_postgres, start_postgres, stop_postgres
from streams.dev.process import StackFailed

__all__ = ["FOLDER_DEFAULT", "Stack", "crashed", "down", "status", "up"]

FOLDER_DEFAULT = ".streams-dev"
_KAFKA, _POSTGRES, _IGNORE, _LOCK = "kafka", "postgres", ".gitignore", "lock"


class Stack(NamedTuple):
    """What runs. `as_json` is what scripts read: never change its keys."""

    kafka: Kafka | None
    postgres: Postgres | None

    def as_json(self) -> dict[str, str | None]:
        """The addresses."""
        return {
            "kafka": self.kafka.url if self.kafka else None,
            "postgresql": self.postgres.url if self.postgres else None,
        }


def up(folder: Path | str, *, postgres: bool = False, say: Callable[[str], None] | None = None) -> Stack:
    """Start what is not running, all of it or nothing. `say` gets a line when something takes long."""
    folder = Path(folder).absolute()
    _make(folder)
    with _locked(folder):
        before = _running(folder)
        kafka = start_kafka(folder / _KAFKA, say=say)
        try:
            wanted = start_postgres(folder / _POSTGRES) if postgres else before.postgres
        except BaseException:
            if before.kafka is None:
                stop_kafka(kafka)  # all or nothing, also for who presses Ctrl-C
            raise
        return Stack(kafka, wanted)


def down(folder: Path | str, *, remove: bool = False) -> Stack:
    """Stop what runs and return it; with `remove` the data goes too."""
    folder = Path(folder).absolute()
    if not folder.is_dir():
        return Stack(None, None)
    with _locked(folder):
        ran = _running(folder)
        if ran.postgres:
            stop_postgres(ran.postgres)
        if ran.kafka:
            stop_kafka(ran.kafka)
        if remove:
            _remove(folder)
    return ran


def status(folder: Path | str) -> Stack:
    """What runs now."""
    return _running(Path(folder).absolute())


def crashed(folder: Path | str) -> list[tuple[str, Path]]:
    """The servers that ended without having been stopped, each with its log."""
    folder = Path(folder).absolute()
    kafka, postgres = read_kafka(folder / _KAFKA), read_postgres(folder / _POSTGRES)
    found = [("Kafka", kafka.log)] if kafka and kafka.crashed else []
    return found + ([("PostgreSQL", postgres.log)] if postgres and postgres.crashed else [])


def _running(folder: Path) -> Stack:
    kafka, postgres = read_kafka(folder / _KAFKA), read_postgres(folder / _POSTGRES)
    return Stack(kafka if kafka and kafka.alive else None, postgres if postgres and postgres.alive else None)


def _make(folder: Path) -> None:
    if folder.is_dir() and any(folder.iterdir()) and not (folder / _LOCK).exists():
        raise StackFailed(f"{folder} holds other things than a development stack: choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _IGNORE).write_text("*\n", "utf-8")


def _remove(folder: Path) -> None:
    """Only what this module made: the folder may have been chosen by mistake."""
    for name in (_KAFKA, _POSTGRES):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in (_IGNORE, _LOCK):
        (folder / name).unlink(missing_ok=True)
    if not any(folder.iterdir()):
        folder.rmdir()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One `up` or `down` at a time: two would start two brokers on one folder."""
    with (folder / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
