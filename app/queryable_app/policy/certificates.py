"""Make claims of a client's verified certificate, which the rules of a view compare as they do those of a token.

Strategy: the names of these claims are reserved, so no token can have them. A node that forwards a read vouches for the
certificate of its client: it sends what it has read of it, and the other node takes it from nodes of the view only.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any, Final

from queryable_app.config.auth import (
    CERTIFICATE_CLAIM,
    CERTIFICATE_COMMON_NAME,
    CERTIFICATE_NAMES,
    CERTIFICATE_SUBJECT,
)
from queryable_app.wire.checked import Malformed, field, list_of, optional, text

_SUBJECT_CHARS_MAX: Final = 1024
_NAMES_CHARS_MAX: Final = 2048
"""The most characters of all alternative names together. The names behind are left out."""
_ENCODED_BYTES_MAX: Final = 16_384
_UNTIL_MAX: Final = 1e12

# As RFC 4514 writes them. Any other attribute has the name that OpenSSL gives it.
_ATTRIBUTES: Final = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}
_ESCAPED: Final = frozenset('"+,;<>\\')


@dataclass(frozen=True)
class Certificate:
    """What rules can compare of a client's certificate."""

    subject: str
    """As RFC 4514 writes it, such as `CN=checkout,O=shop`."""
    common_name: str | None
    """None: the subject has none, or several."""
    names: tuple[str, ...]
    """The alternative names, such as `DNS:checkout.shop` and `URI:spiffe://shop/checkout`."""
    until: float
    """When it expires, in seconds since 1970."""

    @cached_property
    def claims(self) -> Mapping[str, Any]:
        found: dict[str, Any] = {CERTIFICATE_SUBJECT: self.subject, CERTIFICATE_NAMES: list(self.names)}
        return found if self.common_name is None else found | {CERTIFICATE_COMMON_NAME: self.common_name}

    @cached_property
    def encoded(self) -> bytes:
        """What a node sends of it to another one."""
        parts = [self.subject, self.common_name, self.names, self.until]
        return urlsafe_b64encode(json.dumps(dict(zip(_PARTS, parts, strict=True))).encode())

    @cached_property
    def digest(self) -> bytes:
        return sha256(self.encoded).digest()


_PARTS: Final = ("subject", "commonName", "names", "until")


def certificate_of(shown: Mapping[str, Any], until: float) -> Certificate:
    """Return what rules can compare of a verified certificate, as Python's `ssl` shows it. `until` is when it expires."""
    subject = shown.get("subject", ())
    common_names = [value for part in subject for name, value in part if name == "commonName"]
    written = ",".join("+".join(_attribute(*each) for each in part) for part in reversed(subject))
    return Certificate(
        written if len(written) <= _SUBJECT_CHARS_MAX else "",
        common_names[0] if len(common_names) == 1 and len(common_names[0]) <= _SUBJECT_CHARS_MAX else None,
        tuple(_names(shown)),
        until,
    )


def _names(shown: Mapping[str, Any]) -> Iterator[str]:
    size = 0
    for kind, value in shown.get("subjectAltName", ()):
        if isinstance(value, str):
            name = f"{kind}:{value}"
            size += len(name)
            if size > _NAMES_CHARS_MAX:
                return
            yield name


def _attribute(name: str, value: str) -> str:
    characters = [
        f"\\{char}" if char in _ESCAPED else char if char.isprintable() else _in_hex(char) for char in value
    ]
    if value[:1] in (" ", "#"):
        characters[0] = f"\\{value[0]}"
    if len(value) > 1 and value.endswith(" "):
        characters[-1] = "\\ "
    return f"{_ATTRIBUTES.get(name, name)}={''.join(characters)}"


def _in_hex(char: str) -> str:
    return "".join(f"\\{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))


def decode_certificate(encoded: bytes) -> Certificate:
    """Return what another node has sent of a client's certificate. Raises Malformed."""
    if len(encoded) > _ENCODED_BYTES_MAX:
        raise Malformed("a certificate is longer than nodes send it")
    try:
        raw = json.loads(urlsafe_b64decode(encoded))
    except (ValueError, RecursionError):
        raise Malformed("a certificate is not JSON in base64url") from None
    subject, common_name, names, until = _PARTS
    return Certificate(
        field(raw, subject, text),
        field(raw, common_name, optional(text)),
        tuple(field(raw, names, list_of(text))),
        field(raw, until, _time),
    )


def _time(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _UNTIL_MAX:
        raise Malformed("is no time")
    return float(value)


def joined_claims(claims: Mapping[str, Any], certificate: Certificate | None) -> Mapping[str, Any]:
    """Return the claims of a token and of a certificate. A token's claims with reserved names do not count."""
    own = {name: value for name, value in claims.items() if not name.startswith(CERTIFICATE_CLAIM)}
    return own if certificate is None else {**own, **certificate.claims}
