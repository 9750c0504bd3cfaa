"""Leases, messages of the outbox, dead letters, and headers."""

from __future__ import annotations

import io

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.errors import WireError
from streams.wire.headers import headers_of, read_headers
from streams.wire.messages import (
    DeadLetter,
    EffectMessage,
    Lease,
    decode_dead_letter,
    decode_effect,
    decode_lease,
    encode_dead_letter,
    encode_effect,
    encode_lease,
)
from streams.wire.schemas import packed_schemas

LEASE = Lease(3, "host-1", 7, ("app-w1-3", "app-w1-4"), None, 120, 88, "t0pic", 1_790_000_000_000_000, pid=1)
EFFECT = EffectMessage("r1@5/mail.1", "r1", "mail", b'{"to":1}', "r1@5/mail.1", 7, 1_790_000_000_000_000, "order", 2)
LETTER = DeadLetter("app.commands", 3, 120, "expected JSON", b"r1", b"\xff", 1_790_000_000_000_000)
RECORD_BYTES_MAX = 900_000  # as in log.port, which this room may not import


def test_records_come_back_the_same():
    full = LEASE._replace(address="10.0.0.1:80", released=True, host="h")
    for lease in (LEASE, full, LEASE._replace(transactional_ids=())):
        assert decode_lease(encode_lease(lease)) == lease
    for effect in (EFFECT, EFFECT._replace(op="mail.1", attempt=2, payload=b"")):
        assert decode_effect(encode_effect(effect)) == effect
    for letter in (
        LETTER,
        LETTER._replace(key=None, value=None),
        LETTER._replace(key=b"", value=b"", code="KEY_INVALID"),
    ):
        assert decode_dead_letter(encode_dead_letter(letter)) == letter


def test_each_is_what_another_language_reads_with_the_schema():
    for name, data in (("lease", encode_lease(LEASE)), ("effect", encode_effect(EFFECT))):
        found = fastavro.schemaless_reader(io.BytesIO(data[10:]), packed_schemas().newest(name).definition, None)
        assert tuple(found) == (LEASE if name == "lease" else EFFECT)._fields


@pytest.mark.parametrize("decode", [decode_lease, decode_effect, decode_dead_letter])
@pytest.mark.parametrize("data", [b"", b"{}", encode_lease(LEASE)[:20], encode_effect(EFFECT) + b"x"])
def test_garbage_is_refused(decode, data):
    with pytest.raises(WireError):
        decode(data)


def test_a_dead_letter_tells_null_from_empty():
    headers = (("trace", None), ("trace", b""), ("trace", b"\xff"))
    found = decode_dead_letter(encode_dead_letter(LETTER._replace(headers=headers, value=None, key=b"")))
    assert found.headers == headers
    assert (found.key, found.value, found.cut) == (b"", None, False)


@pytest.mark.parametrize(
    ("key", "value", "headers"),
    [
        (b"k", b"x" * 1_000_000, ()),
        (b"k" * 1_000_000, b"x", ()),
        (b"k" * 1_000_000, b"x" * 1_000_000, (("h", b"x" * 1_000_000),)),
        (None, None, (("h" * 1_000_000, None),)),
        (None, b"x" * 849_000, tuple(("h", b"") for _ in range(1_000))),
    ],
)
def test_a_dead_letter_fits_into_a_record_whatever_was_sent(key, value, headers):
    data = encode_dead_letter(LETTER._replace(key=key, value=value, headers=headers))
    found = decode_dead_letter(data)
    assert found.cut
    assert len(data) + len(found.key or b"") <= RECORD_BYTES_MAX
    assert (key or b"").startswith(found.key or b"")
    assert (value or b"").startswith(found.value or b"")
    assert (found.key is None, found.value is None) == (key is None, value is None)


def test_a_dead_letter_is_whole_where_it_can_be():
    letter = LETTER._replace(key=b"k" * 200, value=b"x" * 849_000)
    assert decode_dead_letter(encode_dead_letter(letter)) == letter


def test_f23_the_reason_may_quote_anything():
    found = decode_dead_letter(encode_dead_letter(LETTER._replace(reason="got \ud800" + "汉" * 100_000)))
    assert found.reason.startswith("got \\ud800汉")
    assert len(found.reason) < 5_000


# --- headers --------------------------------------------------------------------------------------------------------


def test_headers_tell_other_languages_what_they_have_before_them():
    assert dict(headers_of("effect", packed_schemas().newest("effect").prefix)) == {
        "content-type": b"application/vnd.apache.avro.single-object",
        "streams-schema": b"effect-1",
    }


def test_f15_headers_may_be_null_repeated_or_no_utf8():
    assert read_headers([("a", b"1"), ("a", b"2"), ("b", None), ("c", b"\xff\xc3"), ("d", b""), ("", b"e")]) == {
        "a": "2",
        "c": "\\xff\\xc3",
        "d": "",
        "": "e",
    }
    assert read_headers([("a", b"1"), ("a", None)]) == {}


@given(st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=5))))
def test_no_headers_are_too_strange(headers):
    assert all(isinstance(value, str) for value in read_headers(headers).values())
