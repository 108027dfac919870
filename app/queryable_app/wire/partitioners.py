"""Key bytes → partition, exactly as producers compute it.

Strategy: three algorithms cover the clients there are. Java, aiokafka, kafka-python, franz-go and KafkaJS
hash with murmur2; librdkafka, and with it most of Python, Go, .NET, Node and PHP, with CRC-32; Sarama with
FNV-1a. Which of them filled a topic is decided by contradiction: an algorithm that a single record went
against is not the one.

The empty key is special: librdkafka's default (`consistent_random`) sends it anywhere. Such a record
contradicts CRC-32 as any other does, so that it is found.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final
from zlib import crc32

from murmurhash2 import murmurhash2

ALGORITHMS: Final = ("murmur2", "crc32", "fnv1a")  # the order of CopyState.mismatches
SCATTER: Final = "scatter"  # no algorithm: look into every partition

_KAFKA_SEED: Final = 0x9747B28C
_FNV_OFFSET: Final = 0x811C9DC5
_FNV_PRIME: Final = 0x01000193


def murmur2(key: bytes) -> int:
    """Kafka's murmur2, as an unsigned 32-bit number."""
    return murmurhash2(key, _KAFKA_SEED)


def fnv1a(key: bytes) -> int:
    """FNV-1a as Sarama and librdkafka have it: the hash read as a signed 32-bit number, without its sign."""
    hashed = _FNV_OFFSET
    for byte in key:
        hashed = (hashed ^ byte) * _FNV_PRIME & 0xFFFFFFFF
    return hashed if hashed < 0x80000000 else 0x100000000 - hashed


def partition_for(key: bytes, algorithm: str, partitions: int) -> int:
    """Where a producer that uses `algorithm`, one of ALGORITHMS, sends `key`."""
    if algorithm == "murmur2":
        return (murmurhash2(key, _KAFKA_SEED) & 0x7FFFFFFF) % partitions
    if algorithm == "crc32":
        return crc32(key) % partitions
    if algorithm == "fnv1a":
        return fnv1a(key) % partitions
    raise ValueError(f"{algorithm!r} names no partition; only {', '.join(ALGORITHMS)} do")


def algorithm_in_use(declared: str, mismatched: Collection[str]) -> str:
    """What point reads go by: one of ALGORITHMS, or SCATTER.

    `declared` is the resource's `partitioner`; `mismatched` are those of ALGORITHMS that a record went against, in any
    partition. A declared algorithm that is contradicted is not replaced by another one: keys found so far must stay
    found.
    """
    candidates = ALGORITHMS if declared == "auto" else (declared,)
    return next((a for a in ALGORITHMS if a in candidates and a not in mismatched), SCATTER)
