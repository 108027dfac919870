"""Test that the resource's read settings reach a running node."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from queryable_app.contract import SettingsError
from queryable_app.platform.clock import monotonic_ms
from tests.support.node import open_node
from tests.support.served import Served, served
from tests.support.waiting import eventually

PATH = "/internal/v1/read"
HEADERS = {"qt-node": "between-nodes"}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Served]:
    token = tmp_path / "token"
    token.write_text("between-nodes")
    with served(
        tmp_path, settings={"internal_token_path": str(token)}, read={"consistency": "any"}
    ) as running:
        running.put(b"a", b"1")
        yield running


@pytest.fixture
def http(node: Served) -> Iterator[httpx.Client]:
    with node.client() as client:
        yield client


def put(http: httpx.Client, read: Any) -> httpx.Response:
    """Send settings as the operator does, with the schema's defaults filled in."""
    defaults = {"consistency": "bounded", "ingest": False, "maxConcurrent": 512}
    whole = {**defaults, **read} if isinstance(read, dict) else read
    return http.put(PATH, json=whole, headers=HEADERS)


def test_node_reports_its_read_settings(http: httpx.Client) -> None:
    """Status and the answer have the settings in effect."""
    bounds = {"maxBytesPerSecond": None, "maxRecordBytes": None, "idempotencyWindow": "600000ms"}
    first = {"consistency": "any", "maxLagMs": None, "ingest": False, "maxConcurrent": 512, "writes": bounds}
    assert http.get("/v1/status").json()["read"] == first

    response = put(http, {"consistency": "strong", "maxConcurrent": 9, "writes": {"maxRecordBytes": 5}})

    second = {**first, "consistency": "strong", "maxConcurrent": 9, "writes": {**bounds, "maxRecordBytes": 5}}
    assert (response.status_code, response.json()) == (200, second)
    assert http.get("/v1/status").json()["read"] == second


def test_next_read_has_the_new_bound(node: Served, http: httpx.Client) -> None:
    """New settings hold for plain reads of the fast lane and for reads with options."""

    def grow_old() -> None:
        for replica in node.node.replicas.by_partition.values():
            replica.note_end_offset(monotonic_ms() - 5000, replica.position)
            replica.note_end_offset(monotonic_ms(), replica.position + 1)

    node.on_loop(grow_old)
    assert http.get("/v1/keys/a").status_code == 200

    put(http, {"maxLagMs": 1})
    plain, long = http.get("/v1/keys/a"), http.get("/v1/keys/a", params={"deadline-ms": "10000"})
    assert (plain.status_code, plain.json()["reason"]) == (503, "not_fresh_enough")
    assert (long.status_code, long.json()["reason"]) == (503, "not_fresh_enough")

    put(http, {"maxLagMs": 86_400_000})
    assert http.get("/v1/keys/a").status_code == 200


def test_writes_are_allowed_and_forbidden_at_run_time(http: httpx.Client) -> None:
    """A forbidden write gets 403; an allowed one fails only because Kafka is unavailable."""
    record = {"key": "k", "value": 1}
    assert http.post("/v1/records", json=record).status_code == 403
    put(http, {"ingest": True})
    assert http.post("/v1/records?deadline-ms=200", json=record).status_code != 403
    put(http, {})
    assert http.post("/v1/records", json=record).status_code == 403


def test_next_request_counts_against_the_new_limit(node: Served, http: httpx.Client) -> None:
    """While one request waits, a second is refused or not, as the settings now say."""
    partition, offset = node.put(b"a", b"2")
    waiting = f"/v1/keys/a?min-position={partition}:{offset + 2}&deadline-ms=20000"
    with ThreadPoolExecutor() as threads, node.client() as other:
        answer = threads.submit(other.get, waiting, timeout=30)
        eventually("it waits", lambda: node.node.counters.in_flight == 1)

        put(http, {"maxConcurrent": 1})
        assert http.get("/v1/count?consistency=any").status_code == 429
        put(http, {"maxConcurrent": 2})
        assert http.get("/v1/count?consistency=any").status_code == 200

        node.put(b"a", b"3")
        assert answer.result(30).json() == 3


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ([], "object"),
        ("strong", "object"),
        ({"consistency": "at-least"}, "spec.read.consistency"),
        ({"consistency": "eventual"}, "spec.read.consistency"),
        ({"consistency": ["any"]}, "spec.read.consistency"),
        ({"maxLagMs": 0}, "spec.read.maxLagMs"),
        ({"maxLagMs": "10"}, "spec.read.maxLagMs"),
        ({"maxLagMs": True}, "spec.read.maxLagMs"),
        ({"maxLagMs": 1.5}, "spec.read.maxLagMs"),
        ({"ingest": "yes"}, "spec.read.ingest"),
        ({"maxConcurrent": 0}, "spec.read.maxConcurrent"),
        ({"maxConcurrent": 65_537}, "spec.read.maxConcurrent"),
    ],
)
def test_wrong_settings_change_nothing(http: httpx.Client, body: Any, field: str) -> None:
    """A node answers 400 that names the field, and keeps its settings."""
    before = http.get("/v1/status").json()["read"]
    answer = put(http, body)
    assert (answer.status_code, answer.json()["reason"]) == (400, "invalid_request")
    assert field in answer.json()["detail"]
    assert http.get("/v1/status").json()["read"] == before


def test_read_settings_require_the_node_token(http: httpx.Client) -> None:
    """A node refuses settings without the token of the view's nodes."""
    assert http.put(PATH, json={"ingest": True}).status_code == 401
    assert http.put(PATH, json={"ingest": True}, headers={"qt-node": "other"}).status_code == 403
    assert http.get("/v1/status").json()["read"]["ingest"] is False


def test_deadline_of_a_read_that_names_none(tmp_path: Path) -> None:
    """The node's setting is the deadline, also after its read settings have changed, and the read's own one goes before it."""
    with served(tmp_path, partitions=1, settings={"read_deadline_ms": 1}) as node, node.client() as http:
        node.fill(50_000)
        node.on_loop(lambda: node.node.apply_read_settings(node.node.read_settings))

        late, in_time = http.get("/v1/count"), http.get("/v1/count?deadline-ms=60000")

    assert (late.status_code, late.json()["reason"]) == (504, "deadline_exceeded")
    assert (in_time.status_code, in_time.json()["count"]) == (200, 50_000)


@pytest.mark.parametrize("deadline_ms", [0, 60_001])
def test_deadline_that_no_read_may_name_is_refused(tmp_path: Path, deadline_ms: int) -> None:
    """A node does not start with a deadline that other nodes would refuse, and names the setting."""
    with pytest.raises(
        SettingsError, match=f"QT_READ_DEADLINE_MS must be from 1 to 60000, not {deadline_ms}"
    ):
        open_node(tmp_path, settings={"read_deadline_ms": deadline_ms})
