"""What every local store does."""

from __future__ import annotations

import random

import pytest

from streams.store import Change, Mark, Place, Store

MARK = Mark("c/e/k", 7, 1_000, 3, 2, 5, 4)


class StoreContract:
    """Subclass it with a fixture `store`; `reopened` gives what a later process finds."""

    @pytest.fixture
    def store(self) -> Store:
        raise AssertionError("the subclass has one")

    def reopened(self, store: Store) -> Store:
        raise AssertionError("the subclass has one")

    def test_an_empty_mirror_reflects_nothing(self, store: Store) -> None:
        mirror = store.partition(0)
        assert mirror.mark() is None
        assert mirror.get(b"r") is None
        assert mirror.keys(5) == []
        assert mirror.due(0, 2**60, 5) == []

    def test_checkpoints_and_mark_outlive_the_process(self, store: Store) -> None:
        store.partition(3).write([Change(b"a", b"1"), Change(b"b", b"2", 0, 50)], MARK)
        store.partition(3).write([Change(b"a", None), Change(b"c", b"")], MARK._replace(offset=9))
        mirror = self.reopened(store).partition(3)
        assert mirror.mark() == MARK._replace(offset=9)
        assert [mirror.get(key) for key in (b"a", b"b", b"c")] == [None, b"2", b""]
        assert mirror.keys(5) == [b"b", b"c"]
        assert mirror.keys(1) == [b"b"]
        assert mirror.due(0, 50, 5) == [Place(50, b"b")]

    def test_a_mirror_knows_nothing_of_other_partitions(self, store: Store) -> None:
        for number in (0, 1, 255, 256):
            store.partition(number).write([Change(b"a", b"%d" % number, 0, number)], MARK._replace(offset=number))
        store.partition(255).wipe()
        assert [store.partition(n).get(b"a") for n in (0, 1, 255, 256)] == [b"0", b"1", None, b"256"]
        assert [store.partition(n).due(0, 999, 9) for n in (1, 255)] == [[Place(1, b"a")], []]
        assert store.partition(255).mark() is None
        assert store.partition(256).mark() == MARK._replace(offset=256)
        assert store.partition(1).keys(9) == [b"a"]

    def test_a_run_stands_in_the_index_where_it_was_written_last(self, store: Store) -> None:
        mirror = store.partition(0)
        mirror.write([Change(b"r", b"1", 0, 10)], MARK)
        mirror.write([Change(b"r", b"2", 0, 90)], MARK)
        assert mirror.due(0, 50, 9) == []
        assert mirror.due(0, 90, 9) == [Place(90, b"r")]
        mirror.write([Change(b"r", b"3", 1, 20)], MARK)
        assert mirror.due(0, 99, 9) == []
        assert mirror.due(1, 99, 9) == [Place(20, b"r")]
        mirror.write([Change(b"r", b"4")], MARK)
        assert mirror.due(1, 99, 9) == mirror.due(0, 99, 9) == []
        mirror.write([Change(b"r", b"5", 1, 20)], MARK)
        assert mirror.due(1, 99, 9) == [Place(20, b"r")]

    def test_the_index_goes_on_after_a_place(self, store: Store) -> None:
        mirror = store.partition(0)
        keys = [b"", b"\0", b"a", b"a\0", b"\xff\xff"]
        mirror.write([Change(key, b"v", 0, at) for key in keys for at in (5,)], MARK)
        mirror.write([Change(b"later", b"v", 0, 6), Change(b"now", b"v", 0, 0), Change(b"asked", b"v")], MARK)
        found: list[Place] = []
        while page := mirror.due(0, 6, 2, found[-1] if found else None):
            assert len(page) <= 2
            found += page
        assert found == [Place(0, b"now"), *(Place(5, key) for key in keys), Place(6, b"later")]
        assert mirror.due(0, 5, 99, Place(5, b"a\0")) == [Place(5, b"\xff\xff")]
        assert mirror.due(0, -1, 9) == []
        assert mirror.due(0, 0, 9, Place(-1, b"")) == [Place(0, b"now")]

    def test_it_does_what_a_dictionary_does(self, store: Store) -> None:
        draw, mirror = random.Random(7), store.partition(2)
        expected: dict[bytes, Change] = {}
        for _ in range(60):
            changes = []
            for _ in range(draw.randrange(8)):
                key = bytes([draw.randrange(20)])
                value = None if draw.random() < 0.3 else draw.randbytes(5)
                change = Change(key, value, draw.randrange(3), draw.choice([None, 0, draw.randrange(2**50)]))
                changes.append(change)
                expected[key] = change
            mirror.write(changes, MARK)
            left = {key: change for key, change in expected.items() if change.value is not None}
            assert mirror.keys(99) == sorted(left)
            assert all(mirror.get(key) == expected[key].value for key in expected)
            stage, until = draw.randrange(3), draw.randrange(2**50)
            places = [Place(c.at, c.key) for c in left.values() if c.stage == stage and c.at is not None]
            assert mirror.due(stage, until, 99) == sorted(place for place in places if place.at <= until)

    def test_it_tells_about_how_much_it_has(self, store: Store) -> None:
        store.partition(0).write([Change(b"%d" % n, b"v") for n in range(100)], MARK)
        assert 50 <= store.count() <= 200
