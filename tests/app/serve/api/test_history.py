"""Test reads of the past over real stores and nodes, against a brute-force fold."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from queryable_app.client import InvalidRequest, NoSuchResource, QueryableTopic
from queryable_app.commands.group import qtopic as commands
from queryable_app.serve.store.history_sweep import raise_floor
from tests.support.node_cluster import NodeCluster, three_nodes
from tests.support.past import Past
from tests.support.served import served

HISTORY: dict[str, Any] = {"kind": "history"}


def filled(cluster: NodeCluster, seed: int, records: int = 300, scattered: bool = False) -> Past:
    """Write records whose times are not in order, and return what they make of each key."""
    rng, past = random.Random(seed), Past()
    for moment in range(records):
        key = f"k{rng.randrange(30)}"
        value = None if rng.random() < 0.15 else json.dumps({"n": moment}).encode()
        timestamp_ms = 1_000_000 + moment * 10 - rng.choice([0, 0, 0, 25, 500])
        partition = past.partition_of(key, rng.randrange(6) if scattered else None)
        cluster.put(key.encode(), value, partition, timestamp_ms=timestamp_ms)
        past.add(key, partition, timestamp_ms, value)
    return past


@pytest.fixture(scope="module", params=["one place", "scattered"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[NodeCluster, Past]]:
    scattered = request.param == "scattered"
    with three_nodes(tmp_path_factory.mktemp("history"), 2, view=HISTORY) as nodes:
        yield nodes, filled(nodes, 7, scattered=scattered)


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=60, headers={"qt-deadline-ms": "30000"}) as client:
        yield client


def test_value_as_of_a_position_is_that_of_the_fold(
    cluster: tuple[NodeCluster, Past], http: httpx.Client
) -> None:
    """Every node answers for a key and a position what the records below the position make of the key."""
    nodes, past = cluster
    rng = random.Random(1)
    for _ in range(80):
        key, vector = rng.choice(past.keys), past.random_positions(rng)
        url = f"{rng.choice(nodes.addresses)}/v1/keys/{key}"
        answer = http.get(url, params={"as-of": past.text(vector)})
        expected = past.value_at(key, vector)
        assert answer.status_code == (404 if expected is None else 200), answer.text
        assert expected is None or answer.content == expected


def test_value_as_of_a_time_is_that_of_the_fold(
    cluster: tuple[NodeCluster, Past], http: httpx.Client
) -> None:
    """A time names all records up to the last at which the greatest timestamp of the partition is not later."""
    nodes, past = cluster
    rng = random.Random(2)
    for _ in range(80):
        key, time_ms = rng.choice(past.keys), 1_000_000 + rng.randrange(-100, 3100)
        answer = http.get(f"{rng.choice(nodes.addresses)}/v1/keys/{key}", params={"as-of": time_ms})
        expected = past.value_at(key, past.positions_at(time_ms))
        assert answer.status_code == (404 if expected is None else 200), answer.text
        assert expected is None or answer.content == expected


def test_pages_as_of_positions_are_those_of_the_fold(
    cluster: tuple[NodeCluster, Past], http: httpx.Client
) -> None:
    """Every page of a scan as of positions has the rows of then, in both orders and from any node."""
    nodes, past = cluster
    rng = random.Random(3)
    for order in ("asc", "desc") * 4:
        vector = past.random_positions(rng)
        found: list[tuple[str, Any]] = []
        cursor = None
        while True:
            parameters: dict[str, Any] = {
                "as-of": past.text(vector),
                "limit": rng.randrange(1, 9),
                "order": order,
            }
            url = f"{rng.choice(nodes.addresses)}/v1/scan"
            page = http.get(url, params=parameters | ({"cursor": cursor} if cursor else {})).json()
            found += [(row["key"], row["value"]) for row in page["items"]]
            cursor = page["cursor"]
            if cursor is None:
                break
        assert found == past.rows_at(vector, reverse=order == "desc")


def test_client_reads_rows_as_of_positions(cluster: tuple[NodeCluster, Past]) -> None:
    """Scans, ranges and prefixes of the client are of the moment on all pages, also in a session that has seen more, and
    `as_of` takes a text or a dict."""
    nodes, past = cluster
    rng = random.Random(9)
    with QueryableTopic(nodes.addresses, max_lag_ms=600_000) as client:
        session = client.session()
        session.get(past.keys[0], deadline_ms=30_000)
        for reads in (client, session):
            vector = past.random_positions(rng)
            rows = past.rows_at(vector)
            found = reads.scan(as_of=vector, page_rows=7, deadline_ms=30_000)
            assert [(row.key, row.value) for row in found] == rows
            found = reads.range("k1", "k2", as_of=past.text(vector), order="desc", deadline_ms=30_000)
            of_range = [row for row in rows if "k1" <= row[0] < "k2"]
            assert [(row.key, row.value) for row in found] == of_range[::-1]
            found = reads.prefix("k2", as_of=vector, deadline_ms=30_000)
            assert [(row.key, row.value) for row in found] == [row for row in rows if row[0].startswith("k2")]
        with pytest.raises(InvalidRequest, match="one of each partition"):
            list(client.scan(as_of=1_000_000, deadline_ms=30_000))  # type: ignore[arg-type]


def test_command_prints_rows_as_of_positions(cluster: tuple[NodeCluster, Past]) -> None:
    """`qtopic scan --as-of` prints the rows of then."""
    nodes, past = cluster
    vector = past.random_positions(random.Random(10))
    arguments = ["scan", "--as-of", past.text(vector), "--all", "--json", "--url", nodes.addresses[0]]

    printed = CliRunner().invoke(commands, arguments)

    assert printed.exit_code == 0, printed.output
    rows = [json.loads(line) for line in printed.stdout.splitlines()]
    assert [(row["key"], row["value"]) for row in rows] == past.rows_at(vector)


def test_history_of_a_key_has_all_its_versions(cluster: tuple[NodeCluster, Past], http: httpx.Client) -> None:
    """The versions of a key come newest first, deletions too, over pages and in both orders."""
    nodes, past = cluster
    rng = random.Random(4)
    for key in past.keys:
        order, found, cursor = rng.choice(["asc", "desc"]), [], None
        while True:
            parameters: dict[str, Any] = {"limit": rng.randrange(1, 6), "order": order}
            url = f"{rng.choice(nodes.addresses)}/v1/keys/{key}/history"
            page = http.get(url, params=parameters | ({"cursor": cursor} if cursor else {})).json()
            found += [
                (item["partition"], item["offset"], item["timestamp"], item["value"])
                for item in page["items"]
            ]
            assert all(item.get("deleted", False) is (item["value"] is None) for item in page["items"])
            cursor = page["cursor"]
            if cursor is None:
                break
        assert found == past.versions(key, newest_first=order == "desc")


@pytest.mark.parametrize(
    ("moment", "problem"),
    [
        ("6:0", "is neither a time nor a position of this topic"),
        ("-1:0", "is neither a time nor a position of this topic"),
        ("0:-1", "is neither a time nor a position of this topic"),
        ("0:1,0:2", "names two positions of partition 0"),
        ("9" * 10_000, "is neither a time nor a position of this topic"),
        ("0:" + "9" * 10_000, "is neither a time nor a position of this topic"),
        ("yesterday", "is neither a time nor a position of this topic"),
        ("", "is neither a time nor a position of this topic"),
        ("9999-01-01T00:00:00Z", "is in the future"),
    ],
    ids=lambda text: text[:12],
)
@pytest.mark.parametrize("path", ["/v1/keys/k1", "/v1/scan"])
def test_malformed_moment_is_refused(
    cluster: tuple[NodeCluster, Past], http: httpx.Client, path: str, moment: str, problem: str
) -> None:
    """A moment that this topic cannot have is a request that names the field."""
    answer = http.get(cluster[0].addresses[0] + path, params={"as-of": moment})

    assert answer.status_code == 400
    assert answer.json()["detail"].startswith("as-of: ")
    assert problem in answer.json()["detail"]


def test_position_that_no_replica_has_reached_is_not_fresh_enough(
    cluster: tuple[NodeCluster, Past], http: httpx.Client
) -> None:
    """A read of a position beyond the log waits until its deadline, and then says that no replica has it."""
    nodes, past = cluster
    key = past.keys[0]
    beyond = past.text({p: len(log) + 1 for p, log in enumerate(past.logs)})

    answer = http.get(
        f"{nodes.addresses[0]}/v1/keys/{key}",
        params={"as-of": beyond},
        headers={"qt-deadline-ms": "2000"},
    )

    assert (answer.status_code, answer.json()["reason"]) in (
        (503, "not_fresh_enough"),
        (504, "deadline_exceeded"),
    )


@pytest.mark.parametrize("name", ["consistency=any", "max-lag-ms=5", "min-position=0:1"])
def test_other_demands_beside_a_moment_are_refused(
    cluster: tuple[NodeCluster, Past], http: httpx.Client, name: str
) -> None:
    """A read as of a moment takes no other demand on freshness."""
    answer = http.get(f"{cluster[0].addresses[0]}/v1/keys/k1?as-of=0:0&{name}")

    assert (answer.status_code, answer.json()["detail"].split(":")[0]) == (400, name.split("=")[0])


def test_cursor_belongs_to_its_moment(cluster: tuple[NodeCluster, Past], http: httpx.Client) -> None:
    """A cursor without its `as-of`, with another one, or edited is refused."""
    nodes, past = cluster
    url = f"{nodes.addresses[0]}/v1/scan"
    vector = {p: len(log) for p, log in enumerate(past.logs)}
    cursor = http.get(url, params={"as-of": past.text(vector), "limit": 1}).json()["cursor"]

    for parameters in (
        {"cursor": cursor},
        {"cursor": cursor, "as-of": past.text({**vector, 0: 0})},
        {"cursor": cursor[:-2] + "AA", "as-of": past.text(vector)},
    ):
        assert http.get(url, params=parameters).status_code == 400


def test_history_between_moments_and_key_with_a_slash(
    tmp_path_factory: pytest.TempPathFactory, http: httpx.Client
) -> None:
    """A key may end with /history if its slash is encoded, on both lanes, and `from` and `to` bound the versions."""
    with served(tmp_path_factory.mktemp("slash"), partitions=1, view=HISTORY) as node:
        for moment in range(1, 6):
            node.put(b"a/history", b"%d" % moment, timestamp_ms=moment)
            node.put(b"a", b"%d" % -moment, timestamp_ms=moment)
        address = node.url

        assert http.get(f"{address}/v1/keys/a%2Fhistory").json() == 5
        with httpx.Client() as plain:
            assert plain.get(f"{address}/v1/keys/a%2Fhistory").json() == 5
            page = plain.get(
                f"{address}/v1/keys/a/history", params={"from": 2, "to": 5, "order": "asc"}
            ).json()
            assert [item["value"] for item in page["items"]] == [-2, -3, -4]
            page = plain.get(f"{address}/v1/keys/a/history?from=0:4&to=0:9").json()
            assert [(item["offset"], item["value"]) for item in page["items"]] == [(7, -4), (5, -3)]
            page = plain.get(f"{address}/v1/keys/a%2Fhistory/history?limit=2").json()
            assert [item["value"] for item in page["items"]] == [5, 4]


def test_moment_before_the_floor_is_gone(
    tmp_path_factory: pytest.TempPathFactory, http: httpx.Client
) -> None:
    """After a sweep, a moment before the retention is 410, and a later one is answered."""
    view = {"kind": "history", "history": {"retention": "1s"}}
    with served(tmp_path_factory.mktemp("floor"), partitions=1, view=view) as node:
        for moment in range(1, 6):
            node.put(b"a", b"%d" % moment, timestamp_ms=moment * 1000)
        store = node.node.replicas.by_partition[0].store
        node.on_loop(lambda: raise_floor(store, 4500))

        gone = http.get(f"{node.url}/v1/keys/a", params={"as-of": 2500})
        assert (gone.status_code, gone.json()["reason"]) == (410, "not_retained")
        assert http.get(f"{node.url}/v1/keys/a?as-of=0:2").status_code == 410
        assert http.get(f"{node.url}/v1/scan?as-of=0:2").status_code == 410
        assert http.get(f"{node.url}/v1/keys/a/history?from=0:2").status_code == 410
        assert http.get(f"{node.url}/v1/keys/a", params={"as-of": 4500}).json() == 4


def test_page_of_versions_is_not_of_a_replica_that_lacks_the_page_before(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """A replica that is behind the versions of the page before would leave out those in between, so it does not answer."""
    pages: list[httpx.Response] = []
    for versions in (6, 3):  # the second node is behind
        with (
            served(tmp_path_factory.mktemp("paged"), partitions=1, view=HISTORY) as node,
            node.client() as http,
        ):
            for n in range(versions):
                node.put(b"k", b"%d" % n)
            cursor = "" if not pages else f"&cursor={pages[0].json()['cursor']}"
            for consistency in ("", "&consistency=any"):
                path = f"/v1/keys/k/history?limit=2&deadline-ms=300{consistency}{cursor}"
                pages.append(http.get(path))
    assert [item["value"] for item in pages[0].json()["items"]] == [5, 4]
    assert (pages[2].status_code, pages[2].json()["reason"]) == (503, "not_fresh_enough")
    assert [item["value"] for item in pages[3].json()["items"]] == [2, 1]


def test_view_without_history_has_none(tmp_path_factory: pytest.TempPathFactory, http: httpx.Client) -> None:
    """Another view says that it keeps no history, and reads a key that ends with /history."""
    with served(tmp_path_factory.mktemp("latest")) as node:
        node.put(b"a/history", b"1")

        for read in ("keys/a?as-of=0:0", "scan?as-of=0:0", "prefix/a?as-of=0:0", "keys/a/history?limit=1"):
            answer = http.get(f"{node.url}/v1/{read}")
            assert (answer.status_code, answer.json()["reason"]) == (404, "no_such_resource")
            assert answer.json()["detail"] == "this view keeps no history"
            assert "spec.view.kind: history" in answer.json()["advice"]
        assert http.get(f"{node.url}/v1/keys/a/history").json() == 1
        assert "'limit'" in http.get(f"{node.url}/v1/keys/a?limit=1").json()["detail"]


def test_client_and_command_say_that_a_view_keeps_no_history(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The client and `qtopic history` name what the view lacks, not a parameter."""
    with served(tmp_path_factory.mktemp("latest")) as node, QueryableTopic(node.url) as client:
        with pytest.raises(NoSuchResource, match="this view keeps no history"):
            list(client.history("a"))
        with pytest.raises(NoSuchResource, match="this view keeps no history"):
            client.get("a", as_of="0:0")
        printed = CliRunner().invoke(commands, ["history", "a", "--url", node.url])
        assert printed.exit_code == 2
        assert "this view keeps no history" in printed.output


@pytest.mark.parametrize(
    ("first", "after", "status"),
    [
        ("2026-11-22T10:00:00Z", "2026-11-22T09:00:00Z", 400),
        ("0:5,1:5", "0:4,1:1", 400),
        ("0:5,1:5", "0:4,1:6", 200),
        ("0:5", "1:1", 200),
        ("0:5", "2026-11-22T09:00:00Z", 200),
        ("0:5", "0:5", 200),
    ],
)
def test_versions_from_a_moment_after_the_last_are_refused(
    cluster: tuple[NodeCluster, Past], http: httpx.Client, first: str, after: str, status: int
) -> None:
    """A `to` that comes before `from` is refused, if the moments have an order."""
    nodes, past = cluster
    answer = http.get(
        f"{nodes.addresses[0]}/v1/keys/{past.keys[0]}/history", params={"from": first, "to": after}
    )
    assert answer.status_code == status
    assert status == 200 or answer.json()["detail"] == "to: comes before `from`"
