"""Every kind of read honours or refuses every option, at a node that hosts the partitions and at one that does not.

A path that drops an option answers 200 here, and the test fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from queryable_app.wire.partitioners import partition_for
from tests.support.node_cluster import NodeCluster, three_nodes

KEY = "key-1"
WHERE = partition_for(KEY.encode(), "murmur2", 6)
BEHIND = 3
DEADLINE_MS = 8000
# A twentieth of the time is for the way back to a node that forwards. A busy machine needs all of it for one read.
APART_MS = DEADLINE_MS // 20
ANSWER_SECONDS = 15  # the time that an answer may take after the deadline of its read

KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "point": ("GET", f"/v1/keys/{KEY}", {}),
    "point as bytes": ("GET", f"/v1/keys/{KEY}", {"headers": {"Accept": "application/octet-stream"}}),
    "multi-get": ("POST", "/v1/multi-get", {"json": {"keys": [KEY]}}),
    "range": ("GET", "/v1/range", {}),
    "prefix": ("GET", "/v1/prefix/key", {}),
    "scan": ("GET", "/v1/scan", {}),
    "stream": ("GET", "/v1/scan", {"headers": {"Accept": "application/x-ndjson"}}),
    "count": ("GET", "/v1/count", {}),
    "estimate": ("GET", "/v1/count?approximate=true", {}),
}
UNMET = {
    "max-lag-records": f"{BEHIND - 1}",
    "max-lag-ms": "0",
    "min-position": f"{WHERE}:100",
    "consistency": "strong",
}
WRONG = {
    "consistency": "eventual",
    "max-lag-records": "-1",
    "max-lag-ms": "soon",
    "min-position": "6:1",
    "deadline-ms": "0",
    "route": "elsewhere",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeCluster]:
    """Start three nodes with one replica of each partition, all of which lag. There is no Kafka."""
    with three_nodes(tmp_path_factory.mktemp("options"), 1) as nodes:
        nodes.put(KEY.encode(), b"1")
        for node in nodes.nodes:
            node.on_loop(lambda node=node: fall_behind(node.node.replicas.by_partition.values()))  # type: ignore[misc]
        yield nodes


def fall_behind(replicas: Any) -> None:
    for replica in replicas:
        replica.note_end_offset(replica.fresh_as_of_ms + 1, max(0, replica.position) + BEHIND)


@pytest.fixture(params=["hosts the key", "does not"])
def http(request: pytest.FixtureRequest, cluster: NodeCluster) -> Iterator[httpx.Client]:
    """Connect to the node that hosts the key's partition, or to another one."""
    owner = cluster.placement.serving[WHERE][0]
    node = cluster.nodes[owner if request.param == "hosts the key" else (owner + 1) % 3]
    with node.client() as client:
        yield client


def read(
    http: httpx.Client, kind: str, option: str, value: str, as_header: bool, deadline_ms: int
) -> httpx.Response:
    method, path, more = KINDS[kind]
    headers = dict(more.get("headers", {}))
    query = {"deadline-ms": str(deadline_ms)} if option != "deadline-ms" else {}
    if as_header:
        headers[f"Qt-{option}"] = value
    else:
        query[option] = value
    joined = (
        path + ("&" if "?" in path else "?") + "&".join(f"{name}={given}" for name, given in query.items())
    )
    timeout = deadline_ms / 1000 + ANSWER_SECONDS
    return http.request(method, joined, headers=headers, json=more.get("json"), timeout=timeout)


def read_all(http: httpx.Client, option: str, value: str) -> dict[tuple[str, str], httpx.Response]:
    """Send every kind of read at once, with the option as a parameter and as a header; return the answers.

    Those that wait for their deadlines do not end at the same moment.
    """
    reads = [(kind, place) for kind in KINDS for place in ("parameter", "header")]
    deadlines = [DEADLINE_MS + n * APART_MS for n in range(len(reads))]
    with ThreadPoolExecutor(len(reads)) as pool:
        answers = pool.map(
            lambda each, deadline_ms: read(http, each[0], option, value, each[1] == "header", deadline_ms),
            reads,
            deadlines,
        )
        return dict(zip(reads, answers, strict=True))


def test_read_without_options_is_answered(http: httpx.Client) -> None:
    """Every kind of read succeeds without options, so a refusal in the next tests is due to the option."""
    answers = read_all(http, "route", "forward")
    assert {status_of(answer) for answer in answers.values()} == {(200, "")}


@pytest.mark.parametrize("option", UNMET)
def test_option_that_no_replica_meets_is_refused(http: httpx.Client, option: str) -> None:
    """Every kind of read answers 503 not_fresh_enough, at either node."""
    statuses = {read_: status_of(answer) for read_, answer in read_all(http, option, UNMET[option]).items()}
    assert statuses == dict.fromkeys(statuses, (503, "not_fresh_enough"))


@pytest.mark.parametrize("option", WRONG)
def test_wrong_value_of_an_option_is_refused(http: httpx.Client, option: str) -> None:
    """Every kind of read answers 400 and names the option."""
    answers = read_all(http, option, WRONG[option])
    assert {status_of(answer) for answer in answers.values()} == {(400, "invalid_request")}
    assert [read_ for read_, answer in answers.items() if option not in answer.json()["detail"].lower()] == []


def status_of(answer: httpx.Response) -> tuple[int, str]:
    failed = answer.status_code != 200
    return answer.status_code, str(answer.json()["reason"]) if failed else ""
