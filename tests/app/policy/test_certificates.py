"""What rules compare of a certificate is unambiguous, and a node takes it from another one unchanged."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from queryable_app.policy.certificates import Certificate, certificate_of, decode_certificate, joined_claims
from queryable_app.wire.checked import Malformed

EXPIRES = 1_921_312_800.0
NAMES = {
    "commonName": NameOID.COMMON_NAME,
    "organizationName": NameOID.ORGANIZATION_NAME,
    "organizationalUnitName": NameOID.ORGANIZATIONAL_UNIT_NAME,
    "domainComponent": NameOID.DOMAIN_COMPONENT,
}
VALUES = st.text(st.sampled_from('ab ,+="\\<>;#é/'), min_size=1, max_size=6)
PART = st.tuples(st.sampled_from(sorted(NAMES)), VALUES).map(lambda each: (each,))
SUBJECTS = st.lists(PART, min_size=1, max_size=4).map(tuple)


def of(subject: Any, names: Any = ()) -> Certificate:
    """Return what is read of a certificate as Python's `ssl` shows it."""
    return certificate_of({"subject": subject, "subjectAltName": names}, EXPIRES)


@given(SUBJECTS)
def test_subject_is_written_as_rfc_4514_says(subject: Any) -> None:
    """Another implementation reads the same names from the subject."""
    expected = x509.Name([x509.NameAttribute(NAMES[name], value) for ((name, value),) in subject])
    assert x509.Name.from_rfc4514_string(of(subject).subject) == expected


@given(SUBJECTS, SUBJECTS)
def test_subjects_never_look_alike(one: Any, other: Any) -> None:
    """No value of an attribute makes a subject look like another one."""
    same = of(one).subject == of(other).subject
    assert same == (one == other)


def test_control_characters_are_escaped() -> None:
    """A subject has no character that could end a header line or a line of the log."""
    subject = ((("commonName", "a\r\nb\0"),), (("emailAddress", "x@y"),))
    assert of(subject).subject == "emailAddress=x@y,CN=a\\0D\\0Ab\\00"


@given(SUBJECTS, st.lists(st.tuples(st.sampled_from(["DNS", "URI"]), st.text(max_size=9)).map(tuple)))
def test_another_node_reads_what_was_sent(subject: Any, names: Any) -> None:
    """What a node sends of a certificate is what the other one compares."""
    sent = of(subject, tuple(names))
    assert decode_certificate(sent.encoded) == sent
    assert b"\r" not in sent.encoded
    assert b"\n" not in sent.encoded


def test_names_are_bounded() -> None:
    """A certificate with thousands of names is compared by the first of them."""
    found = of((), tuple(("DNS", f"host-{n}.test") for n in range(5000)))
    assert 50 < len(found.names) < 200
    assert found.names[0] == "DNS:host-0.test"


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        (((("commonName", "a"),),), "a"),
        (((("commonName", "a"),), (("commonName", "b"),)), None),
        (((("organizationName", "a"),),), None),
        ((), None),
    ],
)
def test_common_name_is_the_only_one(subject: Any, name: str | None) -> None:
    """A subject with several common names has none that a rule compares."""
    assert of(subject).claims.get("certificate.commonName") == name


def test_token_cannot_have_claims_of_a_certificate() -> None:
    """A token's claims with reserved names do not count, with a certificate and without one."""
    token = {"sub": "a", "certificate.subject": "CN=root", "certificate.more": 1}
    assert joined_claims(token, None) == {"sub": "a"}
    own = of(((("commonName", "a"),),))
    assert joined_claims(token, own)["certificate.subject"] == "CN=a"


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"{",
        b"x" * 20_000,
        *(urlsafe_b64encode(text) for text in (b"[]", b"{}", b'{"subject":1}', b"[" * 9000)),
    ],
    ids=lambda sent: sent[:12],
)
def test_malformed_certificates_are_refused(sent: bytes) -> None:
    """What no node sends is refused."""
    with pytest.raises(Malformed):
        decode_certificate(sent)
