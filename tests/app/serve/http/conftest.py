"""Fixtures of the tests of TLS."""

from __future__ import annotations

import pytest

from queryable_app.serve.base import node_tls
from tests.support.certificates import CertificateAuthority


@pytest.fixture(scope="module")
def ca() -> CertificateAuthority:
    return CertificateAuthority()


@pytest.fixture
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nodes look at their certificates often."""
    monkeypatch.setattr(node_tls, "_POLL_SECONDS", 0.02)
