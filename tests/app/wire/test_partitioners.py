"""Test partitions against those of the Java client and librdkafka.

Their own code computed the table: `Utils.murmur2` and `BuiltInPartitioner` of kafka-clients 3.9.2, and the partitioner
functions of librdkafka 2.16.0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from aiokafka.partitioner import murmur2 as murmur2_of_aiokafka
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st

from queryable_app.wire.partitioners import (
    ALGORITHMS,
    SCATTER,
    Partitioning,
    algorithm_in_use,
    count_mismatches,
    murmur2,
    partition_for,
)


@dataclass(frozen=True)
class Golden:
    name: str
    key: bytes
    murmur2: int  # unsigned
    murmur2_of: tuple[int, int]  # of 12 and of 1000 partitions
    crc32_of: tuple[int, int]
    fnv1a_of: tuple[int, int]


GOLDEN = (
    Golden("empty", b"", 275646681, (9, 681), (0, 0), (3, 35)),
    Golden("one byte", b"a", 2731586172, (4, 524), (3, 907), (0, 76)),
    Golden("two bytes", b"ab", 316155434, (2, 434), (5, 885), (6, 946)),
    Golden("three bytes", b"abc", 479470107, (3, 107), (6, 578), (11, 331)),
    Golden("four bytes", b"abcd", 2971317748, (8, 100), (1, 369), (3, 763)),
    Golden("five bytes", b"abcde", 461995741, (1, 741), (9, 485), (0, 136)),
    Golden("NUL", b"\x00", 375494588, (8, 588), (1, 757), (3, 351)),
    Golden("all ones", b"\xff" * 4, 644171429, (5, 429), (3, 295), (7, 455)),
    Golden("word", b"user-42", 1459644460, (4, 460), (7, 435), (3, 499)),
    Golden("slashes", b"a/b/../c", 574993959, (3, 959), (1, 997), (0, 608)),
    Golden("umlaut", "Zürich".encode(), 2743826481, (1, 833), (6, 798), (8, 312)),
    Golden("emoji", "🦉🚀".encode(), 1831792297, (1, 297), (0, 348), (6, 510)),
    Golden("every byte", bytes(range(256)), 2346620022, (10, 374), (7, 491), (11, 563)),
    Golden("int", b"\x00\x00\x00\x2a", 1606757304, (0, 304), (6, 514), (3, 711)),
    Golden("long", b"\xff" * 8, 185950397, (5, 397), (4, 692), (1, 245)),
    Golden("uuid", b"123e4567-e89b-12d3-a456-426614174000", 210376136, (8, 136), (2, 470), (5, 1)),
    Golden("kilobyte", b"0123456789abcdef" * 64, 884551274, (2, 274), (4, 996), (7, 587)),
)
each_key = pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)


@each_key
def test_murmur2_is_javas(golden: Golden) -> None:
    """The hash of a key equals that of Java's `Utils.murmur2`, without its sign."""
    assert murmur2(golden.key) == golden.murmur2


@each_key
def test_murmur2_partitions_are_javas(golden: Golden) -> None:
    """With murmur2 a key is where Java's and librdkafka's producers put it."""
    assert (
        partition_for(golden.key, "murmur2", 12),
        partition_for(golden.key, "murmur2", 1000),
    ) == golden.murmur2_of


@each_key
def test_crc32_partitions_are_librdkafkas(golden: Golden) -> None:
    """With crc32 a key is where librdkafka's `consistent` puts it."""
    assert (
        partition_for(golden.key, "crc32", 12),
        partition_for(golden.key, "crc32", 1000),
    ) == golden.crc32_of


@each_key
def test_fnv1a_partitions_are_librdkafkas(golden: Golden) -> None:
    """With fnv1a a key is where librdkafka's `fnv1a`, which is Sarama's, puts it."""
    assert (
        partition_for(golden.key, "fnv1a", 12),
        partition_for(golden.key, "fnv1a", 1000),
    ) == golden.fnv1a_of


@pytest.mark.parametrize(
    ("partitioner", "algorithm"),
    [
        ("consistent", "crc32"),
        ("consistent_random", "crc32"),
        ("murmur2", "murmur2"),
        ("murmur2_random", "murmur2"),
        ("fnv1a", "fnv1a"),
        ("fnv1a_random", "fnv1a"),
    ],
)
def test_real_producer_agrees(partitioner: str, algorithm: str) -> None:
    """Records of librdkafka's producer arrive in the computed partitions."""
    producer = Producer(
        {"test.mock.num.brokers": 1, "partitioner": partitioner, "linger.ms": 1, "log_level": 0}
    )
    partitions = len(producer.list_topics("t", timeout=20).topics["t"].partitions)
    assert partitions > 1
    # consistent_random gives the empty key to any partition: nothing can be computed for it.
    keys = [g.key for g in GOLDEN if g.key or partitioner != "consistent_random"]
    arrived: dict[bytes, int] = {}

    def delivered(error: Any, message: Any) -> None:
        assert error is None, error
        arrived[message.key() or b""] = message.partition()

    for key in keys:
        producer.produce("t", b"v", key=key, on_delivery=delivered)
    assert producer.flush(20) == 0

    assert arrived == {key: partition_for(key, algorithm, partitions) for key in keys}


@given(st.binary(max_size=300))
def test_murmur2_agrees_with_another_implementation(key: bytes) -> None:
    """The C hash and aiokafka's pure Python one agree on any key."""
    assert murmur2(key) == murmur2_of_aiokafka(key) & 0xFFFFFFFF


@given(st.binary(max_size=64), st.sampled_from(ALGORITHMS), st.integers(1, 10_000))
def test_computed_partition_exists(key: bytes, algorithm: str, partitions: int) -> None:
    """A key's partition is always one of the topic's."""
    assert 0 <= partition_for(key, algorithm, partitions) < partitions


def test_scatter_computes_no_partition() -> None:
    """A partition for scatter, which is no algorithm, is a ValueError."""
    with pytest.raises(ValueError, match="'scatter' names no partition"):
        partition_for(b"k", SCATTER, 4)


@pytest.mark.parametrize(
    ("declared", "mismatches", "in_use"),
    [
        ("auto", (0, 0, 0), "murmur2"),
        ("auto", (0, 9, 9), "murmur2"),
        ("auto", (1, 0, 9), "crc32"),
        ("auto", (1, 0, 0), "crc32"),
        ("auto", (9, 1, 0), "fnv1a"),
        ("auto", (1, 1, 1), "scatter"),
        ("murmur2", (0, 0, 0), "murmur2"),
        ("murmur2", (1, 0, 0), "scatter"),
        ("crc32", (0, 0, 0), "crc32"),
        ("crc32", (9, 0, 9), "crc32"),
        ("crc32", (0, 1, 9), "scatter"),
        ("fnv1a", (9, 9, 0), "fnv1a"),
        ("fnv1a", (0, 0, 1), "scatter"),
        ("scatter", (0, 0, 0), "scatter"),
    ],
)
def test_algorithm_in_use(declared: str, mismatches: tuple[int, int, int], in_use: str) -> None:
    """`auto` takes the first algorithm without a mismatch; a declared one that has a mismatch gives way to scatter."""
    mismatched = {a for a, count in zip(ALGORITHMS, mismatches, strict=True) if count}
    assert algorithm_in_use(declared, mismatched) == in_use


@given(
    st.sampled_from(("auto", *ALGORITHMS, SCATTER)),
    st.lists(st.tuples(st.binary(max_size=20), st.integers(0, 11)), max_size=20),
)
def test_every_record_is_found(declared: str, records: list[tuple[bytes, int]]) -> None:
    """The algorithm in use computes every record's partition, or is scatter."""
    mismatched = {a for a in ALGORITHMS if any(partition_for(k, a, 12) != p for k, p in records)}

    in_use = algorithm_in_use(declared, mismatched)

    assert in_use == SCATTER or all(partition_for(k, in_use, 12) == p for k, p in records)


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, SCATTER])
def test_partitions_that_may_hold_a_key(algorithm: str) -> None:
    """An algorithm names one partition of a key; without one, every partition may hold it, and writes go where Java puts them."""
    partitioning = Partitioning(algorithm, 12)
    written_to = partition_for(b"user-42", "murmur2" if algorithm == SCATTER else algorithm, 12)

    assert partitioning.scattered is (algorithm == SCATTER)
    assert partitioning.for_writes.partition_of(b"user-42") == written_to
    assert partitioning.partition_of(b"user-42") == (None if algorithm == SCATTER else written_to)
    assert [*partitioning.partitions_of(b"user-42")] == (
        [*range(12)] if algorithm == SCATTER else [written_to]
    )


@given(
    st.lists(st.binary(max_size=32), max_size=8), st.sampled_from((*ALGORITHMS, SCATTER)), st.integers(1, 100)
)
def test_partition_of_each_key_is_that_of_the_key_alone(
    keys: list[bytes], algorithm: str, partitions: int
) -> None:
    """Keys that are looked up together are looked for where each would be alone."""
    partitioning = Partitioning(algorithm, partitions)

    assert [*partitioning.partitions_of_each(keys)] == [partitioning.partition_of(key) for key in keys]


def test_mismatches_are_counted_for_each_algorithm() -> None:
    """`user-42` is in partition 4 with murmur2, 7 with CRC-32 and 3 with FNV-1a."""
    counts = [count_mismatches([b"user-42", b"user-42"], partition, 12) for partition in (4, 7, 3, 1)]
    assert counts == [(0, 2, 2), (2, 0, 2), (2, 2, 0), (2, 2, 2)]
