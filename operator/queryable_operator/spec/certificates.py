"""Describe the certificate that the nodes of a view show each other, and decide when it is renewed.

Strategy: each certificate has a CA of its own, whose key is thrown away once it has signed: nothing that is stored can sign
another one. A renewal is therefore a change of the CA, in two steps. First all nodes learn to trust the next certificate while
they show the one before; when kubelets have had time to bring them that, they show it, and still trust the one before.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import Final

from queryable_operator.spec import names

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


def names_service(host_names: Collection[str], namespace: str, view: str) -> bool:
    """Return whether clients can verify the view by a certificate with these names.

    The operator knows the Service's names and no names outside the cluster. So a certificate without any name of the cluster is
    taken for one of an address outside, and one that names another Service only is refused.
    """
    known = [_without_domain(each.lower()) for each in host_names]
    within = [name for name in known if name.endswith(".svc") or not {".", ":"} & set(name)]
    service = names.service_names(namespace, view)
    wildcards = (f"*.{namespace}", f"*.{namespace}.svc")
    return bool(known) and (not within or not {*service, *wildcards}.isdisjoint(known))


def _without_domain(name: str) -> str:
    before, found, _ = name.partition(".svc.")
    return f"{before}.svc" if found else name
