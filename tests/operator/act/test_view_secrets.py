"""Test what the operator says about the Secrets that a view names."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import pytest

from queryable_operator.act.cluster import Cluster
from queryable_operator.act.node_certificates import make_certificate, stepped
from queryable_operator.act.view_secrets import SeenSecrets, ViewSecrets
from queryable_operator.spec.certificates import CertificateStep
from queryable_operator.spec.observed import Ref
from tests.support.certificates import CertificateAuthority
from tests.support.fake_api import FakeApi, fake_api

CA = CertificateAuthority()
DAY = timedelta(days=1)
GOOD, KEY = CA.sign(("v.a.svc",))
TLS: Mapping[str, Any] = {"tls": {"secretRef": {"name": "mine"}}}


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with fake_api() as api:
        yield api


def put(api: FakeApi, name: str, data: Mapping[str, bytes], uid: str = "") -> None:
    owners = [{"uid": uid}] if uid else []
    api.put(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "namespace": "a", "ownerReferences": owners},
            "data": {key: base64.b64encode(content).decode() for key, content in data.items()},
        }
    )


def seen(api: FakeApi, spec: Mapping[str, Any]) -> SeenSecrets:
    cluster = Cluster(api.configuration())
    try:
        return asyncio.run(ViewSecrets(("a", "v"), cluster).seen(spec, "it", False))
    finally:
        cluster.close()


PROBLEMS: Mapping[str, tuple[Mapping[str, bytes] | None, str, str]] = {
    "missing": (None, "none", "the Secret mine does not exist in the namespace a"),
    "empty": ({}, "none", "the Secret mine has no tls.crt and no tls.key"),
    "no key": ({"tls.crt": GOOD}, "none", "the Secret mine has no tls.key"),
    "no PEM": ({"tls.crt": b"x", "tls.key": KEY}, "none", "Secret mine: tls.crt and tls.key: they are no certificate"),
    "the key does not fit": (
        {"tls.crt": GOOD, "tls.key": CA.sign()[1]},
        "none",
        "Secret mine: tls.crt and tls.key: the key does not fit the certificate",
    ),
    "expired": (
        dict(zip(("tls.crt", "tls.key"), CA.sign(("v.a.svc",), starts_in=-2 * DAY, ends_in=-DAY), strict=True)),
        "none",
        "Secret mine/tls.crt is refused: certificate has expired",
    ),
    "not yet valid": (
        dict(zip(("tls.crt", "tls.key"), CA.sign(("v.a.svc",), starts_in=DAY), strict=True)),
        "none",
        "Secret mine/tls.crt is refused: certificate is not yet valid",
    ),
    "another name": (
        dict(zip(("tls.crt", "tls.key"), CA.sign(("w.a.svc",)), strict=True)),
        "none",
        "Secret mine: tls.crt does not name v.a.svc, so clients refuse it",
    ),
    "no CA for clients": (
        {"tls.crt": GOOD, "tls.key": KEY},
        "require",
        "Secret mine/ca.crt is missing; spec.tls.clientAuth require needs",
    ),
    "a CA that is none": (
        {"tls.crt": GOOD, "tls.key": KEY, "ca.crt": b"x"},
        "none",
        "Secret mine: ca.crt holds no certificate in PEM",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PROBLEMS)
def test_unusable_secret_is_named(api: FakeApi, case: str) -> None:
    """The sentence names the field, the Secret and the key, and never shows a content."""
    data, client_auth, sentence = PROBLEMS[case]
    if data is not None:
        put(api, "mine", data)
    problem = seen(api, {"tls": {**TLS["tls"], "clientAuth": client_auth}}).problem

    assert problem is not None
    assert problem.startswith("spec.tls.secretRef: ")
    assert sentence in problem
    assert "BEGIN" not in problem


def test_secret_of_cert_manager_has_no_problem(api: FakeApi) -> None:
    """A certificate for the Service with its key and CA is usable."""
    put(api, "mine", {"tls.crt": GOOD, "tls.key": KEY, "ca.crt": CA.pem})

    assert seen(api, {"tls": {**TLS["tls"], "clientAuth": "require"}}).problem is None


def test_missing_key_of_tokens_is_named(api: FakeApi) -> None:
    """The Secret of `auth.jwt` must have the key that the field names."""
    spec = {"auth": {"jwt": {"secretRef": {"name": "jwt", "key": "hmac"}}}}
    put(api, "jwt", {"other": b"x"})

    assert seen(api, spec).problem == "spec.auth.jwt.secretRef: the Secret jwt has no key hmac"


def test_views_without_tls_read_no_secret(api: FakeApi) -> None:
    """A view without TLS and tokens costs no request."""
    assert seen(api, {}) == SeenSecrets()
    assert api.requests == []


def test_certificate_of_another_owner_is_a_conflict(api: FakeApi) -> None:
    """The Secret between nodes counts only if it belongs to the view; one of another owner is not used."""
    stored = stepped(None, CertificateStep.CREATE, ("n",), 1e9)
    files = {key: base64.b64decode(text) for key, text in stored.data.items()}
    put(api, "v-nodes", files, uid="another")
    assert seen(api, {"tls": {}}) == SeenSecrets(conflict=Ref("Secret", "v-nodes"))

    put(api, "v-nodes", files, uid="it")
    found = seen(api, {"tls": {}})
    assert (found.stored, found.certificate) == (stored, stored.described())


def test_unusable_certificate_between_nodes_is_missing(api: FakeApi) -> None:
    """A Secret that a user has edited is made again."""
    put(api, "v-nodes", {"tls.crt": make_certificate(("n",), 1e9).chain}, uid="it")

    assert seen(api, {"tls": {}}) == SeenSecrets()
