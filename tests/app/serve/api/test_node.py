"""Test what a node reports on itself, and what holds for every request."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from queryable_app.errors import Reason
from queryable_app.serve.reads.point import Reads
from queryable_app.serve.store.replica import Replica
from queryable_app.wire.disk_format import ReplicaState
from tests.support.served import Served, served
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("node")) as running:
        running.put(b"a", b"1")
        yield running


def test_status_describes_every_replica(http: httpx.Client) -> None:
    """Status has positions, lag, progress and counters of every replica, and the state of ingest."""
    status = http.get("/v1/status").json()

    assert (status["applicationId"], status["topic"], status["ready"]) == ("tests.users.r1", "users", True)
    assert [p["partition"] for p in status["partitions"]] == [0, 1]
    one = next(p for p in status["partitions"] if p["rows"] == 1)
    assert {k: one[k] for k in ("role", "position", "end", "lagRecords", "complete", "progress", "failed", "bad")} == {
        "role": "active", "position": 1, "end": 1, "lagRecords": 0, "complete": True, "progress": 1.0, "failed": None,
        "bad": 0}  # fmt: skip
    assert status["ingest"]["state"] == "absent"


def test_placement_has_its_epoch_as_entity_tag(node: Served, http: httpx.Client) -> None:
    """A client that has the epoch gets 304."""
    answer = http.get("/v1/placement")

    assert answer.json()["partitions"][1] == {"partition": 1, "addresses": [node.url], "hydrating": []}
    assert (answer.headers["etag"], answer.json()["partitioner"]) == ('"1"', "murmur2")
    assert http.get("/v1/placement", headers={"if-none-match": '"1"'}).status_code == 304


def test_node_is_ready_when_every_replica_is_complete(tmp_path: Path) -> None:
    """Readiness is 503 with the progress until every replica is complete; liveness is 200 throughout."""
    with served(tmp_path, complete=False) as node, node.client() as http:

        def complete(partition: int) -> None:
            replica = node.node.replicas.by_partition[partition]
            replica.apply((), ReplicaState(0))
            replica.note_end_offset(1, 0)

        node.on_loop(lambda: complete(0))
        hydrating = http.get("/readyz")
        assert (hydrating.status_code, hydrating.json()["ready"], hydrating.json()["complete"]) == (
            503,
            False,
            1,
        )
        assert http.get("/livez").status_code == 200
        node.on_loop(lambda: complete(1))
        assert http.get("/readyz").status_code == 200


def test_metrics_are_in_prometheus_format(node: Served, http: httpx.Client) -> None:
    """Metrics cover reads of both lanes, lag and position of every replica, mismatches and the process."""
    http.get("/v1/keys/a")
    http.get("/v1/keys/missing?consistency=any")
    http.get("/v1/nope")
    families = {f.name: f for f in text_string_to_metric_families(http.get("/metrics").text)}

    reads = {s.labels["result"]: s.value for s in families["qt_point_reads"].samples}
    assert reads["found"] >= 1
    assert reads["absent"] >= 1
    assert {s.labels["partition"] for s in families["qt_lag_records"].samples} == {"0", "1"}
    assert all(0 <= s.value < 3600 for s in families["qt_lag_seconds"].samples)
    assert [s.name for s in families["qt_ingest_starts"].samples] == ["qt_ingest_starts_total"]
    assert families["qt_fast_answers"].samples[0].value >= 1
    assert {s.labels["reason"] for s in families["qt_failures"].samples} >= {"no_such_resource"}
    assert {
        "qt_partitioner_mismatches",
        "qt_topic_partitions",
        "process_resident_memory_bytes",
        "qt_records",
    } <= families.keys()


def test_rate_falls_to_zero() -> None:
    """A replica whose position stops soon has a rate of 0, not an ever smaller one."""
    replica = Replica(0, "active", None)
    replica.records_per_second = 1000.0
    for second in range(60):
        replica.update_rate(float(second))

    assert replica.records_per_second == 0


@pytest.mark.parametrize(("path", "requested"), [("/", "/v1/status"), ("/docs", "/openapi.json")])
def test_pages_load_nothing_from_other_hosts(http: httpx.Client, path: str, requested: str) -> None:
    """Each page is one HTML file under a policy that forbids anything else."""
    page = http.get(path)

    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "http://" not in page.text
    assert "https://" not in page.text
    assert requested in page.text


@pytest.mark.parametrize(
    ("method", "path", "reason", "advice"),
    [
        ("GET", "/nope", Reason.NO_SUCH_RESOURCE, "/v1/keys/{key}"),
        ("GET", "/v1/keys", Reason.NO_SUCH_RESOURCE, "did you mean /v1/keys/{key}"),
        ("GET", "/v1/scan/", Reason.NO_SUCH_RESOURCE, "/v1/scan"),
        ("GET", "/v1/sacn", Reason.NO_SUCH_RESOURCE, "did you mean /v1/scan"),
        ("POST", "/v1/keys/a", Reason.INVALID_REQUEST, "use GET"),
        ("DELETE", "/v1/keys/a", Reason.INVALID_REQUEST, "use GET"),
        ("GET", "/v1/multi-get", Reason.INVALID_REQUEST, "use POST"),
        ("HEAD", "/v1/multi-get", Reason.INVALID_REQUEST, ""),
        ("OPTIONS", "/v1/scan", Reason.INVALID_REQUEST, "use GET"),
        ("GET", "/%00", Reason.NO_SUCH_RESOURCE, "/v1/scan"),
        ("GET", "/v1/keys%ff", Reason.NO_SUCH_RESOURCE, "/v1/keys/{key}"),
    ],
)
def test_every_refusal_has_a_reason_of_the_closed_set(
    http: httpx.Client, method: str, path: str, reason: Reason, advice: str
) -> None:
    """Unknown paths and methods get problem documents that name the known ones."""
    answer = http.request(method, path)

    assert (answer.status_code, answer.headers["content-type"]) == (reason.status, "application/problem+json")
    if method != "HEAD":
        assert (answer.json()["reason"], advice in answer.json()["advice"]) == (reason.slug, True)


def test_defect_is_internal_with_an_id_that_is_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The client gets only the id, in both lanes."""

    def broken(*_: Any) -> None:
        raise RuntimeError("secret details")

    with served(tmp_path) as node, node.client() as http:
        monkeypatch.setattr(Reads, "point", broken)
        for path in ("/v1/keys/a", "/v1/keys/a?consistency=any"):
            body = http.get(path).json()
            assert (body["status"], body["reason"], "secret" in str(body)) == (500, "internal", False)
            assert body["detail"].rsplit(" ", 1)[1] in capsys.readouterr().err


def test_requests_over_the_limit_get_429(tmp_path: Path) -> None:
    """A node answers 429 with Retry-After at its limit of requests, still answers probes and metrics, and has room again
    afterwards."""
    with served(tmp_path, partitions=1, read={"maxConcurrent": 2}) as node, node.client() as http:
        waiting = "/v1/keys/a?min-position=0:1&deadline-ms=20000"
        readers = [
            threading.Thread(target=lambda: httpx.get(node.url + waiting, timeout=30)) for _ in range(2)
        ]
        for reader in readers:
            reader.start()
        eventually("both wait", lambda: node.node.counters.in_flight == 2)

        refused = http.get("/v1/scan")
        assert (refused.status_code, refused.json()["reason"]) == (429, "overloaded")
        assert int(refused.headers["retry-after"]) >= 1
        for path in ("/livez", "/readyz", "/metrics"):
            assert http.get(path).status_code == 200
        node.put(b"a", b"1")
        for reader in readers:
            reader.join(20)
        assert http.get("/v1/scan").status_code == 200


def test_limits_of_the_settings_hold(tmp_path: Path) -> None:
    """A node keeps its limits on rows of a page, keys of a multi-get and requests in flight."""
    bounds = {"page_rows_max": 2, "multi_get_keys_max": 2, "concurrent_max": 1}
    with served(tmp_path, partitions=1, settings=bounds) as node, node.client() as http:
        assert http.get("/v1/scan?limit=2").status_code == 200
        assert "from 1 to 2" in http.get("/v1/scan?limit=3").json()["advice"]
        assert http.post("/v1/multi-get", json={"keys": ["a", "b"]}).status_code == 200
        assert http.post("/v1/multi-get", json={"keys": ["a", "b", "c"]}).json()["reason"] == "too_large"
        waiting = threading.Thread(
            target=lambda: httpx.get(f"{node.url}/v1/keys/a?min-position=0:1&deadline-ms=20000", timeout=30)
        )
        waiting.start()
        eventually("one waits", lambda: node.node.counters.in_flight == 1)
        assert http.get("/v1/scan").json()["reason"] == "overloaded"
        node.put(b"a", b"1")
        waiting.join(20)


def test_memory_is_bounded_by_the_settings(tmp_path: Path) -> None:
    """All stores share one cache and one budget of memtables."""
    settings = {"block_cache_mb": 8, "write_buffer_mb": 16}
    with served(tmp_path, partitions=4, settings=settings) as node:
        assert node.node.memory.block_cache_bytes == 8 << 20
        assert 4 * node.node.memory.memtable_bytes <= 16 << 20


def test_bodies_in_flight_are_bounded(tmp_path: Path) -> None:
    """A body beyond the budget gets 429 while others are received, and there is room again afterwards."""
    body = json.dumps({"keys": ["k" * 500_000]}).encode()
    with served(tmp_path, settings={"bodies_bytes_max": 800_000}) as node, node.client() as http:
        with socket.create_connection(("127.0.0.1", node.port)) as slow:
            slow.sendall(b"POST /v1/multi-get HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body))
            slow.sendall(body[:-1])
            eventually("it is received", lambda: node.node.body_budget.taken == len(body))
            refused = http.post("/v1/multi-get", content=body)
            assert (refused.status_code, refused.json()["reason"]) == (429, "overloaded")
        eventually("it is gone", lambda: node.node.body_budget.taken == 0)
        assert http.post("/v1/multi-get", content=body).status_code == 200


@pytest.mark.parametrize(
    "target", [b"/v1/keys/large", b"/v1/keys/large?consistency=any"], ids=["plain", "with words"]
)
def test_unsent_answers_are_bounded(tmp_path: Path, target: bytes) -> None:
    """While clients do not read large answers, other requests get 429; an answer that is read is complete."""
    value = b'"%b"' % (b"x" * 8_000_000)
    with served(tmp_path, partitions=1, settings={"untaken_bytes_max": 1_000_000}) as node:
        node.put(b"large", value)
        with node.client() as http:
            with socket.create_connection(("127.0.0.1", node.port)) as slow:
                slow.sendall(b"GET " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n")
                slow.recv(100)
                refused = http.get("/v1/scan")
                assert (refused.status_code, refused.json()["reason"]) == (429, "overloaded")
                assert http.get("/livez").status_code == 200
            eventually("it is gone", lambda: node.node.counters.in_flight == 0)
            assert http.get(target.decode()).content == value
            assert node.node.counters.keys_found == 2
            assert http.post("/v1/multi-get", json={"keys": ["large"]}).json()["items"][0]["found"] is True
