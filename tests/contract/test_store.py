"""The local stores: in memory, and in a folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from streams.store import Change, Mark, Store, StoreFailed
from streams.store.memory import MemoryStore
from streams.store.rocks import RocksStore, open_rocks
from tests.contract.store_contract import MARK, StoreContract


class TestMemory(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore()

    def reopened(self, store: Store) -> Store:
        store.close()
        return store


@pytest.fixture
def told() -> list[str]:
    return []


class TestRocks(StoreContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> Iterator[None]:
        self.folder = tmp_path
        self.told: list[str] = []
        yield
        self.opened.close()

    def _open(self) -> RocksStore:
        self.opened = open_rocks(self.folder / "new" / "folder", "app", self.told.append)
        return self.opened

    @pytest.fixture
    def store(self, _folder: None) -> Store:
        return self._open()

    def reopened(self, store: Store) -> Store:
        store.close()
        found = self._open()
        assert self.told == []
        return found


def filled(folder: Path, told: list[str]) -> Path:
    store = open_rocks(folder, "app", told.append)
    store.partition(0).write([Change(b"r", b"1")], MARK)
    store.close()
    return folder / "app.rocksdb"


def after(folder: Path, told: list[str]) -> Mark | None:
    store = open_rocks(folder, "app", told.append)
    try:
        found = store.partition(0).mark()
        store.partition(0).write([Change(b"r", b"2")], MARK)
        return found
    finally:
        store.close()


def test_a_folder_that_another_process_has_is_refused_with_its_number(tmp_path: Path, told: list[str]) -> None:
    filled(tmp_path, told)
    code = (
        "import sys, pathlib; from streams.store.rocks import open_rocks\n"
        "store = open_rocks(pathlib.Path(sys.argv[1]), 'app', print); print('open', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(StoreFailed, match=rf"in use by process {other.pid}: give each worker a folder"):
            open_rocks(tmp_path, "app", told.append)
        open_rocks(tmp_path, "another", told.append).close()
        other.kill()
    finally:
        other.kill()
        other.communicate(timeout=60)
    assert after(tmp_path, told) == MARK, "a killed process leaves what it has written"
    assert told == []


def test_a_folder_that_this_process_has_is_refused_too(tmp_path: Path, told: list[str]) -> None:
    store = open_rocks(tmp_path, "app", told.append)
    with pytest.raises(StoreFailed, match=f"in use by process {os.getpid()}"):
        open_rocks(tmp_path, "app", told.append)
    store.partition(0).write([Change(b"r", b"1")], MARK)
    store.close()


def test_a_corrupted_store_is_thrown_away(tmp_path: Path, told: list[str]) -> None:
    path = filled(tmp_path, told)
    (path / "CURRENT").write_text("garbage\n", "utf-8")
    (tmp_path / "mine.txt").write_text("keep", "utf-8")
    assert after(tmp_path, told) is None
    assert [line.count("thrown away") for line in told] == [1]
    assert (tmp_path / "mine.txt").read_text("utf-8") == "keep"
    assert after(tmp_path, told) == MARK
    assert len(told) == 1


def test_one_that_turns_out_to_be_corrupted_is_thrown_away_at_the_next_start(tmp_path: Path, told: list[str]) -> None:
    path = filled(tmp_path, told)
    store = open_rocks(tmp_path, "app", told.append)
    store.partition(0).write([Change(b"%04d" % n, os.urandom(1_000)) for n in range(200)], MARK)
    store.close()
    open_rocks(tmp_path, "app", told.append).close()  # now what was written lies in a table
    table = max(path.glob("*.sst"), key=lambda found: found.stat().st_size)
    data = bytearray(table.read_bytes())
    data[50_000:100_000] = bytes(50_000)
    table.write_bytes(bytes(data))
    store = open_rocks(tmp_path, "app", told.append)
    with pytest.raises(StoreFailed, match=r"Corruption.*thrown away"):
        [store.partition(0).get(b"%04d" % n) for n in range(200)]
    store.close()
    assert after(tmp_path, told) is None
    assert len(told) == 1
    assert "was found to be corrupted" in told[0]


def test_a_store_of_another_program_or_release_is_thrown_away(tmp_path: Path, told: list[str]) -> None:
    path = filled(tmp_path, told)
    for key, value in ((b"\xff\xff\xff\xff", b"streams-store-999"), (b"\xff\xff\xff\xff", None)):
        db = Rdict(str(path), Options(raw_mode=True))
        db.put(b"x", b"y")
        if value is None:
            db.delete(key)
        else:
            db.put(key, value)
        db.close()
        assert after(tmp_path, told) is None
        assert after(tmp_path, told) == MARK
    assert ["another release" in told[0], "another program" in told[1], len(told)] == [True, True, 2]


def test_what_is_no_folder_is_said(tmp_path: Path, told: list[str]) -> None:
    (tmp_path / "file").write_text("x", "utf-8")
    with pytest.raises(StoreFailed, match="cannot be made"):
        open_rocks(tmp_path / "file", "app", told.append)
    (tmp_path / "app.rocksdb").write_text("x", "utf-8")
    with pytest.raises(StoreFailed, match="delete it, or name another"):
        open_rocks(tmp_path, "app", told.append)


def test_a_store_that_was_copied_is_a_store(tmp_path: Path, told: list[str]) -> None:
    filled(tmp_path / "a", told)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert after(tmp_path / "b", told) == after(tmp_path / "a", told) == MARK
    assert told == []
