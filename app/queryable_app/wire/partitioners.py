"""Compute the partition of a key exactly as producers do, and tell which partitions may hold it.

Strategy: three algorithms cover the existing clients. Java, aiokafka, kafka-python, franz-go and KafkaJS hash with murmur2;
librdkafka, and with it most of Python, Go, .NET, Node and PHP, with CRC-32; Sarama with FNV-1a. A mismatch is a record whose
partition is not the one that an algorithm computes. One mismatch rules the algorithm out.

The empty key is special: librdkafka's default (`consistent_random`) sends it to any partition. Such a record counts as a
mismatch of CRC-32 like any other, so that reads find it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import compress, product
from typing import Final
from zlib import crc32

from murmurhash2 import murmurhash2

ALGORITHMS: Final = ("murmur2", "crc32", "fnv1a")  # the order of MismatchCounts
SCATTER: Final = "scatter"  # no algorithm: any partition may hold a key

MismatchCounts = tuple[int, int, int]
"""The records of a mismatch, for each of ALGORITHMS."""

_MISMATCHED: Final = {
    of: frozenset(compress(ALGORITHMS, of)) for of in product((False, True), repeat=len(ALGORITHMS))
}
"""The algorithms with a mismatch, by whether each of ALGORITHMS has one: looked up after every slice."""

_KAFKA_SEED: Final = 0x9747B28C
FNV1A_START: Final = 0x811C9DC5
_FNV_PRIME: Final = 0x01000193


@dataclass(frozen=True, slots=True)
class Partitioning:
    """Answer which partitions of a topic may hold a key."""

    algorithm: str
    """The one that finds every record: one of ALGORITHMS, or SCATTER."""
    partitions: int

    @property
    def scattered(self) -> bool:
        """Whether any partition may hold a key, and several may hold the same one. Then the newest record counts."""
        return self.algorithm == SCATTER

    def partition_of(self, record_key: bytes) -> int | None:
        """Return the only partition that may hold the key; None if any may."""
        if (
            self.algorithm == "murmur2"
        ):  # nearly always: the call of another function would show in every read
            return (murmurhash2(record_key, _KAFKA_SEED) & 0x7FFFFFFF) % self.partitions
        if self.algorithm == SCATTER:
            return None
        return partition_for(record_key, self.algorithm, self.partitions)

    def partitions_of_each(self, record_keys: Sequence[bytes]) -> Sequence[int | None]:
        """Return `partition_of` for each key."""
        if self.algorithm == SCATTER:
            return [None] * len(record_keys)
        return partitions_for(record_keys, self.algorithm, self.partitions)

    def partitions_of(self, record_key: bytes) -> Sequence[int]:
        """Return every partition that may hold the key."""
        partition = self.partition_of(record_key)
        return range(self.partitions) if partition is None else (partition,)

    @property
    def for_writes(self) -> Partitioning:
        """Where to write a key; if any partition may hold it, where the Java client would write it."""
        return Partitioning(ALGORITHMS[0], self.partitions) if self.scattered else self

    @property
    def hashes_bytewise(self) -> bool:
        """Whether a long key takes long to hash: 60 ms for each MiB."""
        return self.algorithm == "fnv1a"


def murmur2(key: bytes) -> int:
    """Return Kafka's murmur2 as an unsigned 32-bit number."""
    return murmurhash2(key, _KAFKA_SEED)


def fnv1a(key: bytes) -> int:
    """Return FNV-1a as Sarama and librdkafka compute it: the hash read as a signed 32-bit number, without its sign."""
    return fnv1a_end(fnv1a_more(FNV1A_START, key))


def fnv1a_more(hashed: int, piece: bytes) -> int:
    """Go on hashing with the next piece of a key. The first one follows FNV1A_START."""
    for byte in piece:
        hashed = (hashed ^ byte) * _FNV_PRIME & 0xFFFFFFFF
    return hashed


def fnv1a_end(hashed: int) -> int:
    return hashed if hashed < 0x80000000 else 0x100000000 - hashed


def partition_for(key: bytes, algorithm: str, partitions: int) -> int:
    """Return the partition to which a producer with `algorithm`, one of ALGORITHMS, sends `key`."""
    if algorithm == "murmur2":
        return (murmurhash2(key, _KAFKA_SEED) & 0x7FFFFFFF) % partitions
    if algorithm == "crc32":
        return crc32(key) % partitions
    if algorithm == "fnv1a":
        return fnv1a(key) % partitions
    raise ValueError(f"{algorithm!r} names no partition; only {', '.join(ALGORITHMS)} do")


def partitions_for(keys: Sequence[bytes], algorithm: str, partitions: int) -> list[int]:
    """Return `partition_for` of each key."""
    if algorithm == "murmur2":
        return [(murmurhash2(key, _KAFKA_SEED) & 0x7FFFFFFF) % partitions for key in keys]
    return [partition_for(key, algorithm, partitions) for key in keys]


def algorithm_in_use(declared: str, mismatched: Collection[str]) -> str:
    """Return the algorithm by which reads look for keys: one of ALGORITHMS, or SCATTER.

    `declared` is the resource's `partitioner`. `mismatched` are those of ALGORITHMS with a mismatch in any partition. A
    declared algorithm is final: if it has a mismatch, reads scatter, and no other algorithm takes its place.
    """
    candidates = ALGORITHMS if declared == "auto" else (declared,)
    return next((a for a in ALGORITHMS if a in candidates and a not in mismatched), SCATTER)


def count_mismatches(keys: Iterable[bytes], partition: int, partitions: int) -> MismatchCounts:
    """Count the keys in `partition` that each algorithm would put elsewhere."""
    murmur2_count = crc32_count = fnv1a_count = 0
    for key in keys:
        murmur2_count += partition_for(key, "murmur2", partitions) != partition
        crc32_count += partition_for(key, "crc32", partitions) != partition
        fnv1a_count += partition_for(key, "fnv1a", partitions) != partition
    return murmur2_count, crc32_count, fnv1a_count


def sum_of_mismatches(counts: Iterable[MismatchCounts]) -> MismatchCounts:
    """Add counts up, algorithm by algorithm."""
    murmur2_count = crc32_count = fnv1a_count = 0
    for of_murmur2, of_crc32, of_fnv1a in counts:
        murmur2_count += of_murmur2
        crc32_count += of_crc32
        fnv1a_count += of_fnv1a
    return murmur2_count, crc32_count, fnv1a_count


def counts_by_algorithm(counts: MismatchCounts) -> dict[str, int]:
    """Return the counts under the names of their algorithms."""
    return dict(zip(ALGORITHMS, counts, strict=True))


def mismatched_algorithms(counts: MismatchCounts) -> frozenset[str]:
    """Return the algorithms with at least one mismatch."""
    murmur2_count, crc32_count, fnv1a_count = counts
    return _MISMATCHED[bool(murmur2_count), bool(crc32_count), bool(fnv1a_count)]
