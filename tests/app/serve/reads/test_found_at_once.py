"""Test the shortest way of a plain read against the way of every other read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from queryable_app.errors import Failure, Reason
from queryable_app.serve.base.answer_reservation import SMALL_ANSWER_BYTES
from queryable_app.serve.node import Node
from queryable_app.serve.reads import plain_reads, point
from queryable_app.serve.reads.point import Reads
from queryable_app.serve.reads.replica_progress import progress_of
from tests.support.node import open_node, put, slice_payload

STATUS = b"HTTP/1.1 200 OK\r\n"
SERVER = b"date: today\r\n"
FAR_MS = 2**42
NOW_MS = 1_000_000


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the clock, so that a busy machine makes no cache entry old."""
    for module in (plain_reads, point):
        monkeypatch.setattr(module, "monotonic_ms", lambda: NOW_MS)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = open_node(tmp_path)
    rows = (
        put(0, b"a", b'{"n":1}', timestamp_ms=1234),
        put(1, b"deleted", None),
        put(2, b"expired", b"1", expiry_ms=1),
        put(3, b"expires", b"2", expiry_ms=FAR_MS),
        put(4, b"large", b'"' + b"x" * SMALL_ANSWER_BYTES + b'"'),
    )
    node.slices.apply(slice_payload(*rows))
    node.replicas.by_partition[0].note_end_offset(NOW_MS, 5)
    yield node
    node.replicas.close()


def opened(node: Node) -> Reads:
    """Return reads with the server's header lines."""
    reads = Reads(node)
    reads.plain.set_server_lines(SERVER)
    return reads


def warmed(node: Node) -> Reads:
    """Return reads whose cache has the replica's entry."""
    reads = opened(node)
    reads.point(b"a", reads.defaults)
    return reads


def at_once(reads: Reads, key: bytes) -> bytes | Failure | None:
    """Return what a plain read of the key alone finds."""
    (answer,) = reads.plain.found_at_once([key])
    return answer


def in_full(reads: Reads, key: bytes) -> bytes:
    answer = reads.point(reads.node.codec.from_url_bytes(key), reads.defaults)
    assert answer.status == 200
    return STATUS + SERVER + answer.headers + b"\r\n" + answer.body


@pytest.mark.parametrize("key", [b"a", b"expires"])
def test_answer_is_the_same_as_that_of_every_other_read(node: Node, key: bytes) -> None:
    """A live row's answer has the bytes, header by header, that the general way sends."""
    reads = warmed(node)

    assert at_once(reads, key) == in_full(reads, key)


@pytest.mark.parametrize(
    ("key_format", "value_format", "key", "record_key", "stored"),
    [
        ("int", "json", b"-7", (-7).to_bytes(4, "big", signed=True), b"[1]"),
        ("string", "string", b"k", b"k", "grün".encode()),
        (
            "uuid",
            "bytes",
            b"123E4567-e89b-12d3-a456-426614174000",
            b"123e4567-e89b-12d3-a456-426614174000",
            b"\0",
        ),
        ("string", "long", b"k", b"k", (5).to_bytes(8, "big")),
        ('"string"', "json", b"a", b"\0\0\0\0\x07\x02a", b"[1]"),
        ('"long"', "json", b"-7", b"\0\0\0\0\x07\x0d", b"[1]"),
    ],
)
def test_formats_are_converted(
    tmp_path: Path, key_format: str, value_format: str, key: bytes, record_key: bytes, stored: bytes
) -> None:
    """Keys and values of every format are read and shown as by the general way."""
    key_spec: dict[str, Any] = {"format": key_format}
    if key_format.startswith('"'):
        key_spec = {"format": "avro", "schemaFrom": {"inline": key_format, "schemaId": 7}}
    node = open_node(tmp_path, key=key_spec, value={"format": value_format})
    node.slices.apply(slice_payload(put(0, node.codec.to_disk(record_key), stored)))
    node.replicas.by_partition[0].note_end_offset(NOW_MS, 1)
    reads = opened(node)
    expected = in_full(reads, key)

    assert at_once(reads, key) == expected
    node.replicas.close()


@pytest.mark.parametrize("key", [b"missing", b"deleted", b"expired", b"large"])
def test_other_rows_are_left_to_the_general_way(node: Node, key: bytes) -> None:
    """A key without a live row, and a large one, is not answered, and not counted."""
    reads = warmed(node)
    found = node.counters.keys_found

    assert at_once(reads, key) is None
    assert node.counters.keys_found == found


def test_key_that_its_format_refuses_is_left(tmp_path: Path) -> None:
    """A path that is no key of the format is left to the way that says so."""
    node = open_node(tmp_path, key={"format": "int"})

    assert at_once(Reads(node), b"seven") is None
    node.replicas.close()


def test_state_after_a_slice_is_shown(node: Node) -> None:
    """After a slice the position in the headers is the new one, as in the answer of every other read."""
    reads = warmed(node)
    node.slices.apply(slice_payload(put(5, b"b", b"2")))

    answer = at_once(reads, b"a")

    assert isinstance(answer, bytes)
    assert b"qt-position: 0:6\r\n" in answer
    assert answer == in_full(reads, b"a")


def test_moment_later_has_its_own_lag(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the shared headers are old, the lag in them is computed again."""
    reads = warmed(node)
    for module in (plain_reads, point):
        monkeypatch.setattr(module, "monotonic_ms", lambda: NOW_MS + 60)

    answer = at_once(reads, b"a")

    assert isinstance(answer, bytes)
    (lag,) = re.findall(rb"qt-lag-ms: (\d+)\r\n", answer)
    assert int(lag) >= 60
    assert answer == in_full(reads, b"a")


def test_lines_of_one_replica_are_those_of_several(node: Node) -> None:
    """The header lines of a replica alone are those of the reads that look at several, of which it is the only one."""
    answers, replica = Reads(node).answers, node.replicas.by_partition[0]

    expected = answers.shared_lines((progress_of(replica, NOW_MS + 7),), 0)

    assert answers.lines_of_one(replica, NOW_MS + 7) == expected


def test_first_read_of_a_replica_is_answered(node: Node) -> None:
    """A read needs no earlier one of its replica."""
    reads = opened(node)

    assert at_once(reads, b"a") == in_full(reads, b"a")


def test_replica_that_may_not_answer_is_left(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica beyond the resource's bound on the lag answers nothing."""
    node.apply_read_settings(replace(node.read_settings, max_lag_ms=20))
    reads = warmed(node)
    for module in (plain_reads, point):
        monkeypatch.setattr(module, "monotonic_ms", lambda: NOW_MS + 30)

    answers = [at_once(reads, b"a") for _ in range(2)]  # with old shared headers, and with new ones

    assert answers == [None, None]
    with pytest.raises(Failure):
        reads.point(b"a", reads.defaults)


def test_released_replica_is_not_read(node: Node) -> None:
    """A key of a replica that the node hosts no more has the failure that another node answers, however young the shared
    headers are."""
    reads = warmed(node)
    replica = node.replicas.by_partition.pop(0)

    failure = at_once(reads, b"a")

    assert isinstance(failure, Failure)
    assert failure.reason is Reason.WRONG_OWNER
    node.replicas.by_partition[0] = replica


def test_detached_store_is_not_read(node: Node) -> None:
    """A replica whose store was taken away answers nothing: that store is closed soon."""
    reads = warmed(node)
    replica = node.replicas.by_partition[0]
    store = replica.detach_store("is being copied")
    assert store is not None

    assert at_once(reads, b"a") is None
    replica.open(store)


def test_scattered_keys_are_left(node: Node) -> None:
    """If any partition may hold a key, one replica alone decides nothing."""
    reads = warmed(node)
    node.replicas.partitioner.note_mismatched({"murmur2", "crc32", "fnv1a"})

    assert at_once(reads, b"a") is None


def test_drain_and_strong_reads_end_it(node: Node) -> None:
    """While plain reads wait for Kafka, or connections are to be closed, no read is answered at once."""
    reads = warmed(node)
    states = [reads.plain.answers_at_once]

    for consistency in ("strong", "bounded"):
        node.apply_read_settings(replace(node.read_settings, consistency=consistency))
        states.append(reads.plain.answers_at_once)
        assert (at_once(reads, b"a") is None) == (consistency == "strong")
    node.drain()

    assert [*states, reads.plain.answers_at_once] == [True, False, True, False]
    assert at_once(reads, b"a") is None


def test_each_key_of_many_has_its_own_answer(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that are looked up together have the answers that each has alone; a defect of one concerns no other."""

    def render(value: bytes) -> bytes:
        if value == b"2":
            raise ValueError
        return value

    monkeypatch.setattr(node, "render", render)
    reads = warmed(node)
    found = node.counters.keys_found

    answers = reads.plain.found_at_once([b"missing", b"a", b"expires", b"a", b"deleted"])

    assert node.counters.keys_found == found + 2
    assert answers == [None, in_full(reads, b"a"), None, in_full(reads, b"a"), None]


def test_new_server_lines_are_in_the_next_answer(node: Node) -> None:
    """When the server's header lines change, such as its date, the answers have the new ones at once."""
    reads = warmed(node)
    before = at_once(reads, b"a")
    reads.plain.set_server_lines(b"date: tomorrow\r\n")

    assert isinstance(before, bytes)
    assert at_once(reads, b"a") == before.replace(SERVER, b"date: tomorrow\r\n")


def test_key_of_another_node_is_known_without_a_read(node: Node) -> None:
    """A key that only other nodes host has the failure of every other read, and a key of this node has none."""
    reads = warmed(node)
    assert reads.plain.hosted_elsewhere(b"a") is None
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(node.replicas.by_partition, 0)
        failure = reads.plain.hosted_elsewhere(b"a")
        with pytest.raises(Failure) as raised:
            reads.point(b"a", reads.defaults)
    assert failure is not None
    assert failure.problem() == raised.value.problem()
