"""Parse `spec.tls` into a frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from queryable_app.config.spec_fields import SpecError, one_of

ClientAuth = Literal["none", "request", "require"]
CERTIFICATE_FILE: Final = "tls.crt"
KEY_FILE: Final = "tls.key"
CA_FILE: Final = "ca.crt"


@dataclass(frozen=True, slots=True)
class Tls:
    """Configure how nodes speak TLS."""

    secret_name: str = ""
    """The Secret with `tls.crt`, `tls.key` and `ca.crt`. Empty: the operator makes the certificate."""

    client_auth: ClientAuth = "none"
    """Whether clients show a certificate of `ca.crt`: never, if they like, or always."""


def parse_tls(spec: Mapping[str, Any]) -> Tls | None:
    """Return `spec.tls`, or None if nodes speak plain HTTP."""
    tls = spec.get("tls")
    if tls is None:
        return None
    client_auth: ClientAuth = one_of(ClientAuth, tls.get("clientAuth", "none"), "spec.tls.clientAuth")
    secret_name = str(tls.get("secretRef", {}).get("name", ""))
    if client_auth != "none" and not secret_name:
        raise SpecError(
            f"spec.tls.clientAuth: {client_auth} needs spec.tls.secretRef, whose ca.crt has signed the clients' certificates"
        )
    return Tls(secret_name, client_auth)
