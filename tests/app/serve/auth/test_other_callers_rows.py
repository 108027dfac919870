"""A caller with a key prefix learns nothing of other callers' rows, whatever it sends.

Two worlds differ only in the rows of another caller, bob: their keys, values and order. Every request of alice must have the same
answer in both, byte for byte, but for ports and clocks. Requests that name a key of bob are refused in both.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

import httpx
import pytest

from queryable_app.placement.assignment import Placement
from queryable_app.wire.sealed_text import seal, unseal
from tests.app.serve.auth.conftest import AUTH, key_of
from tests.support import entries, windows
from tests.support.node import put
from tests.support.node_cluster import APPLICATION_ID, NodeCluster
from tests.support.served import Served
from tests.support.tokens import bearer, secret_directory

CLAIMS: Final[dict[str, Any]] = {"scope": None, "role": "user"}
KINDS: Final[dict[str, dict[str, Any]]] = {
    "latest": {
        "changes": True,
        "indexes": [
            {"name": "by-n", "field": "n", "type": "long"},
            {"name": "by-of", "field": "of", "type": "string"},
        ],
    },
    "history": {"kind": "history"},
    "entries": entries.view(),
    "windows": windows.view(size="1m", retention="80000h"),
}
NOON: Final = 1_795_000_020_000
MINUTE: Final = 60_000


class Row(NamedTuple):
    key: str
    of: str
    n: int


def rows_of(world: int, partition: int) -> list[Row]:
    """Return the records of one partition. Those of bob differ between the worlds."""
    alice = [key_of(f"user/alice/{letter}", partition) for letter in "mn"]
    bob = [key_of(f"user/bob/{letter}", partition) for letter in ("ax" if world else "kz")]
    bobs = [Row(bob[0], f"bob-{world}", 100 * world + 1), Row(bob[1], f"bob-{world}", 5 - world)]
    alices = [Row(key, "alice", number + 2) for number, key in enumerate(alice)]
    mixed = [alices[0], bobs[0], alices[1], bobs[1], alices[0], bobs[world]]
    return [*mixed, Row(key_of("user/alicea/", partition), "other", 3 + world)]


def fill(kind: str, nodes: Sequence[Served], world: int) -> None:
    for partition, node in enumerate(nodes):
        for offset, (key, of, n) in enumerate(rows_of(world, partition)):
            raw, at = key.encode(), NOON + offset * MINUTE
            value = json.dumps({"of": of, "n": n, "at": at}).encode()
            if kind == "entries":
                row = entries.row_of(offset, entries.Record(raw, at, value))
            elif kind == "windows":
                row = windows.row_of(offset, windows.Record(raw, at, n))
            else:
                row = put(offset, raw, value, at)
            node.put_slice(row, partition=partition)


class Topic:
    """Stand in for Kafka."""

    async def send(self, key: bytes, value: bytes | None, partition: int, deadline_seconds: float) -> int:
        assert key.startswith(b"user/alice/")
        return 77


class Worlds(NamedTuple):
    kind: str
    clusters: list[NodeCluster]
    stack: ExitStack

    def answers(self, method: str, path: str, **more: Any) -> list[httpx.Response]:
        """Return what alice gets in each world, first from one node and then from the other."""
        headers = {**bearer(**CLAIMS), **more.pop("headers", {})}
        found = []
        for cluster in self.clusters:
            for node in cluster.nodes:
                with node.client() as http:
                    found.append(http.request(method, path, headers=headers, **more))
        return found

    def answer(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Return alice's answer, which is the same in both worlds on the same node."""
        answers = self.answers(method, path, **more)
        half = len(answers) // 2
        for one, other in zip(answers[:half], answers[half:], strict=True):
            assert self._comparable(one) == self._comparable(other)
        for each in answers:
            assert b"bob-" not in each.content
        assert len({each.status_code for each in answers}) == 1, [each.text for each in answers]
        return answers[0]

    def _comparable(self, answer: httpx.Response) -> tuple[int, list[tuple[str, str]], bytes]:
        ports = re.compile("|".join(str(node.port) for cluster in self.clusters for node in cluster.nodes))
        clocks = ("date", "qt-lag-ms")
        headers = [
            (name, ports.sub("PORT", value)) for name, value in answer.headers.items() if name not in clocks
        ]
        return answer.status_code, headers, ports.sub("PORT", answer.content.decode("latin-1")).encode()


@pytest.fixture(scope="module", params=KINDS)
def worlds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worlds]:
    kind = request.param
    placement = Placement(1, APPLICATION_ID, (), ((0,), (1,)), ((), ()))
    with ExitStack() as stack:
        clusters = []
        for world in range(2):
            directory = tmp_path_factory.mktemp(f"{kind}-{world}")
            cluster = NodeCluster(
                directory,
                [placement] * 2,
                settings={"auth_secret_dir": secret_directory(directory / "jwt")},
                auth=AUTH,
                read={"ingest": True},
                view=KINDS[kind],
            )
            clusters.append(stack.enter_context(cluster))
            fill(kind, cluster.nodes, world)
            for node in cluster.nodes:
                node.node.producer = Topic()  # type: ignore[assignment]
        yield Worlds(kind, clusters, stack)


def keys_of_bob() -> list[str]:
    """Return keys that exist in the first world only, one on each node, and one that exists in neither."""
    return [rows_of(0, 0)[1].key, rows_of(0, 1)[1].key, "user/bob/missing"]


READS_OF_A_KEY: Final[dict[str, list[str]]] = {
    "latest": [
        "/v1/keys/{}", "/v1/keys/{}?probe=true", "/v1/keys/{}?consistency=any", "/v1/keys/{}?fields=n",
        "/v1/keys/{}?route=redirect", "/v1/keys/{}?route=local", "/v1/keys/{}?min-position=0:1",
        "/v1/keys/{}?key-encoding=utf8", "/v1/keys/{}/history", "/v1/keys/{}?as-of=0:2",
    ],
    "history": [
        "/v1/keys/{}", "/v1/keys/{}?as-of=0:2", "/v1/keys/{}?as-of=0:2,1:2", "/v1/keys/{}?as-of=2030-01-01T00:00:00Z",
        "/v1/keys/{}/history", "/v1/keys/{}/history?order=asc", "/v1/keys/{}/history?limit=1", "/v1/keys/{}%2Fhistory",
    ],
    "entries": ["/v1/entries/{}", "/v1/entries/{}?order=desc", "/v1/entries/{}?from=2020-01-01T00:00:00Z", "/v1/keys/{}"],
    "windows": ["/v1/windows/{}", "/v1/windows/{}?where=n>0", "/v1/windows/{}/2026-11-18T09:07:00Z", "/v1/windows/{}/0"],
}  # fmt: skip


def test_reads_of_a_foreign_key_are_refused(worlds: Worlds) -> None:
    """A read of another caller's key is refused in the same way whether the key exists or not, and whatever is asked of it."""
    for key in keys_of_bob():
        for template in READS_OF_A_KEY[worlds.kind]:
            slashed = key.replace("/", "%2F") if "/v1/windows" in template else key
            path = template.format(slashed)
            absent = (worlds.kind == "entries" and "keys" in path) or (
                worlds.kind == "latest" and "as-of" in path
            )
            allowed = 404 if absent else 400 if "utf8" in path else 403  # of what the view does not have
            for method in ("GET", "HEAD"):
                answer = worlds.answer(method, path, headers={"if-none-match": "*"})
                assert answer.status_code == allowed, (path, answer.text)
                assert "key_not_found" not in answer.text, path


def test_multi_get_of_a_foreign_key_is_refused(worlds: Worlds) -> None:
    """A multi-get with a foreign key is refused as a whole, as text and as base64url."""
    own = rows_of(0, 0)[0].key
    refused = 403 if worlds.kind in ("latest", "history") else 404  # a view of another kind has no multi-get
    for key in keys_of_bob():
        encoded = base64.urlsafe_b64encode(key.encode()).rstrip(b"=").decode()
        for body in ({"keys": [own, key]}, {"keys": [key] * 3}):
            assert worlds.answer("POST", "/v1/multi-get", json=body).status_code == refused
        answer = worlds.answer("POST", "/v1/multi-get?key-encoding=base64url", json={"keys": [encoded]})
        assert answer.status_code == refused
    if refused == 403:
        assert worlds.answer("POST", "/v1/multi-get", json={"keys": [own]}).json()["items"][0]["found"]


READS_OF_MANY_ROWS: Final[dict[str, list[str]]] = {
    "latest": [
        "/v1/scan", "/v1/scan?order=desc", "/v1/range", "/v1/range?from=user/bob/", "/v1/range?to=user/bob/z",
        "/v1/range?from=user/alice/&to=user/z", "/v1/prefix/u", "/v1/prefix/user/bob/", "/v1/prefix/user/alicea",
        "/v1/scan?where=n<1000", "/v1/scan?where=of LIKE 'b%25'", "/v1/scan?fields=of",
        "/v1/index/by-n", "/v1/index/by-n?order=desc", "/v1/index/by-n?from=0&to=102", "/v1/index/by-n?eq=1",
        "/v1/index/by-n?eq=3", "/v1/index/by-of?eq=bob-0", "/v1/index/by-of?from=b&to=c", "/v1/index/by-n?where=n>0",
        "/v1/index/by-n/groups", "/v1/index/by-of/groups?order=desc",
    ],
    "history": ["/v1/scan", "/v1/scan?as-of=0:2,1:2", "/v1/range?from=user/b&as-of=0:3,1:3", "/v1/prefix/user/?as-of=0:6,1:6"],
    "entries": ["/v1/entries", "/v1/entries?order=desc", "/v1/entries?where=n<1000", "/v1/entries?fields=of"],
    "windows": ["/v1/windows", "/v1/windows?order=desc", "/v1/windows?where=n>0", "/v1/windows?from=2020-01-01T00:00:00Z"],
}  # fmt: skip


def test_reads_of_many_rows_show_own_rows(worlds: Worlds) -> None:
    """Pages of each size, with all that their cursors lead to, and streams are the same whatever other callers have."""
    shown = 0
    for path in READS_OF_MANY_ROWS[worlds.kind]:
        mark = "&" if "?" in path else "?"
        for limit in (1, 2, 100):
            target = f"{path}{mark}limit={limit}"
            for _ in range(50):
                answer = worlds.answer("GET", target)
                assert answer.status_code == 200, (target, answer.text)
                shown += sum("user/alice/" in item.get("key", "") for item in answer.json()["items"])
                if answer.json()["cursor"] is None:
                    break
                target = f"{path}{mark}limit={limit}&cursor={answer.json()['cursor']}"
            else:
                raise AssertionError(f"{path} does not end")
        stream = worlds.answer("GET", path, headers={"accept": "application/x-ndjson"})
        assert stream.status_code == 200, (path, stream.text)
    assert shown


OTHER_READS: Final[dict[str, list[str]]] = {
    "latest": [
        "/v1/count", "/v1/count?where=n<1000", "/v1/count?approximate=true", "/v1/index/by-n/count",
        "/v1/index/by-n/count?eq=1", "/v1/index/by-of/count?from=b", "/v1/top?by=by-n&k=1000", "/v1/top?by=by-of",
        "/v1/filter", "/v1/filter?partition=0", "/v1/changes?from=start&wait-ms=0",
        "/v1/changes?from=start&wait-ms=0&prefix=user/bob/", "/v1/changes?from=start&wait-ms=0&prefix=user",
        "/v1/changes?from=start&wait-ms=0&where=n<1000", "/v1/placement", "/v1/status", "/metrics", "/",
        "/openapi.json", "/docs", "/v1/keys", "/v1/keys/", "/v1/keys/user", "/v1/keys/user/alicea/0",
        "/internal/v1/heartbeat", "/internal/v1/rows",
    ],
    "history": ["/v1/count", "/v1/index/by-n", "/v1/entries", "/v1/changes?from=start&wait-ms=0"],
    "entries": ["/v1/count", "/v1/top?by=n", "/v1/scan", "/v1/filter"],
    "windows": ["/v1/top?by=total", "/v1/top?by=n&k=1000&order=asc", "/v1/count", "/v1/filter", "/v1/index/by-n"],
}  # fmt: skip


def test_other_reads_say_nothing_of_other_callers(worlds: Worlds) -> None:
    """Counts, tops, filters, the feed, information and refusals are the same whatever other callers have."""
    for path in OTHER_READS[worlds.kind]:
        headers = {"accept": "application/x-ndjson"} if "/changes" in path else {}
        answer = worlds.answer("GET", path, headers=headers)
        assert answer.status_code in (200, 400, 401, 403, 404, 405), (path, answer.text)


def test_forged_cursors_stay_within_the_prefix(worlds: Worlds) -> None:
    """A caller's own cursor with another key in it is refused, or goes on within its rows."""
    for path in READS_OF_MANY_ROWS[worlds.kind]:
        answer = worlds.answer("GET", f"{path}{'&' if '?' in path else '?'}limit=1")
        cursor = answer.json()["cursor"]
        if cursor is None:
            continue
        body = unseal(cursor, 1 << 16)
        assert body is not None
        for key in (b"", b"\xff" * 9, body[10:] + b"\xff", *(key.encode() for key in keys_of_bob())):
            for head in (b"", body[10:11], body[10:19]):  # the number and the value of an index before it
                forged = seal(body[:10] + head + key)
                answer = worlds.answer("GET", f"{path}{'&' if '?' in path else '?'}cursor={forged}")
                assert answer.status_code in (200, 400), (path, key, answer.text)


def test_writes_stay_within_the_prefix(worlds: Worlds) -> None:
    """A write of an own key is acknowledged, and one of a foreign key refused, whether the key exists or not."""
    own = rows_of(0, 0)[0].key
    written = worlds.answer("POST", "/v1/records", json={"key": own, "value": {"n": 1, "at": NOON}})
    assert (written.status_code, written.json()) == (200, {"partition": 0, "offset": 77, "position": "0:78"})
    assert worlds.answer("DELETE", f"/v1/records/{own}").status_code == 200
    for key in keys_of_bob():
        foreign = {"key": key, "value": {"n": 1, "at": NOON}}
        for body in (foreign, [foreign], [{"key": own, "value": {"n": 1, "at": NOON}}, foreign]):
            assert worlds.answer("POST", "/v1/records", json=body).status_code == 403
        assert worlds.answer("DELETE", f"/v1/records/{key}").status_code == 403


def test_own_keys_are_read(worlds: Worlds) -> None:
    """Every read of a key works for an own one, on the node with it and on the other."""
    for partition in range(2):
        key = rows_of(0, partition)[0].key
        slashed = key.replace("/", "%2F") if worlds.kind == "windows" else key
        for template in READS_OF_A_KEY[worlds.kind][: 3 if worlds.kind != "windows" else 2]:
            answer = worlds.answer("GET", template.format(slashed))
            assert answer.status_code == (400 if template.endswith("as-of=0:2") and partition else 200), (
                answer.text
            )
    if worlds.kind == "history":
        versions = worlds.answer("GET", f"/v1/keys/{rows_of(0, 0)[0].key}/history").json()["items"]
        assert [version["offset"] for version in versions] == [4, 0]
        past = worlds.answer("GET", f"/v1/keys/{rows_of(0, 0)[0].key}?as-of=0:2")
        assert past.headers["qt-offset"] == "0"
