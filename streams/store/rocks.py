"""A store in a folder: RocksDB, through `rocksdict`. One process at a time has it open."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rocksdict import BlockBasedOptions, Cache, Options, Rdict, WriteBatch

from streams.store.port import Change, Mark, Place, StoreFailed

__all__ = ["RocksPartitionStore", "RocksStore", "open_rocks"]

# What lies under which key. A store of another form is thrown away, so all of this may change with _FORMAT.
_FORMAT = b"streams-store-1"
_FORMAT_KEY = b"\xff\xff\xff\xff"
_NUMBER = struct.Struct(">I")
_RUN, _INDEX, _MARK = b"r", b"i", b"m"
"""Behind the number of a partition: a run, a place in the index, the mark."""
_HEAD = struct.Struct(">Bq")
"""In front of a checkpoint: its stage and time, so that a place in the index can be told to be an old one."""
_PLACE = struct.Struct(">BQ")
_NEVER = -1
_STORED_MARK = struct.Struct(">qqqqqq")
_WRITE_BUFFER_BYTES = 16 << 20
_CACHE_BYTES = 32 << 20
_OPEN_FILES = 256
_BLOOM_BITS = 10


class RocksPartitionStore:
    """Implements `PartitionStore`.

    A write does not look for the place that the run had in the index before: that would be a read a write. `due`
    compares each place with its run, passes over those that are old, and removes them.
    """

    def __init__(self, store: RocksStore, number: int) -> None:
        self._store = store
        self._db = store.db
        prefix = _NUMBER.pack(number)
        self._runs, self._index, self._mark = prefix + _RUN, prefix + _INDEX, prefix + _MARK
        self._begin, self._end = prefix, _NUMBER.pack(number + 1)

    def mark(self) -> Mark | None:
        """What it reflects."""
        with self._store.failing():
            found = self._db.get(self._mark)
        if found is None:
            return None
        size = _STORED_MARK.size
        return Mark(found[size:].decode(), *_STORED_MARK.unpack(found[:size]))

    def get(self, key: bytes) -> bytes | None:
        """The checkpoint of a run."""
        with self._store.failing():
            found: bytes | None = self._db.get(self._runs + key)
        return None if found is None else found[_HEAD.size :]

    def write(self, changes: Sequence[Change], mark: Mark) -> None:
        """All of it or nothing. One column family and one log of writes: so what is lost in a crash is a suffix."""
        batch = WriteBatch(raw_mode=True)
        for key, value, stage, at in changes:
            if value is None:
                batch.delete(self._runs + key)
                continue
            batch.put(self._runs + key, _HEAD.pack(stage, _NEVER if at is None else at) + value)
            if at is not None:
                batch.put(self._index + _PLACE.pack(stage, at) + key, b"")
        batch.put(self._mark, _STORED_MARK.pack(*mark[1:]) + mark.topics.encode())
        with self._store.failing():
            self._db.write(batch)

    def due(self, stage: int, until: int, limit: int, after: Place | None = None) -> list[Place]:
        """The first places of a stage up to a time."""
        found: list[Place] = []
        old = WriteBatch(raw_mode=True)
        with self._store.failing():
            for place in self._places(stage, until, after):
                head = self._db.get(self._runs + place.key)
                if head is not None and head[: _HEAD.size] == _HEAD.pack(stage, place.at):
                    found.append(place)
                    if len(found) >= limit:
                        break
                else:
                    old.delete(self._index + _PLACE.pack(stage, place.at) + place.key)
            if not old.is_empty():
                self._db.write(old)
        return found

    def _places(self, stage: int, until: int, after: Place | None) -> Iterator[Place]:
        beyond = self._index + _PLACE.pack(stage, max(until, 0) + 1)
        first = self._index + _PLACE.pack(stage, 0)
        if after is not None and after.at >= 0:
            first = self._index + _PLACE.pack(stage, after.at) + after.key + b"\0"
        at = self._db.iter()
        at.seek(first)
        start = len(self._index)
        while at.valid():
            key = at.key()
            assert isinstance(key, bytes)
            if key >= beyond or until < 0:
                return
            _, due = _PLACE.unpack_from(key, start)
            yield Place(due, key[start + _PLACE.size :])
            at.next()

    def keys(self, limit: int) -> list[bytes]:
        """Some of the keys."""
        found: list[bytes] = []
        with self._store.failing():
            at = self._db.iter()
            at.seek(self._runs)
            while len(found) < limit and at.valid():
                key = at.key()
                assert isinstance(key, bytes)
                if not key.startswith(self._runs):
                    break
                found.append(key[len(self._runs) :])
                at.next()
        return found

    def wipe(self) -> None:
        """Throw everything away: the mark first, so that what is left after a crash on the way counts for nothing."""
        with self._store.failing():
            self._db.delete(self._mark)
            self._db.delete_range(self._begin, self._end)


class RocksStore:
    """Implements `Store`. `open_rocks` makes one."""

    def __init__(self, db: Rdict, path: Path) -> None:
        self.db = db
        self._path = path

    def partition(self, number: int) -> RocksPartitionStore:
        """The mirror of a partition."""
        return RocksPartitionStore(self, number)

    def count(self) -> int:
        """About how many runs are in it; old places in the index count as well."""
        with self.failing():
            return int(self.db.property_int_value("rocksdb.estimate-num-keys") or 0)

    def close(self) -> None:
        """Let go of the folder."""
        self.db.close()
        _pid_file(self._path).unlink(missing_ok=True)

    @contextmanager
    def failing(self) -> Iterator[None]:
        """What RocksDB raises, as `StoreFailed`. One that is corrupted is thrown away when it is opened next."""
        try:
            yield
        except Exception as error:  # the library has no class of its own for most of its errors
            cure = "the worker restores from the log when it starts again"
            if str(error).startswith("Corruption"):
                _broken_file(self._path).touch()
                cure = "it is thrown away, and the state restored from the log, when the worker starts again"
            message = f"the local store {self._path} cannot be used ({error}). Nothing is lost: {cure}"
            raise StoreFailed(message) from error


class _Useless(Exception):
    """A store that can only be thrown away."""


def open_rocks(folder: Path, app: str, tell: Callable[[str], None]) -> RocksStore:
    """Open the store of an app in a folder, and make one where there is none. Raises `StoreFailed`.

    `tell` hears why one was thrown away. Other things in the folder are left alone.
    """
    path = folder / f"{app}.rocksdb"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreFailed(f"the folder {folder} for local state cannot be made: {error}") from error
    try:
        db = _open(path)
    except _Useless as useless:
        tell(f"the local store {path} {useless}: it is thrown away, and the state is restored from the log")
        db = _made_anew(path)
    _pid_file(path).write_text(f"{os.getpid()}\n", "utf-8")
    return RocksStore(db, path)


def _made_anew(path: Path) -> Rdict:
    try:
        Rdict.destroy(str(path))
        _broken_file(path).unlink(missing_ok=True)
        return _open(path)
    except Exception as error:  # as above
        message = f"the local store {path} can neither be used nor be made anew ({error}): delete it, or name another"
        raise StoreFailed(message) from error


def _open(path: Path) -> Rdict:
    """Raises `StoreFailed` where another process has it open, and `_Useless`."""
    if _broken_file(path).exists():
        raise _Useless("was found to be corrupted")
    try:
        db = Rdict(str(path), _options())
        form = db.get(_FORMAT_KEY)
    except Exception as error:  # as above
        if f"{path.name}/LOCK:" in str(error):
            raise StoreFailed(f"the local store {path} is in use{_user_of(path)}: give each worker a folder") from error
        raise _Useless(f"cannot be opened ({error})") from error
    if form != _FORMAT:
        at = db.iter()
        at.seek_to_first()
        if at.valid():
            del at
            db.close()
            raise _Useless("was made by another program" if form is None else "has the form of another release")
        db.put(_FORMAT_KEY, _FORMAT)
    return db


def _options() -> Options:
    options, blocks = Options(raw_mode=True), BlockBasedOptions()
    blocks.set_bloom_filter(_BLOOM_BITS, block_based=False)
    blocks.set_block_cache(Cache(_CACHE_BYTES))
    options.set_block_based_table_factory(blocks)
    options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
    options.set_max_open_files(_OPEN_FILES)
    options.set_keep_log_file_num(2)
    options.create_if_missing(True)  # noqa: FBT003 - it has no name in the library
    return options


def _user_of(path: Path) -> str:
    """Who has it open, as far as that is known."""
    try:
        return f" by process {int(_pid_file(path).read_text('utf-8'))}"
    except (OSError, ValueError):
        return " by another process"


def _pid_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.pid")


def _broken_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.broken")
