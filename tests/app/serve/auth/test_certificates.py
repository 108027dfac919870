"""Client certificates in rules, over real sockets: on the fast lane, in a task, and on the node that a read is forwarded to."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import pytest

from queryable_app.config.spec_fields import SpecError
from queryable_app.config.topic_spec import parse_spec
from queryable_app.placement.assignment import Placement
from queryable_app.platform.certificates import client_context
from queryable_app.policy.certificates import Certificate
from tests.app.serve.auth.conftest import HERE, THERE
from tests.support.certificates import CertificateAuthority, mount_for_localhost
from tests.support.node import put
from tests.support.node_cluster import APPLICATION_ID, TOKEN, NodeCluster
from tests.support.served import now_ms
from tests.support.tokens import SECRET_REF, bearer, secret_directory
from tests.support.waiting import eventually

RULES: Final[list[dict[str, Any]]] = [
    {"claim": "certificate.subject", "equals": "CN=gateway", "allow": ["read", "scan", "write", "admin"]},
    {
        "claim": "certificate.names",
        "glob": "DNS:*.shop",
        "allow": ["read", "scan", "changes"],
        "keyPrefix": "user/{certificate.commonName}/",
    },
    {"claim": "role", "equals": "clerk", "allow": ["read"]},
    {"allow": ["changes"]},
]
ALL: Final = [HERE["plain"], THERE["plain"], HERE["user/bob/"], THERE["user/bob/"]]
ALICE: Final = [HERE["user/alice/"], THERE["user/alice/"]]
CLERK: Final[dict[str, Any]] = {"scope": None, "role": "clerk"}
QUERIES: Final = ("", "", "?consistency=any", "?max-lag-ms=60000")


class View(NamedTuple):
    cluster: NodeCluster
    ca: CertificateAuthority
    directory: Path

    def client(
        self, name: str | None, names: tuple[str, ...] = ("x.other",), headers: Any = None
    ) -> httpx.Client:
        """Return a client of the first node with a certificate, or with none."""
        return self.cluster.nodes[0].client(verify=self.context(name, names), headers=headers)

    def context(self, name: str | None, names: tuple[str, ...] = ("x.other",)) -> ssl.SSLContext:
        context = client_context(self.ca.pem)
        if name is not None:
            for file, content in zip(("crt", "key"), self.ca.sign(names, subject=name), strict=True):
                (self.directory / file).write_bytes(content)
            context.load_cert_chain(self.directory / "crt", self.directory / "key")
        return context


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> Iterator[View]:
    directory = tmp_path_factory.mktemp("certificates")
    ca = mount_for_localhost(directory / "secret")
    placement = Placement(1, APPLICATION_ID, (), ((0,), (1,)), ((), ()))
    with NodeCluster(
        directory,
        [placement] * 2,
        settings={
            "auth_secret_dir": secret_directory(directory / "jwt"),
            "tls_dir": str(directory / "secret"),
        },
        tls={"secretRef": {"name": "tls"}, "clientAuth": "request"},
        auth={"jwt": SECRET_REF, "rules": RULES},
        read={"ingest": True},
        view={"changes": True},
    ) as cluster:
        for partition, keys in enumerate((HERE, THERE)):
            rows = [put(n, key.encode(), b'{"n":1}', now_ms()) for n, key in enumerate(keys.values())]
            cluster.nodes[partition].put_slice(*rows, partition=partition)
        eventually("the nodes meet", lambda: len(cluster.nodes[0].node.peers.last_heartbeats) == 1)
        yield View(cluster, ca, directory)


@pytest.mark.parametrize("query", QUERIES)
def test_certificate_reads_without_a_token(view: View, query: str) -> None:
    """A client whose certificate a rule names reads on both nodes: on the fast lane, in a task, and by forwarding."""
    with view.client("gateway") as http:
        for key in ALL:
            answer = http.get(f"/v1/keys/{key}{query}")
            assert (answer.status_code, answer.json()) == (200, {"n": 1})
            assert answer.headers["qt-hops"] == ("0" if key in HERE.values() else "1")
        assert len(http.get("/v1/scan").json()["items"]) == 8
        assert http.post("/v1/multi-get", json={"keys": ALL}).status_code == 200
        assert http.get("/v1/status").status_code == 200


def test_certificate_takes_the_fast_lane(view: View) -> None:
    """The certificate is read once for each connection: its reads are answered on the fast lane of both nodes."""
    first, second = (node.node.counters for node in view.cluster.nodes)
    before = first.fast_answers, second.fast_answers
    with view.client("gateway") as http:
        for key in (HERE["plain"], THERE["plain"]) * 3:
            assert http.get(f"/v1/keys/{key}").status_code == 200
    assert first.fast_answers - before[0] == 6
    assert second.fast_answers - before[1] >= 3  # and its heartbeats


@pytest.mark.parametrize("query", QUERIES)
def test_name_of_a_certificate_is_a_prefix(view: View, query: str) -> None:
    """A rule with the common name in its prefix allows the keys with it, on both nodes, and no others."""
    with view.client("alice", ("pay.shop",)) as http:
        for key in ALICE:
            assert http.get(f"/v1/keys/{key}{query}").status_code == 200
        for key in ALL:
            assert http.get(f"/v1/keys/{key}{query}").status_code == 403
        assert sorted(item["key"] for item in http.get("/v1/scan").json()["items"]) == sorted(ALICE)


@pytest.mark.parametrize("name", ["a/b", "", "alice/..", "bob\0"])
def test_name_of_a_certificate_cannot_widen_a_prefix(view: View, name: str) -> None:
    """A common name with a separator, or an empty one, gets nothing from the rule."""
    try:
        http = view.client(name, ("pay.shop",))
    except ValueError:
        return  # no certificate can have such a name
    with http:
        assert http.get("/v1/scan").status_code == 401
        assert http.get(f"/v1/keys/{HERE['user/bob/']}").status_code == 401


@pytest.mark.parametrize("name", [None, "stranger"])
def test_tokens_count_without_a_certificate(view: View, name: str | None) -> None:
    """Without a certificate, or with one that no rule names, a token is needed, and enough."""
    with view.client(name) as http:
        for key in ALL:
            for query in QUERIES:
                assert http.get(f"/v1/keys/{key}{query}").status_code == 401
                assert http.get(f"/v1/keys/{key}{query}", headers=bearer(**CLERK)).status_code == 200
        assert http.get("/v1/scan", headers=bearer(**CLERK)).status_code == 403
        answer = http.get(f"/v1/keys/{ALL[0]}")
        assert ("certificate" in answer.json()["detail"]) == (name is not None)


def test_certificate_and_token_are_joined(view: View) -> None:
    """A caller with both may do what either allows, and a bad token is refused beside a good certificate."""
    with view.client("alice", ("pay.shop",), bearer(**CLERK)) as http:
        for key in (*ALL, *ALICE):
            assert http.get(f"/v1/keys/{key}").status_code == 200
        assert len(http.get("/v1/scan").json()["items"]) == 2
    with view.client("gateway") as http:
        for authorization in ("Bearer a.b.c", "Basic x", "Bearer"):
            for key in (*ALL, *ALICE):
                answer = http.get(f"/v1/keys/{key}", headers={"authorization": authorization})
                assert answer.status_code == 401


def test_rule_without_a_claim_is_of_tokens(view: View) -> None:
    """A certificate that no rule names gets nothing from a rule for every token."""
    path = "/v1/changes?from=start&wait-ms=0"
    with view.client("stranger", headers={"accept": "application/x-ndjson"}) as http:
        assert http.get(path).status_code == 401
        assert http.get(path, headers=bearer(scope=None)).status_code == 200


def test_token_cannot_claim_a_certificate(view: View) -> None:
    """A token with claims that are named like those of a certificate gets nothing by them."""
    made_up: dict[str, Any] = {
        "certificate.subject": "CN=gateway",
        "certificate.commonName": "bob",
        "certificate.names": ["DNS:a.shop"],
    }
    for name in (None, "stranger"):
        with view.client(name, headers=bearer(scope=None, **made_up)) as http:
            for key in ALL:
                assert http.get(f"/v1/keys/{key}").status_code == 403
            assert http.get("/v1/scan").status_code == 403


@pytest.mark.parametrize("mark", [None, "", "x", TOKEN[:-1]])
@pytest.mark.parametrize("query", ["", "?consistency=any"])
def test_client_cannot_vouch_for_a_certificate(view: View, query: str, mark: str | None) -> None:
    """A client that sends what a node sends of a certificate is refused, with any mark but the nodes' own."""
    made_up = Certificate("CN=gateway", "gateway", (), 1e11).encoded.decode()
    headers: dict[str, Any] = {"qt-client-certificate": made_up}
    if mark is not None:
        headers |= {"qt-forwarded": mark, "qt-deadline-ms": "1000"}
    for token in ({}, bearer(**CLERK)):
        with view.client(None, headers={**headers, **token}) as http:
            for key in ALL:
                assert http.get(f"/v1/keys/{key}{query}").status_code == 403
            assert http.get("/v1/scan").status_code == 403


@pytest.mark.parametrize("sent", ["", "x", "e30", "A" * 3000])
def test_node_that_vouches_wrongly_is_refused(view: View, sent: str) -> None:
    """A forwarded read with a certificate that no node sends is refused, also with the nodes' mark."""
    headers: dict[str, Any] = {"qt-client-certificate": sent, "qt-deadline-ms": "1000", "qt-forwarded": TOKEN}
    with view.client(None, headers=headers) as http:
        assert http.get(f"/v1/keys/{HERE['plain']}").status_code == 403


def test_connections_do_not_share_certificates(view: View) -> None:
    """The same bytes on a connection without the certificate, or with another one, open nothing."""
    clients = [view.client(name) for name in ("gateway", None, "stranger")]
    try:
        for _ in range(3):
            for key in (HERE["plain"], THERE["plain"]):
                assert [http.get(f"/v1/keys/{key}").status_code for http in clients] == [200, 401, 401]
    finally:
        for http in clients:
            http.close()


def test_expired_certificate_allows_nothing(view: View) -> None:
    """From the expiry of its certificate on, an open connection needs a token."""
    with view.client("gateway") as http:
        for key in (HERE["plain"], THERE["plain"]):
            assert http.get(f"/v1/keys/{key}").status_code == 200
        first = view.cluster.nodes[0]
        authenticator = first.node.authenticator
        assert authenticator is not None
        (connection,) = [each for each in first.protocol.open if each.certificate is not None]  # type: ignore[attr-defined]
        until = connection.certificate.until  # type: ignore[attr-defined]
        authenticator.clock, clock = (lambda: until), authenticator.clock
        try:
            for key in (HERE["plain"], THERE["plain"]):
                assert http.get(f"/v1/keys/{key}").status_code == 401
        finally:
            authenticator.clock = clock


class _Topic:
    """Stand in for Kafka."""

    async def send(self, key: bytes, value: bytes | None, partition: int, deadline_seconds: float) -> int:
        return 5


def test_write_is_allowed_by_a_certificate(view: View) -> None:
    """A write by certificate is written, also by the other node, which remembers its Idempotency-Key."""
    for node in view.cluster.nodes:
        node.node.producer = _Topic()  # type: ignore[assignment]
    with view.client("gateway") as http, view.client("alice", ("pay.shop",)) as other:
        for number in range(8):
            more = {"idempotency-key": f"w-{number}"}
            record = {"key": HERE["plain"], "value": number}
            assert http.post("/v1/records", json=record, headers=more).status_code == 200
            assert other.post("/v1/records", json=record, headers=more).status_code == 403


def test_rules_on_certificates_need_certificates(tmp_path: Path) -> None:
    """A view whose clients show no certificate cannot have rules on it, and an unknown claim is named."""
    tls = {"secretRef": {"name": "tls"}, "clientAuth": "request"}
    spec: dict[str, Any] = {
        "kafka": {"bootstrapServers": "x:1"}, "topic": "t", "auth": {"jwt": SECRET_REF, "rules": RULES}, "tls": tls,
    }  # fmt: skip
    parsed = parse_spec(spec).auth
    assert parsed is not None
    assert replace(parsed).uses_certificates
    for without in ({}, {"tls": {**tls, "clientAuth": "none"}}):
        with pytest.raises(SpecError, match="clientAuth"):
            parse_spec({name: value for name, value in spec.items() if name != "tls"} | without)
    rules = [{"claim": "certificate.serial", "equals": "1", "allow": ["read"]}]
    with pytest.raises(SpecError, match=r"certificate\.serial"):
        parse_spec({**spec, "auth": {"jwt": SECRET_REF, "rules": rules}})
