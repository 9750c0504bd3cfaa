"""The partitioner against vectors of Kafka's own tests, and against the partitions a Java client chooses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.wire.partitioner import murmur2, partition_of

KAFKA = {  # org.apache.kafka.common.utils.UtilsTest, signed as Java prints them
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "hashed"), KAFKA.items(), ids=lambda value: repr(value)[:12])
def test_f16_the_vectors_of_kafka(key, hashed):
    assert murmur2(key) == hashed % 2**32
    assert partition_of(key, 12) == (hashed & 0x7FFFFFFF) % 12


JAVA = [  # key, Utils.murmur2, and BuiltInPartitioner.partitionForKey for 12 and 100, run with kafka-clients 4.3.1
    (b"", 275646681, 9, 81),
    (b"a", -1563381124, 4, 24),
    (b"ab", 316155434, 2, 34),
    (b"abc", 479470107, 3, 7),
    (b"abcd", -1323649548, 8, 0),
    (b"abcde", 461995741, 1, 41),
    (b"abcdef", 1870650108, 0, 8),
    (b"abcdefg", -346467175, 1, 73),
    (b"abcdefgh", -955427363, 9, 85),
    (b"order-1", 1221710326, 10, 26),
    (b"o-1001", -808995055, 1, 93),
    ("run 7/\u03b1@\u03b2".encode(), 175742008, 4, 8),
    ("ключ".encode(), 2122343024, 8, 24),
    ("订单-一〇〇一".encode(), -59368196, 0, 52),
    ("日本語".encode(), 1431860170, 10, 70),
    ("naïve".encode(), 452640081, 9, 81),
    ("🚀".encode(), 761778625, 1, 25),
    ("🚀🚀x".encode(), 1863589495, 7, 95),
    ("\u00e9".encode(), 186971271, 3, 71),
    ("e\u0301".encode(), -1650544357, 7, 91),
    (("x" * 200).encode(), -1289689315, 1, 33),
    (("\u9577" * 66).encode(), -781293206, 6, 42),
    (("0123456789" * 13 + "ab").encode(), -864028686, 2, 62),
    (b"\xff\xfe\x00\x80\x7f", 998457672, 0, 72),
]


@pytest.mark.parametrize(("key", "hashed", "of_12", "of_100"), JAVA, ids=lambda value: repr(value)[:16])
def test_f16_the_vectors_of_the_java_client(key, hashed, of_12, of_100):
    assert murmur2(key) == hashed % 2**32
    assert partition_of(key, 12) == of_12
    assert partition_of(key, 100) == of_100


def java(key: bytes) -> int:
    """Kafka's Utils.murmur2, line by line, with the arithmetic of Java's int."""

    def int32(number: int) -> int:
        return (number + 2**31) % 2**32 - 2**31

    def shift(number: int, by: int) -> int:
        return number % 2**32 >> by

    m, length = 0x5BD1E995, len(key)
    h = int32(0x9747B28C ^ length)
    for i in range(length // 4):
        b = key[i * 4 : i * 4 + 4]
        k = int32((b[0] & 0xFF) + ((b[1] & 0xFF) << 8) + ((b[2] & 0xFF) << 16) + ((b[3] & 0xFF) << 24))
        k = int32(k * m)
        k ^= shift(k, 24)
        k = int32(k * m)
        h = int32(int32(h * m) ^ k)
    rest = key[length & ~3 :]
    if len(rest) == 3:
        h = int32(h ^ (rest[2] & 0xFF) << 16)
    if len(rest) >= 2:
        h = int32(h ^ (rest[1] & 0xFF) << 8)
    if rest:
        h = int32(h ^ rest[0] & 0xFF)
        h = int32(h * m)
    h = int32(h ^ shift(h, 13))
    h = int32(h * m)
    return int32(h ^ shift(h, 15))


@given(key=st.binary(max_size=50))
def test_f16_every_key_hashes_as_in_java(key):
    assert murmur2(key) == java(key) % 2**32


@given(key=st.text(min_size=1, max_size=50), partitions=st.integers(1, 200))
def test_f16_any_run_id_has_one_partition_within_the_topic(key, partitions):
    data = key.encode()
    assert partition_of(data, partitions) == (java(data) & 0x7FFFFFFF) % partitions
    assert 0 <= partition_of(data, partitions) < partitions
