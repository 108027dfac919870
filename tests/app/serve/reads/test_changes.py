"""The change feed gives every change of every partition, wherever its replicas are and whatever becomes of them."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from time import time_ns
from typing import Any

import httpx
import pytest

from queryable_app.client import AsyncQueryableTopic, Change, QueryableTopic
from queryable_app.serve.feed.logged_changes import CHANGES_RETENTION_MS
from queryable_app.serve.store.replica_changes import log_start, remove_old_changes
from queryable_app.wire.partitioners import count_mismatches, partition_for
from tests.support.node import put, slice_payload
from tests.support.node_cluster import NodeCluster, three_nodes
from tests.support.served import Served
from tests.support.waiting import eventually

NDJSON = {"accept": "application/x-ndjson"}
PARTITIONS = 6
DAY_MS = CHANGES_RETENTION_MS


def now_ms() -> int:
    return time_ns() // 1_000_000


@dataclass
class Topic:
    """A topic whose records every serving replica applies at once."""

    cluster: NodeCluster
    ends: dict[int, int] = field(default_factory=dict)
    stopped: set[int] = field(default_factory=set)

    def send(self, key: str, value: str | None, timestamp_ms: int | None = None) -> tuple[int, int]:
        raw = key.encode()
        where = partition_for(raw, "murmur2", PARTITIONS)
        offset = self.ends.get(where, 0)
        self.ends[where] = offset + 1
        row = put(offset, raw, None if value is None else value.encode(), timestamp_ms or now_ms())
        murmur2, crc32, fnv1a = count_mismatches([raw], where, PARTITIONS)
        mismatches = {"mismatches_murmur2": murmur2, "mismatches_crc32": crc32, "mismatches_fnv1a": fnv1a}
        payload = slice_payload(row, partition=where, **mismatches)
        for ordinal in self.cluster.placement.serving[where]:
            if ordinal not in self.stopped:
                node = self.cluster.nodes[ordinal]
                node.on_loop(partial(node.node.slices.apply, payload))
        return where, offset


def page(node: Served, start: str, wait_ms: int = 0, **more: str) -> tuple[list[dict[str, Any]], str]:
    """Return the changes of a page, and where the next one begins."""
    with node.client() as client:
        parameters = {"from": start, "wait-ms": str(wait_ms), **more}
        answer = client.get("/v1/changes", params=parameters, headers=NDJSON)
    assert answer.status_code == 200, answer.text
    lines = [json.loads(line) for line in answer.text.splitlines()]
    return lines[:-1], lines[-1]["next"]


class Events:
    """Read a stream of events in a thread."""

    def __init__(self, url: str, headers: dict[str, str], **parameters: str) -> None:
        self.last_id = ""
        self._events: SimpleQueue[tuple[str, dict[str, Any]] | None] = SimpleQueue()
        self._client = httpx.Client(timeout=30)
        self._request = self._client.build_request(
            "GET", f"{url}/v1/changes", params=parameters, headers=headers
        )
        self._answer = self._client.send(self._request, stream=True)
        assert self._answer.status_code == 200
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        kind = "change"
        try:
            for line in self._answer.iter_lines():
                name, _, text = line.partition(": ")
                if name == "event":
                    kind = text
                elif name == "data":
                    self._events.put((kind, json.loads(text)))
                    kind = "change"
                elif name == "id":
                    self.last_id = text
        except httpx.HTTPError:
            pass
        self._events.put(None)

    def take(self, count: int) -> list[dict[str, Any]]:
        """Return the next events. Fail if they do not come."""
        taken: list[dict[str, Any]] = []
        while len(taken) < count:
            event = self._events.get(timeout=15)
            assert event is not None, "the stream ended"
            taken.append(event[1])
        return taken

    def ends(self) -> bool:
        try:
            while self._events.get(timeout=15) is not None:
                pass
        except Empty:
            return False
        return True

    def close(self) -> None:
        connection: socket.socket = self._answer.extensions["network_stream"].get_extra_info("socket")
        with suppress(OSError):  # the node has closed it
            connection.shutdown(socket.SHUT_RDWR)  # a close would wait for the thread that reads
        self._reader.join(15)
        self._answer.close()
        self._client.close()


@contextmanager
def events(node: Served, last_id: str = "", **parameters: str) -> Iterator[Events]:
    headers = {"last-event-id": last_id} if last_id else {}
    stream = Events(node.url, headers, **parameters)
    try:
        yield stream
    finally:
        stream.close()


def has_heartbeats(node: Served) -> bool:
    return len(node.node.peers.last_heartbeats) == 2


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[NodeCluster]:
    with three_nodes(tmp_path, 2, view={"changes": True}) as started:
        for node in started.nodes:
            eventually("heartbeats", partial(has_heartbeats, node))
        yield started


@pytest.fixture
def topic(cluster: NodeCluster) -> Topic:
    return Topic(cluster)


def values(changes: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return the values of each key, in the order of the changes."""
    found: dict[str, list[Any]] = {}
    for change in changes:
        found.setdefault(change["key"], []).append(change["value"])
    return found


def test_feed_has_every_change_of_all_nodes(cluster: NodeCluster, topic: Topic) -> None:
    """A client of any node gets each change once, those of a key in order, deletes too."""
    _, start = page(cluster.nodes[0], "latest")
    for n in range(40):
        topic.send(f"k{n % 10}", str(n))
    topic.send("k3", None)

    for node in cluster.nodes:
        changes, following = page(node, start)
        assert len(changes) == 41
        assert values(changes)["k1"] == [1, 11, 21, 31]
        assert values(changes)["k3"] == [3, 13, 23, 33, None]
        assert [change["key"] for change in changes if change.get("deleted")] == ["k3"]
        assert page(node, following)[0] == []


def test_stream_gets_changes_as_they_happen(cluster: NodeCluster, topic: Topic) -> None:
    """A stream of events has changes of all partitions, and ends with an id that another node takes."""
    with events(cluster.nodes[0]) as stream:
        eventually("the first id", lambda: stream.last_id)
        for n in range(30):
            topic.send(f"k{n}", str(n))
        assert sorted(change["value"] for change in stream.take(30)) == list(range(30))
        last_id = stream.last_id
        topic.send("k2", "200")
        assert stream.take(1)[0]["value"] == 200
    changes, _ = page(cluster.nodes[1], last_id)
    assert values(changes)["k2"][-1] == 200


def test_stream_follows_one_key_or_a_prefix(cluster: NodeCluster, topic: Topic) -> None:
    """With `key` a client gets the changes of that key only, with `prefix` those of keys that begin so."""
    with events(cluster.nodes[0], key="a/1") as one, events(cluster.nodes[2], prefix="a/") as some:
        eventually("the first ids", lambda: one.last_id and some.last_id)
        for key in ("a/1", "b/1", "a/2", "b/2", "a/1"):
            topic.send(key, f'"{key}"')
        assert [change["key"] for change in one.take(2)] == ["a/1", "a/1"]
        assert sorted(change["key"] for change in some.take(3)) == ["a/1", "a/1", "a/2"]


def test_stream_survives_the_loss_of_a_node(cluster: NodeCluster, topic: Topic) -> None:
    """The node of the client goes on with other replicas when one of its sources is lost, and misses nothing."""
    with events(cluster.nodes[0]) as stream:
        eventually("the first id", lambda: stream.last_id)
        for n in range(20):
            topic.send(f"k{n}", "1")
        stream.take(20)
        cluster.stop(1)
        topic.stopped.add(1)
        for n in range(20):
            topic.send(f"k{n}", "2")
        assert sorted(change["key"] for change in stream.take(20)) == sorted(f"k{n}" for n in range(20))


def test_client_behind_the_log_gets_the_last_change_of_each_key(cluster: NodeCluster, topic: Topic) -> None:
    """An id from before the retention is answered with what the rows have, and the answer says for which offsets."""
    for n in range(30):
        topic.send(f"k{n % 3}", str(n))
    for node in cluster.nodes:
        for replica in node.node.replicas.by_partition.values():
            node.on_loop(partial(remove_old_changes, replica.store, now_ms() + 1))

    changes, following = page(cluster.nodes[0], "start")

    compacted = [change["compacted"] for change in changes if "compacted" in change]
    assert {each["partition"]: (each["from"], each["until"]) for each in compacted} == {
        where: (0, end) for where, end in topic.ends.items()
    }
    assert values([change for change in changes if "key" in change]) == {"k0": [27], "k1": [28], "k2": [29]}
    topic.send("k1", "31")
    assert values(page(cluster.nodes[1], following)[0]) == {"k1": [31]}


def test_client_catches_up_over_pages_of_several_nodes(cluster: NodeCluster, topic: Topic) -> None:
    """Rows that do not fit into one page follow on the next one, from whichever node it comes."""
    for n in range(3000):
        topic.send(f"k{n}", str(n), 1)  # older than the log retains
    found: list[dict[str, Any]] = []
    following, pages = "start", 0
    while True:
        changes, following = page(cluster.nodes[pages % 3], following)
        if not changes:
            break
        pages += 1
        found += [change for change in changes if "key" in change]
    assert pages > 2
    assert sorted(change["value"] for change in found) == list(range(3000))


def test_old_records_are_not_logged(cluster: NodeCluster, topic: Topic) -> None:
    """A replica that hydrates logs nothing that is older than the retention, until a newer change comes."""
    topic.send("k", "1", now_ms() - DAY_MS - 60_000)
    topic.send("k", "2", now_ms() - DAY_MS - 60_000)
    where = next(iter(topic.ends))
    ordinal = cluster.placement.serving[where][0]
    store = cluster.nodes[ordinal].node.replicas.by_partition[where].store
    assert cluster.nodes[ordinal].on_loop(lambda: (log_start(store), store.has_change_log())) == (2, False)
    topic.send("k", "3")
    topic.send("k", "4", 1)
    assert cluster.nodes[ordinal].on_loop(lambda: log_start(store)) == 2
    changes, _ = page(cluster.nodes[0], "start")
    assert changes[0] == {"compacted": {"partition": where, "from": 0, "until": 4}}
    assert values(changes[1:]) == {"k": [4]}


def test_metrics_count_clients_and_changes(cluster: NodeCluster, topic: Topic) -> None:
    """The metrics have the clients that follow, the changes that they got, and how often rows stood for changes."""
    node = cluster.nodes[0]
    for n in range(5):
        topic.send("k", str(n))
    where = next(iter(topic.ends))
    for each in cluster.nodes:
        if (replica := each.node.replicas.by_partition.get(where)) is not None:
            each.on_loop(partial(remove_old_changes, replica.store, now_ms() + 1))
    with events(node) as stream:
        eventually("the first id", lambda: stream.last_id)
        topic.send("k", "5")
        stream.take(1)
        page(node, "start")
        with node.client() as client:
            lines = client.get("/metrics").text.splitlines()
    assert {line for line in lines if line.startswith("qt_change")} == {
        "qt_change_clients 1.0",
        "qt_changes_sent_total 2.0",
        "qt_changes_compacted_total 1.0",
    }


def test_draining_node_ends_its_streams(cluster: NodeCluster) -> None:
    """A client of a node that drains goes on at another node: its stream ends at once."""
    node = cluster.nodes[0]
    with events(node) as stream:
        eventually("the first id", lambda: stream.last_id)
        node.on_loop(node.node.drain)
        assert stream.ends()


def test_malformed_request_is_refused(cluster: NodeCluster) -> None:
    """A wrong parameter is named."""
    requests: list[tuple[dict[str, str], dict[str, str], str]] = [
        ({"from": "yesterday"}, {}, "from"),
        ({}, {"last-event-id": "AAAA"}, "Last-Event-ID"),
        ({"wait-ms": "99999999"}, NDJSON, "wait-ms"),
        ({"wait-ms": "5"}, {}, "wait-ms"),
        ({"key": "a", "prefix": "b"}, {}, "prefix"),
        ({"where": "name ="}, {}, "where"),
        ({"limit": "5"}, {}, "limit"),
    ]
    with cluster.nodes[0].client() as client:
        for parameters, headers, named in requests:
            answer = client.get("/v1/changes", params=parameters, headers=headers)
            assert (answer.status_code, answer.json()["reason"]) == (400, "invalid_request"), parameters
            assert named in answer.json()["detail"], answer.text


def test_idle_clients_do_not_count_as_requests(cluster: NodeCluster) -> None:
    """Clients of the feed leave the limit on requests to the reads."""
    node = cluster.nodes[0]
    node.node.read_settings = replace(node.node.read_settings, concurrent_max=1)
    with events(node) as one, events(node) as two, node.client() as client:
        eventually("the first ids", lambda: one.last_id and two.last_id)
        assert client.get("/v1/count").status_code == 200


def test_conditions_leave_deletions_in(cluster: NodeCluster, topic: Topic) -> None:
    """With `where` a client gets the changes whose value matches, and every deletion."""
    _, start = page(cluster.nodes[0], "latest")
    for key, value in (("a", '{"n":1}'), ("a", '{"n":9}'), ("b", '{"n":1}'), ("b", None)):
        topic.send(key, value)
    changes, _ = page(cluster.nodes[0], start, where="n > 5")
    assert values(changes) == {"a": [{"n": 9}], "b": [None]}


def test_changes_have_the_named_fields(cluster: NodeCluster, topic: Topic) -> None:
    """With `fields` a change has these fields of its value."""
    topic.send("a", '{"n": 1, "m": 2}')
    assert values(page(cluster.nodes[1], "start", fields="m")[0]) == {"a": [{"m": 2}]}


def test_client_follows_over_the_loss_of_its_node(cluster: NodeCluster, topic: Topic) -> None:
    """The Python client goes on at another node by itself, and a new iterator continues at a position."""
    with QueryableTopic(cluster.addresses) as client:
        changes = client.changes(start="start")
        for n in range(20):
            topic.send(f"k{n}", str(n))
        assert sorted(next(changes).value for _ in range(20)) == list(range(20))
        cluster.stop(2)
        topic.stopped.add(2)
        topic.send("k1", "100")
        change = next(changes)
        assert (change.key, change.value, change.deleted, change.compacted) == ("k1", 100, False, False)
        topic.send("k1", None)
        again = client.changes(start=changes.position)
        found = [next(again)]
        while not found[-1].deleted:
            found.append(next(again))
        assert (found[-1].key, found[-1].value) == ("k1", None)


async def _first_of(addresses: list[str], count: int) -> list[Change]:
    async with AsyncQueryableTopic(addresses) as client:
        changes = client.changes(start="start", prefix="k")
        return [await anext(changes) for _ in range(count)]


def test_asyncio_client_follows_a_prefix(cluster: NodeCluster, topic: Topic) -> None:
    """The client for asyncio iterates over the changes of keys with a prefix."""
    for key in ("k1", "other", "k2"):
        topic.send(key, f'"{key}"')
    found = asyncio.run(_first_of(cluster.addresses, 2))
    assert sorted(str(change.key) for change in found) == ["k1", "k2"]


def test_command_prints_changes_until_it_is_interrupted(cluster: NodeCluster, topic: Topic) -> None:
    """`qtopic watch` prints a change on each line, and on Ctrl-C the position where the next one continues."""
    topic.send("k1", '{"name":"Ada"}')
    command = [
        sys.executable,
        "-m",
        "queryable_app.cli",
        "watch",
        "--url",
        cluster.addresses[0],
        "--from",
        "start",
    ]
    watching = subprocess.Popen(
        [*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert watching.stdout is not None
    line = json.loads(watching.stdout.readline())
    assert (line["key"], line["value"], line["deleted"]) == ("k1", {"name": "Ada"}, False)
    watching.send_signal(signal.SIGINT)
    _, errors = watching.communicate(timeout=20)
    assert "--from" in errors


def test_view_without_changes_has_no_feed(tmp_path: Path) -> None:
    """The answer says which field makes one."""
    with three_nodes(tmp_path, 1) as cluster, cluster.nodes[0].client() as client:
        answer = client.get("/v1/changes")
    assert (answer.status_code, answer.json()["reason"]) == (404, "no_such_resource")
    assert "spec.view.changes" in answer.json()["advice"]
