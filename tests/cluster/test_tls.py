"""Test views that speak TLS on a cluster: with a Secret as cert-manager makes it, and with certificates of the operator."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from cryptography import x509

from queryable_operator.act.node_certificates import StoredCertificates, make_certificate, stored_certificates
from queryable_operator.spec import names
from tests.support.certificates import CertificateAuthority
from tests.support.view_on_cluster import OPERATOR, SMALL, Caller, Platform, ViewOnCluster, available_view

pytestmark = pytest.mark.timeout(900)

SECRET, TYPE = "guarded-tls", "kubernetes.io/tls"
# One replica of each partition, so that nodes forward half of the reads to each other.
TWO_NODES: Mapping[str, Any] = {**SMALL, "replicas": 2}


@pytest.fixture(scope="module")
def authority() -> CertificateAuthority:
    return CertificateAuthority()


@pytest.fixture(scope="module")
def guarded(platform: Platform, authority: CertificateAuthority) -> Iterator[ViewOnCluster]:
    """Yield a view of two nodes with a Secret as cert-manager makes it, whose clients need a certificate."""
    write_certificate(platform, authority)
    certificate, key = authority.sign(("clients",))
    own = platform.write("clients.pem", (certificate + key).decode())
    caller = Caller(ca=platform.trust("guarded", authority.pem), certificate=own)
    spec = {**TWO_NODES, "tls": {"secretRef": {"name": SECRET}, "clientAuth": "require"}}
    with available_view(platform, "guarded", spec, caller) as view:
        view.wait_until_settled()
        yield view


def write_certificate(platform: Platform, authority: CertificateAuthority) -> int:
    """Write a certificate for the view's Service, and return its serial number."""
    certificate, key = authority.sign(("guarded", f"guarded.{platform.namespace.name}.svc"))
    platform.write_secret(SECRET, {"tls.crt": certificate, "tls.key": key, "ca.crt": authority.pem}, TYPE)
    return x509.load_pem_x509_certificate(certificate).serial_number


def serials(view: ViewOnCluster, name: str, ca: str) -> list[int | None]:
    """Return the serial numbers of the certificates that the nodes show for this name."""
    addresses = view.placement()["addresses"]
    answers = view.platform.clients("shown", name, *addresses, caller=replace(view.caller, ca=ca))
    return [answer["serial"] for answer in answers]


def degraded(view: ViewOnCluster) -> tuple[str, str, str]:
    (found,) = (each for each in view.status["conditions"] if each["type"] == "Degraded")
    return found["status"], found["reason"], found["message"]


def test_reads_are_verified(guarded: ViewOnCluster) -> None:
    """Another pod reads over HTTPS by the Service's name; plain HTTP and another CA get nothing."""
    platform = guarded.platform
    platform.produce(guarded.topic, {"one": '{"n": 1}'})
    other = platform.trust("other", CertificateAuthority("other").pem)

    assert guarded.values("one") == {"one": (200, {"n": 1})}
    (plain,) = platform.clients("ask", "http://guarded:8080/v1/keys/one")
    assert plain["status"] == 400
    address = f"{guarded.url}/v1/keys/one"
    (refused,) = platform.clients("ask", address, caller=Caller(ca=other))
    assert (refused["status"], "CERTIFICATE_VERIFY_FAILED" in refused["answer"]) == (0, True)


def test_clients_need_a_certificate(guarded: ViewOnCluster) -> None:
    """Without one a client is refused with a sentence; with one of another CA it gets no connection."""
    platform, trusting = guarded.platform, replace(guarded.caller, certificate="")
    address = f"{guarded.url}/v1/placement"
    (refused,) = platform.clients("ask", address, caller=trusting)
    assert (refused["status"], refused["answer"]["reason"]) == (401, "unauthenticated")
    assert "certificate" in refused["answer"]["detail"]
    certificate, key = CertificateAuthority("other").sign(("clients",))
    file = platform.write("stranger.pem", (certificate + key).decode())
    (stranger,) = platform.clients("ask", address, caller=replace(trusting, certificate=file))
    assert stranger["status"] == 0


def test_all_addresses_are_https(guarded: ViewOnCluster) -> None:
    """Status, placement and probes name HTTPS, and neither status nor ConfigMap holds a key."""
    host = f"guarded.{guarded.namespace.name}.svc.cluster.local"

    assert guarded.status["url"] == f"https://{host}:8080"
    assert all(address.startswith("https://") for address in guarded.placement()["addresses"])
    for pod in guarded.pods().values():
        serve = next(each for each in pod["spec"]["containers"] if each["name"] == "serve")
        assert {
            serve[f"{kind}Probe"]["httpGet"]["scheme"] for kind in ("startup", "liveness", "readiness")
        } == {"HTTPS"}
    assert "PRIVATE KEY" not in json.dumps([guarded.get(), *guarded.live("configmap")])


def test_rotations_fail_no_read(guarded: ViewOnCluster, authority: CertificateAuthority) -> None:
    """The user's certificate, and then the one between nodes while the operator restarts, change under load without a failed
    read and without a restart of a pod.
    """
    platform, namespace = guarded.platform, guarded.namespace.name
    pods = guarded.uids()
    with guarded.no_read_fails():
        serial = write_certificate(platform, authority)
        guarded.bring_secrets()
        platform.eventually(
            "nodes show the new certificate",
            lambda: set(serials(guarded, "guarded", guarded.caller.ca)) == {serial},
        )

        platform.operators.kubectl("scale", OPERATOR, "--replicas=0")
        between, following = with_next_certificate(guarded)
        platform.write_secret(names.node_certificate("guarded"), between, TYPE)
        guarded.bring_secrets()
        trusted, name = (
            platform.trust("between", between["ca.crt"]),
            names.node_tls_name(namespace, "guarded"),
        )
        platform.eventually(
            "nodes trust the next certificate", lambda: have_loaded(guarded, between["ca.crt"])
        )
        platform.operators.kubectl("scale", OPERATOR, "--replicas=1")
        platform.operator_answers()
        platform.eventually(
            "the operator has promoted the next certificate",
            lambda: stored(guarded).shown.chain == following,
        )
        guarded.bring_secrets()
        serial = x509.load_pem_x509_certificate(following).serial_number
        platform.eventually(
            "nodes show it to each other", lambda: set(serials(guarded, name, trusted)) == {serial}
        )
    assert guarded.uids() == pods


def stored(view: ViewOnCluster) -> StoredCertificates:
    found = stored_certificates(view.platform.listed("secret", f"/{names.node_certificate(view.name)}"))
    assert found is not None
    return found


def with_next_certificate(view: ViewOnCluster) -> tuple[Mapping[str, bytes], bytes]:
    """Return what the Secret holds once nodes have trusted the next certificate for long enough, and that certificate."""
    before, host = stored(view), names.node_tls_name(view.namespace.name, view.name)
    following = make_certificate((host, view.name), time.time() - 7200)
    staged = StoredCertificates(before.shown, (before.shown.ca, following.ca), following)
    return {key: base64.b64decode(text) for key, text in staged.data.items()}, following.chain


def have_loaded(view: ViewOnCluster, ca: bytes) -> bool:
    read = "import sys; sys.stdout.write(open('/etc/qt/node-tls/ca.crt').read())"
    mounted = [view.execute(ordinal, "serve", "python", "-c", read) for ordinal in range(2)]
    return all(text.strip() == ca.decode().strip() for text in mounted)


def test_unusable_secret_is_reported(guarded: ViewOnCluster, authority: CertificateAuthority) -> None:
    """A Secret that nodes cannot use degrades the view with a sentence that names it. No read of the Python client fails
    meanwhile, and a good Secret ends it.
    """
    platform = guarded.platform
    with guarded.no_read_fails("read-with-client"):
        certificate, _ = authority.sign(("guarded",))
        _, key = authority.sign(("guarded",))
        platform.write_secret(SECRET, {"tls.crt": certificate, "tls.key": key, "ca.crt": authority.pem}, TYPE)
        guarded.bring_secrets()
        platform.eventually(
            "the condition says so", lambda: degraded(guarded)[:2] == ("True", "SecretUnusable")
        )
        assert f"Secret {SECRET}: tls.crt and tls.key: the key does not fit" in degraded(guarded)[2]
        platform.eventually("nodes refuse it", lambda: all(refused(guarded)))
        write_certificate(platform, authority)
        guarded.bring_secrets()
    platform.eventually("nodes use the good one", lambda: not any(refused(guarded)))


def refused(view: ViewOnCluster) -> list[bool]:
    """Return for each node whether it does not use the certificate that is mounted, by its metrics, which need no certificate."""
    read = (
        "import ssl, urllib.request as r; c = ssl._create_unverified_context(); "
        "print(r.urlopen('https://127.0.0.1:8080/metrics', context=c).read().decode())"
    )
    line = 'qt_tls_certificate_refused{certificate="clients"} 1.0'
    return [line in view.execute(ordinal, "serve", "python", "-c", read) for ordinal in range(2)]


def test_operator_makes_certificates(platform: Platform) -> None:
    """Without a Secret the operator's certificate serves clients, the workers of a pod, and the rekey job, which reports to all
    nodes; without `tls` a new revision speaks plain HTTP.
    """
    rekey = {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "1200Mi"}}
    spec = {
        **SMALL,
        "value": {"format": "json", "schema": "city STRING"},
        "transform": {"sql": "SELECT value.city AS city FROM records"},
        "view": {
            "kind": "aggregate",
            "aggregate": {"groupBy": ["city"], "columns": [{"name": "people", "op": "count"}]},
        },
        "serve": {"workers": 2},
        "podTemplate": {"resources": {**SMALL["podTemplate"]["resources"], "rekey": rekey}},
        "tls": {},
    }
    with available_view(platform, "private", spec) as view:
        platform.produce(view.topic, {"one": '{"city": "Paris"}', "two": '{"city": "Paris"}'})
        trusted = replace(view, caller=Caller(ca=platform.trust("private", stored(view).ca)))
        assert trusted.values("Paris") == {"Paris": (200, {"people": 2})}
        secret = platform.listed("secret", f"/{names.node_certificate(view.name)}")
        assert [owner["name"] for owner in secret["metadata"]["ownerReferences"]] == ["private"]

        view.patch(tls=None)
        platform.eventually("a revision without TLS is active", lambda: view.active == "r2")
        view.wait_until_settled()
        assert view.values("Paris") == {"Paris": (200, {"people": 2})}
