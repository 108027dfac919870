"""Test the certificates that the operator makes for nodes, by handshakes."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from queryable_app.platform.certificates import (
    CertificateError,
    CertificateFiles,
    check_name,
    expiry,
    read_certificate_files,
)
from queryable_operator.act.node_certificates import (
    Certificate,
    StoredCertificates,
    host_names,
    make_certificate,
    stepped,
    stored_certificates,
)
from queryable_operator.spec.certificates import LIFE_SECONDS, CertificateStep

HOSTS = ("nodes.users.shop.example", "users.shop.svc")
NOW = time.time()


def shown_to(trusting: StoredCertificates, showing: StoredCertificates, host: str = HOSTS[0]) -> None:
    """Let a node that trusts one Secret call a node that shows another. Raises CertificateError."""
    check_name(CertificateFiles(showing.shown.chain, showing.shown.key, trusting.ca), host)


@pytest.fixture(scope="module")
def created() -> StoredCertificates:
    return stepped(None, CertificateStep.CREATE, HOSTS, NOW)


def test_made_certificate_is_verified_by_its_names(created: StoredCertificates) -> None:
    """A node verifies each of the names, and no other, for a year."""
    for host in HOSTS:
        shown_to(created, created, host)
    with pytest.raises(CertificateError, match="Hostname mismatch"):
        shown_to(created, created, "orders.shop.svc")
    files = CertificateFiles(created.shown.chain, created.shown.key)
    assert expiry(files) == pytest.approx(NOW + LIFE_SECONDS, abs=1)
    assert tuple(host_names(created.shown.chain)) == HOSTS


def test_renewal_fails_no_handshake(created: StoredCertificates) -> None:
    """Nodes before and after each step of a renewal verify each other, whichever gets the Secret first."""
    staged = stepped(created, CertificateStep.STAGE, HOSTS, NOW)
    promoted = stepped(staged, CertificateStep.PROMOTE, HOSTS, NOW)

    assert staged.shown == created.shown
    assert promoted.shown == staged.following
    assert promoted.following is None
    for one, other in ((created, staged), (staged, promoted)):
        shown_to(one, other)
        shown_to(other, one)
    with pytest.raises(CertificateError, match="is refused"):
        shown_to(created, promoted)


def test_secret_is_read_as_it_was_written(created: StoredCertificates, tmp_path: Path) -> None:
    """The Secret gives the same certificates, to the operator and to a node that mounts it, and has no key of a CA."""
    staged = stepped(created, CertificateStep.STAGE, HOSTS, NOW)
    for name, text in staged.data.items():
        (tmp_path / name).write_bytes(base64.b64decode(text))
    mounted = read_certificate_files(tmp_path)

    assert stored_certificates({"data": staged.data}) == staged
    assert (mounted.certificate, mounted.key, mounted.ca) == (
        staged.shown.chain,
        staged.shown.key,
        staged.ca,
    )
    assert sorted(staged.data) == ["ca.crt", "next.crt", "next.key", "tls.crt", "tls.key"]
    assert staged.described().next_not_before == pytest.approx(NOW, abs=1)


def test_keys_are_not_shown(created: StoredCertificates) -> None:
    """The text of the values has no key."""
    assert "PRIVATE" not in repr(created)
    assert repr(created.shown.key) not in repr(created)


EDITED: Mapping[str, Mapping[str, Any]] = {
    "no data": {},
    "no certificate": {"tls.crt": None},
    "no CA": {"ca.crt": ""},
    "no base64": {"tls.crt": "%"},
    "no PEM": {"tls.crt": base64.b64encode(b"rubbish").decode()},
    "a list": {"tls.crt": ["x"]},
    "half of a next one": {"next.crt": base64.b64encode(b"rubbish").decode()},
}


@pytest.mark.parametrize("case", EDITED)
def test_edited_secret_is_unusable(created: StoredCertificates, case: str) -> None:
    """A Secret that a user has edited counts as missing, so that the operator makes another certificate."""
    data = {**created.data, **EDITED[case]} if EDITED[case] else {}

    assert stored_certificates({"data": {k: v for k, v in data.items() if v is not None}}) is None


def test_certificate_of_another_ca_is_unusable(created: StoredCertificates) -> None:
    """Nodes would not trust each other."""
    other = make_certificate(HOSTS, NOW)
    mixed = StoredCertificates(Certificate(other.chain, other.key), (created.shown.ca,))

    assert stored_certificates({"data": mixed.data}) is None
