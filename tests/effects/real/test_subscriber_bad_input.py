"""What foreign producers send and what handlers should not do: recorded, nothing lost, others go on."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition as KafkaPlace
from confluent_kafka.admin import AdminClient

from streams.effects.port import Status
from streams.kernel import bodies as ev
from streams.kernel.commands import Reply
from streams.log.port import NewRecord
from streams.wire.records import encode_command
from tests.effects.real.play import play
from tests.effects.real.stage import PARTITIONS, TILL, Pair, Stage, on_each_pair
from tests.runtime.history import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@on_each_pair
def test_effects_that_a_subscriber_cannot_read_are_dead_letters_and_others_go_on(tmp_path: Path, pair: Pair):
    async def scene(s: Stage) -> None:
        topic = s.history.topics.effect("ticks")
        good = [s.record(s.message("ticks", f"good{number}", attempt=1)) for number in range(4)]
        usual = s.record(s.message("ticks", "usual"))
        raw: list[tuple[bytes | None, bytes | None]] = [
            (b"k", os.urandom(64)),
            (b"k", b'{"order": "json"}'),
            (b"k", None),
            (b"k", b""),
            (None, b"no key"),
            (None, usual.value),  # readable; its key is not
            (b"\xff\xfe", b"\xc3\x01" + bytes(8) + b"an unknown schema"),
            (b"k", (usual.value or b"")[:-3]),
        ]
        bad = [NewRecord(topic, number % PARTITIONS, *pair) for number, pair in enumerate(raw)]
        refused = [
            s.message("ticks", "wrong type", attempt=1, payload=b'["no", "dict"]'),
            s.message("ticks", "no json", attempt=1, payload=b"\x00\x01"),
        ]
        order = [good[0], *bad[:4], good[1], *bad[4:], good[2], *map(s.record, refused), good[3]]
        await s.log.append(order)
        process = await s.subscriber(only=["ticks"])
        await s.books.finished("ticks")
        assert await process.stop() == 0
        assert {call.key for call in s.calls("tick")} >= {f"ticks/good{number}" for number in range(4)}
        letters = await s.books.letters("ticks")
        codes = Counter(one.code for one in letters)
        assert codes["VALUE_UNREADABLE"] == 2
        assert codes["EFFECT_UNREADABLE"] in (
            len(bad),
            len(bad) - 1,
        )  # a message with a lost key may be read all the same
        values = [one.letter.value for one in letters]
        assert all(value in values for _, value in raw if value != usual.value)
        replies = await s.books.replies()
        for message in refused:
            (reply,) = replies[message.effect_id, 1, 1]
            assert reply.error is not None
            assert reply.error[:2] == ("terminal", "VALUE_UNREADABLE")
        for number in range(4):
            assert replies[f"good{number}@0/ticks", 1, 1][0].value == f'"tick good{number}"'.encode()

    play(tmp_path, pair, scene)


def strange(s: Stage, effect: str, how: str) -> str:
    """A request whose handler misbehaves; the name of its order."""
    return s.message(effect, how.replace(" ", "-"), attempt=1, payload=json.dumps({"order": how, "how": how}).encode())


@on_each_pair
def test_handlers_of_a_subscriber_that_raise_hang_or_return_what_cannot_be_stored(tmp_path: Path, pair: Pair):
    """What each end means, and that a neighbour of them all gets through."""
    ends = {
        "well": (Status.DONE, None),
        "large": (Status.DONE, None),
        "fail": (Status.FAILED, "NO_STOCK"),
        "again": (Status.FAILED, "RETRIES_EXHAUSTED"),
        "second time": (Status.DONE, None),
        "raise": (Status.PARKED, "OUTCOME_UNKNOWN"),
        "hang": (Status.PARKED, "OUTCOME_UNKNOWN"),
        "a lock": (Status.PARKED, "VALUE_NOT_STORABLE"),
        "too large": (Status.PARKED, "VALUE_TOO_LARGE"),
    }

    async def scene(s: Stage) -> None:
        await s.send(*(strange(s, "odd", how) for how in ends))
        await s.ask("ticks", *(f"t{number}" for number in range(50)))
        await s.subscriber(only=["odd", "ticks"])
        await s.books.finished("ticks", "odd")
        await s.close()
        await s.books.check("odd", "ticks")
        replies = await s.books.replies()
        letters = {one.message.run_id: one.code for one in await s.books.letters("odd") if one.message}
        for how, (status, code) in ends.items():
            run = how.replace(" ", "-")
            entry = await s.books.entry("odd", f"odd/{run}")
            assert (how, entry.status, entry.error and entry.error.code) == (how, status, code)
            assert letters.get(run) == code
            error = [reply.error for reply in replies.get((f"{run}@0/odd", 1, 1), [])]
            expected = {Status.DONE: [None], Status.PARKED: []}
            assert [one and one[:2] for one in error] == expected.get(status, [("terminal", code)])
        calls = Counter(call.key.partition("/")[2] for call in s.calls("odd"))
        assert calls == {how.replace(" ", "-"): 1 for how in ends} | {"again": 3, "second-time": 2}

    play(tmp_path, pair, scene)


@on_each_pair
def test_transactional_handlers_of_a_subscriber_that_raise_leave_no_row_and_harm_no_neighbour(
    tmp_path: Path, pair: Pair
):
    """All in one batch with good ones: what is bad among them is found and rolled back alone."""
    ends = {
        "fail": (Status.FAILED, "NO_STOCK"),
        "again": (Status.FAILED, "RETRIES_EXHAUSTED"),
        "second time": (Status.DONE, None),
        "raise": (Status.FAILED, "RETRIES_EXHAUSTED"),
        "a lock": None,
        "too large": None,
    }

    async def scene(s: Stage) -> None:
        hows = [f"well {number}" for number in range(30)]
        for number, how in enumerate(ends):
            hows.insert(5 * number + 2, how)
        await s.send(*(strange(s, "odd_rows", how) for how in hows))
        await s.subscriber(only=["odd_rows"])
        await s.books.finished("odd_rows")
        await s.close()
        await s.books.check("odd_rows")  # which compares rows with the entries that are done
        entries = await s.books.entries("odd_rows")
        for how, end in ends.items():
            entry = entries[f"odd_rows/{how.replace(' ', '-')}"]
            if end is not None:
                assert (how, entry.status, entry.error and entry.error.code) == (how, *end)
            else:
                # Rolled back or kept: `check` has seen that rows and entry say the same, and a person is told.
                assert entry.status in (Status.PARKED, Status.FAILED)
                assert entry.error is not None
                assert entry.error.code in ("VALUE_NOT_STORABLE", "VALUE_TOO_LARGE")
        assert all(entries[f"odd_rows/well-{number}"].status is Status.DONE for number in range(30))

    play(tmp_path, pair, scene)


@on_each_pair
def test_replies_of_a_foreign_subscriber_for_a_run_or_an_op_that_is_not_there(tmp_path: Path, pair: Pair):
    """Recorded, and no run is harmed: the one that waits gets the answer of its own subscriber."""

    async def scene(s: Stage) -> None:
        await s.worker(TILL)
        await s.history.start("buy", "run", "o-1")
        (asked,) = await s.history.seen("run", ev.OpScheduled)
        event = next(e for e in s.history.events["run"] if isinstance(e.body, ev.OpScheduled))
        wrong = {
            "nobody": Reply("1", "nobody@0/1", 1, 1, b'"x"'),
            "run": Reply("77", f"{event.identity}/77", 1, event.epoch, b'"x"'),
        }
        others = [
            Reply(asked.op, "other@0/1", 1, event.epoch, b'"x"'),
            Reply(asked.op, f"{event.identity}/{asked.op}", 9, event.epoch, b'"x"'),
            Reply(asked.op, f"{event.identity}/{asked.op}", 1, event.epoch + 9, b'"x"'),
            Reply(asked.op, f"{event.identity}/{asked.op}", 1, event.epoch, b"[1]"),  # not of the reply's type
        ]
        raw = [b'{"type": "reply"}', b'{"type": "reply", "op": "1", "effect_id": "x", "attempt": "one", "epoch": 1}']
        sent = [(run, encode_command(reply, command_id=None)) for run, reply in wrong.items()]
        sent += [("run", encode_command(reply, command_id=None)) for reply in others]
        commands = s.history.topics.commands
        at = s.history.partition
        offsets = await s.log.append([NewRecord(commands, at(run), run.encode(), data) for run, data in sent])
        letters = await s.log.append([NewRecord(commands, at("run"), b"run", data) for data in raw])
        for (run, _), offset in zip(sent, offsets, strict=True):
            body = await s.history.answered(offset, run)
            assert isinstance(body, ev.CommandRejected), body
            assert body.code
            assert body.message
        assert s.history.end("run") is None
        await s.subscriber(only=["holds", "rows", "ticks"])
        assert await s.history.result("run") == ["rs-1", "row of o-1"]
        await s.books.finished("holds", "rows", "ticks")
        await s.close()
        checked = await s.check()
        assert {letter.offset for letter in checked.letters} == set(letters)
        assert s.outside.holds("o-1") == 1

    play(tmp_path, pair, scene)


@on_each_pair
def test_f17_a_subscriber_whose_offset_lies_below_the_start_of_the_topic_skips_nothing_silently(
    tmp_path: Path, pair: Pair
):
    """Retention was shorter than its absence: the partition is refused with words, others go on."""

    async def scene(s: Stage) -> None:
        first = await s.subscriber(only=["ticks"])
        orders = [f"o{number}" for number in range(40)]
        await s.ask("ticks", *orders[:20])
        await s.books.finished("ticks")
        assert await first.stop() == 0
        await s.ask("ticks", *orders[20:])
        topic = s.history.topics.effect("ticks")
        number = s.history.partition(orders[-1])
        ends = await s.log.span(topic, number)
        await delete_records(s, pair, topic, number, ends.end)
        assert (await s.log.span(topic, number)).start == ends.end
        await s.ask("ticks", *(order + "x" for order in orders))
        second = await s.subscriber(only=["ticks"])
        wanted = {order + "x" for order in orders if s.history.partition(order + "x") != number}
        await until(lambda: wanted <= {call.key.partition("/")[2] for call in s.calls("tick")}, "the other partition")
        await until(lambda: second.heard("effect partition", "ticks", number, "refused"), "words")
        (*_, words) = second.heard("effect partition", "ticks", number, "refused")[0]
        assert f"begins at {ends.end}" in words
        assert await second.stop() == 0
        lost = {order for order in orders[20:] if s.history.partition(order) == number}
        done = {call.key.partition("/")[2] for call in s.calls("tick")}
        assert done.isdisjoint({order + "x" for order in orders} - wanted), "went on as if nothing were missing"
        assert done.isdisjoint(lost)
        # Somebody has seen what is missing and says where to go on.
        await s.log.rewind_group(s.history.topics.subscribers("ticks"), topic, {number: ends.end})
        await s.subscriber(only=["ticks"])
        await s.books.finished("ticks")
        await s.close()
        assert Counter(call.key for call in s.calls("tick")).most_common(1)[0][1] == 1
        assert len(s.calls("tick")) == 80 - len(lost)

    play(tmp_path, pair, scene)


@on_each_pair
def test_f23_keys_of_effects_that_are_strange_text_reach_the_ledger_or_the_dead_letters(tmp_path: Path, pair: Pair):
    """What a foreign producer may write: no failed write after the work was done, and others go on."""
    keys = [
        "k\x00l",
        "\ufeffk",
        "k\u2028l",
        "ключ 钥匙 🔑",
        " k ",
        "k\nl",
        "'; DROP TABLE written; --",
        "k" * 5_000,
        "%s{}\\",
    ]

    async def scene(s: Stage) -> None:
        for kind in ("ticks", "rows"):
            await s.send(*(s.message(kind, f"o{n}", attempt=1, idempotency_key=key) for n, key in enumerate(keys)))
            await s.ask(kind, "good")
        await s.subscriber(only=["ticks", "rows"])
        await s.books.finished("ticks", "rows")
        await s.close()
        for kind in ("ticks", "rows"):
            entries = await s.books.entries(kind)
            letters = {one.message.idempotency_key: one.code for one in await s.books.letters(kind) if one.message}
            for key in keys:
                if key in letters:
                    assert key not in entries
                else:
                    assert entries[key].status is Status.DONE, (key, entries[key])
            assert entries[f"{kind}/good"].status is Status.DONE
            assert "ключ 钥匙 🔑" in entries
            done = {call.key for call in s.calls("tick" if kind == "ticks" else "write")}
            assert done == set(entries)

    play(tmp_path, pair, scene)


async def delete_records(s: Stage, pair: Pair, topic: str, number: int, before: int) -> None:
    """As retention does."""
    if pair.kafka is None:
        path = s.url.removeprefix("sqlite:///").partition("?")[0]
        await asyncio.to_thread(delete_rows, path, topic, number, before)
        return
    admin = AdminClient({"bootstrap.servers": pair.kafka.bootstrap})
    for future in admin.delete_records([KafkaPlace(topic, number, before)]).values():
        await asyncio.to_thread(future.result, 30)


def delete_rows(path: str, topic: str, number: int, before: int) -> None:
    with closing(sqlite3.connect(path, timeout=60)) as connection:
        where = "SELECT pid FROM partitions WHERE topic = ? AND partition = ?"
        ((pid,),) = connection.execute(where, (topic, number)).fetchall()
        connection.execute("DELETE FROM records WHERE id >= ? AND id < ?", (pid << 40, (pid << 40) + before))
        connection.execute("UPDATE partitions SET start = ? WHERE pid = ?", (before, pid))
        connection.commit()


@on_each_pair
def test_a_handler_of_a_subscriber_that_kills_its_process_uses_up_its_retries(tmp_path: Path, pair: Pair):
    """Each time the look-up says that nothing was done; at last it is given up, with an error reply and a letter."""

    async def scene(s: Stage) -> None:
        await s.ask("deadly", "order")
        await s.ask("ticks", *"abcdef")
        for _ in range(3):
            assert await (await s.subscriber(only=["deadly", "ticks"])).gone() == 9
        await s.subscriber(only=["deadly", "ticks"])
        await s.books.finished("deadly", "ticks")
        await s.close(9)
        await s.books.check("deadly")
        entry = await s.books.entry("deadly", "deadly/order")
        assert entry.status is Status.FAILED
        assert entry.error is not None
        assert entry.error.code == "RETRIES_EXHAUSTED"
        assert sorted(call.delivery for call in s.calls("die")) == [1, 2, 3]
        ticks = {entry.status for entry in (await s.books.entries("ticks")).values()}
        assert ticks <= {Status.DONE, Status.PARKED}  # one that was on its way when the process died is for a person

    play(tmp_path, pair, scene)
