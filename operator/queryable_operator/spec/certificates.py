"""Describe the certificate that the nodes of a view show each other, and decide when it is renewed.

Strategy: each certificate has a CA of its own, whose key is thrown away once it has signed: nothing that is stored can sign
another one. A renewal is therefore a change of the CA, in two steps. First all nodes learn to trust the next certificate while
they show the one before; when kubelets have had time to bring them that, they show it, and still trust the one before.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

LIFE_SECONDS: Final = 365 * 86_400.0
TRUST_SECONDS: Final = 3600.0
"""How long nodes trust the next certificate before it is shown. A kubelet brings a changed Secret within minutes."""

_RENEWED_AFTER: Final = 2 / 3  # of its life


class CertificateStep(Enum):
    CREATE = "make a certificate, and show it at once"
    STAGE = "make the next one, and let nodes trust it"
    PROMOTE = "show the next one, and trust the one before"


@dataclass(frozen=True, slots=True)
class NodeCertificate:
    """Describe what the Secret holds. Times are seconds since 1970."""

    not_before: float
    not_after: float
    next_not_before: float | None = None
    """When the next certificate was made. None: there is none."""


def certificate_step(certificate: NodeCertificate | None, now: float) -> CertificateStep | None:
    """Return what is to be done. `certificate` is None if the Secret is missing or unusable."""
    if certificate is None or now >= certificate.not_after:
        return CertificateStep.CREATE
    if certificate.next_not_before is not None:
        trusted = now - certificate.next_not_before >= TRUST_SECONDS
        return CertificateStep.PROMOTE if trusted else None
    life = certificate.not_after - certificate.not_before
    return CertificateStep.STAGE if now >= certificate.not_before + _RENEWED_AFTER * life else None
