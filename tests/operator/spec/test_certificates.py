"""Test when the certificate between nodes is renewed, and which certificates name a view's Service."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryable_operator.spec.certificates import (
    LIFE_SECONDS,
    TRUST_SECONDS,
    CertificateStep,
    NodeCertificate,
    certificate_step,
    names_service,
)

MADE = 1_000_000_000.0
SHOWN = NodeCertificate(MADE, MADE + LIFE_SECONDS)
RENEWED = MADE + LIFE_SECONDS * 2 / 3
STAGED = NodeCertificate(MADE, MADE + LIFE_SECONDS, RENEWED)

STEPS = {
    "none": (None, MADE, CertificateStep.CREATE),
    "new": (SHOWN, MADE, None),
    "before two thirds of its life": (SHOWN, RENEWED - 1, None),
    "at two thirds of its life": (SHOWN, RENEWED, CertificateStep.STAGE),
    "the next one is not trusted yet": (STAGED, RENEWED + TRUST_SECONDS - 1, None),
    "the next one is trusted": (STAGED, RENEWED + TRUST_SECONDS, CertificateStep.PROMOTE),
    "expired": (SHOWN, MADE + LIFE_SECONDS, CertificateStep.CREATE),
    "expired beside a next one": (STAGED, MADE + LIFE_SECONDS, CertificateStep.CREATE),
}


@pytest.mark.parametrize("case", STEPS)
def test_certificate_is_renewed_in_time(case: str) -> None:
    """A certificate is renewed at two thirds of its life, in two steps with an hour between them."""
    certificate, now, step = STEPS[case]

    assert certificate_step(certificate, now) is step


@given(seconds=st.floats(0, 4 * LIFE_SECONDS), pause=st.floats(1, LIFE_SECONDS / 8))
def test_shown_certificate_never_expires(seconds: float, pause: float) -> None:
    """With passes at least every eighth of a life, nodes always show a valid certificate that all of them have trusted."""
    certificate, now = SHOWN, MADE
    while now < MADE + seconds:
        step = certificate_step(certificate, now)
        assert step is not CertificateStep.CREATE
        if step is CertificateStep.STAGE:
            certificate = NodeCertificate(certificate.not_before, certificate.not_after, now)
        elif step is CertificateStep.PROMOTE:
            made = certificate.next_not_before
            assert made is not None
            assert now - made >= TRUST_SECONDS
            certificate = NodeCertificate(made, made + LIFE_SECONDS)
        assert now < certificate.not_after
        now += max(pause, LIFE_SECONDS / 1000)


FITTING = (
    ["users"],
    ["users.shop"],
    ["users.shop.svc"],
    ["users.shop.svc.cluster.local"],
    ["USERS.shop.svc.other.domain"],
    ["*.shop.svc"],
    ["*.shop.svc.cluster.local", "users.example"],
    ["users.example", "orders.shop.svc", "users.shop.svc"],
    ["users.example"],
    ["192.0.2.1"],
    ["2001:db8::1"],
)
OTHERS: tuple[list[str], ...] = (
    [],
    ["orders"],
    ["orders.shop.svc"],
    ["users.other.svc.cluster.local"],
    ["*.other.svc", "users.example"],
    ["*.users-r1.shop.svc"],
)


@pytest.mark.parametrize("host_names", FITTING)
def test_certificate_for_the_service_fits(host_names: list[str]) -> None:
    """One of the Service's names is enough; names outside the cluster are the user's."""
    assert names_service(host_names, "shop", "users")


@pytest.mark.parametrize("host_names", OTHERS)
def test_certificate_for_another_service_does_not_fit(host_names: list[str]) -> None:
    """A certificate for another Service of the cluster only, or for nothing, is refused."""
    assert not names_service(host_names, "shop", "users")
