"""Parse `spec.auth`: how tokens are verified, and what each caller may do.

Strategy: everything that is not allowed is refused. A rule grants operations, on all keys or on those with a prefix. A prefix may
contain the values of claims; a separator must follow each of them, so that no value can widen the prefix.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final, Literal, get_args
from urllib.parse import urlsplit

from queryable_app.config.spec_fields import SpecError, one_of

OperationName = Literal["read", "scan", "write", "changes", "admin"]
OpenTo = Literal["token", "open", "off"]
Comparison = Literal["equals", "contains", "glob"]
Information = Literal["metrics", "status", "docs"]

RULES_MAX: Final = 64
PREFIX_FORMATS: Final = ("string", "bytes")
"""The key formats whose keys have prefixes."""

CERTIFICATE_CLAIM: Final = "certificate."
"""How the names of claims begin that are of a client's certificate, and not of a token."""
CERTIFICATE_SUBJECT: Final = f"{CERTIFICATE_CLAIM}subject"
CERTIFICATE_COMMON_NAME: Final = f"{CERTIFICATE_CLAIM}commonName"
CERTIFICATE_NAMES: Final = f"{CERTIFICATE_CLAIM}names"

_CERTIFICATE_CLAIMS: Final = (CERTIFICATE_SUBJECT, CERTIFICATE_COMMON_NAME, CERTIFICATE_NAMES)
_TEXT_MAX: Final = 256
_SKEW_SECONDS_MAX: Final = 300
_SKEW_SECONDS: Final = 30
_CA_CHARS_MAX: Final = 65_536
_COMPARISONS: Final[tuple[Comparison, ...]] = get_args(Comparison)
_PLACEHOLDER: Final = re.compile(r"\{([^{}]{1,256})\}")


@dataclass(frozen=True, slots=True)
class KeyPrefix:
    """A prefix of keys: texts with the values of claims between them. There is one more text than claims."""

    texts: tuple[str, ...]
    claims: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """What a caller may do whose token has a claim."""

    allow: frozenset[OperationName]
    claim: str | None = None
    """None: every valid token. The claims of a client's certificate begin with `CERTIFICATE_CLAIM`."""
    comparison: Comparison = "equals"
    value: str = ""
    key_prefix: KeyPrefix | None = None
    """None: all keys."""

    @property
    def claims(self) -> tuple[str, ...]:
        """The claims on which the rule depends."""
        of_prefix = () if self.key_prefix is None else self.key_prefix.claims
        return of_prefix if self.claim is None else (self.claim, *of_prefix)


@dataclass(frozen=True, slots=True)
class AuthSpec:
    rules: tuple[Rule, ...]
    secret_name: str = ""
    secret_key: str = ""
    """The name of the signing key in the Secret. Empty: tokens are verified with the keys at `jwks_url`."""
    jwks_url: str = ""
    jwks_ca: str = ""
    """Certificates in PEM that the server of `jwks_url` is verified with. Empty: those of the system."""
    issuer: str = ""
    audience: str = ""
    clock_skew_seconds: int = _SKEW_SECONDS
    open_to: Mapping[Information, OpenTo] | None = None
    audit_plain_keys: bool = False
    uses_certificates: bool = False
    """Whether a rule depends on the certificate of a client."""

    def access_to(self, information: Information) -> OpenTo:
        """Return which requests may read metrics, status or pages."""
        return (self.open_to or {}).get(information, "token")


def parse_auth(auth: Mapping[str, Any] | None, key_format: str) -> AuthSpec | None:
    """Parse `spec.auth`. `key_format` is that of record keys; empty: not known yet. None: the view has no authentication."""
    if auth is None:
        return None
    jwt = auth.get("jwt")
    if not isinstance(jwt, Mapping):
        raise SpecError("spec.auth.jwt: is missing; say with secretRef or jwksUrl how tokens are verified")
    rules = tuple(
        _rule(raw, f"spec.auth.{where}[{number}]", key_format)
        for where, given in (("rules", auth.get("rules", ())), ("jwt.rules", jwt.get("rules", ())))
        for number, raw in enumerate(given)
    )
    if not rules:
        raise SpecError(
            "spec.auth.rules: is empty, so every request would be refused; allow something, such as [{allow: [read]}]"
        )
    if len(rules) > RULES_MAX:
        raise SpecError(f"spec.auth.rules: has {len(rules)} rules; a view takes {RULES_MAX}")
    of_certificates = [
        claim for rule in rules for claim in rule.claims if claim.startswith(CERTIFICATE_CLAIM)
    ]
    for claim in of_certificates:
        if claim not in _CERTIFICATE_CLAIMS:
            raise SpecError(
                f"spec.auth.rules: {claim} is no claim of a certificate; there are {', '.join(_CERTIFICATE_CLAIMS)}"
            )
    secret = jwt.get("secretRef")
    if (secret is None) == ("jwksUrl" not in jwt):
        raise SpecError("spec.auth.jwt: give either secretRef or jwksUrl")
    parsed = AuthSpec(
        rules=rules,
        secret_name=secret["name"] if secret else "",
        secret_key=secret["key"] if secret else "",
        jwks_url=_jwks_url(jwt["jwksUrl"]) if not secret else "",
        jwks_ca=_text(jwt.get("jwksCa", ""), "spec.auth.jwt.jwksCa", _CA_CHARS_MAX),
        issuer=jwt.get("issuer", ""),
        audience=jwt.get("audience", ""),
        clock_skew_seconds=_skew(jwt.get("clockSkewSeconds", _SKEW_SECONDS)),
        open_to={
            name: one_of(OpenTo, value, f"spec.auth.open.{name}")
            for name, value in auth.get("open", {}).items()
            if name in get_args(Information)
        },
        audit_plain_keys=auth.get("audit", {}).get("keys", "hashed") == "plain",
        uses_certificates=bool(of_certificates),
    )
    _check_expectations(parsed)
    return parsed


def _check_expectations(auth: AuthSpec) -> None:
    """Refuse a public issuer without an audience: it signs tokens for other services too."""
    if auth.jwks_url:
        for name, value in (("issuer", auth.issuer), ("audience", auth.audience)):
            if not value:
                raise SpecError(
                    f"spec.auth.jwt.{name}: is needed with jwksUrl, since an issuer signs tokens for other services too"
                )
    elif auth.jwks_ca:
        raise SpecError("spec.auth.jwt.jwksCa: goes with jwksUrl; leave it out")


def _skew(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _SKEW_SECONDS_MAX:
        raise SpecError(f"spec.auth.jwt.clockSkewSeconds: write a whole number from 0 to {_SKEW_SECONDS_MAX}")
    return value


def _jwks_url(url: Any) -> str:
    """Check the address of the keys. Without TLS anyone on the way could replace them, so http is for near hosts only."""
    path = "spec.auth.jwt.jwksUrl"
    text = _text(url, path, 2048)
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise SpecError(f"{path}: is no address; write https://HOST/PATH") from None
    if parts.scheme not in ("https", "http") or not host or parts.username is not None or parts.fragment:
        raise SpecError(f"{path}: write https://HOST/PATH, without a user and a fragment")
    address = _address(host)
    if address is not None and (address.is_link_local or address.is_multicast or address.is_unspecified):
        raise SpecError(f"{path}: {host} is no address of an issuer; name its host")
    in_cluster = host.endswith(".svc") or ".svc." in host
    local = host == "localhost" or (address is not None and address.is_loopback)
    if parts.scheme == "http" and not in_cluster and not local:
        raise SpecError(
            f"{path}: http is for a Service of the cluster (*.svc) and for this machine; write https"
        )
    return text


def _address(host: str) -> Any:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _rule(raw: Mapping[str, Any], path: str, key_format: str) -> Rule:
    given = [name for name in _COMPARISONS if name in raw]
    claim = raw.get("claim")
    if len(given) > 1 or (claim is None) != (not given):
        raise SpecError(
            f"{path}: write a claim with one of {', '.join(_COMPARISONS)}, or none of them for every valid token"
        )
    comparison = given[0] if given else "equals"
    value = _text(raw[comparison], f"{path}.{comparison}", _TEXT_MAX) if given else ""
    if given and not value:
        raise SpecError(f"{path}.{comparison}: is empty; write the value of the claim")
    operations: set[OperationName] = {
        "write" if name == "ingest" else one_of(OperationName, name, f"{path}.allow")
        for name in raw.get("allow", ())
    }
    if not operations:
        raise SpecError(f"{path}.allow: is empty; name at least one of {', '.join(get_args(OperationName))}")
    prefix = raw.get("keyPrefix")
    if prefix is not None:
        if "admin" in operations:
            raise SpecError(f"{path}.keyPrefix: admin has no keys; write a rule of its own for it")
        if key_format and key_format not in PREFIX_FORMATS:
            raise SpecError(
                f"{path}.keyPrefix: {key_format} keys have no prefixes; only {' and '.join(PREFIX_FORMATS)} keys have"
            )
    return Rule(
        frozenset(operations),
        None if claim is None else _text(claim, f"{path}.claim", _TEXT_MAX),
        comparison,
        value,
        None if prefix is None else parse_key_prefix(prefix, f"{path}.keyPrefix"),
    )


def parse_key_prefix(template: Any, path: str) -> KeyPrefix:
    """Parse a prefix such as `user/{sub}/`."""
    text = _text(template, path, _TEXT_MAX)
    if not text:
        raise SpecError(f"{path}: is empty; leave it out to allow all keys")
    if not text.isprintable():
        raise SpecError(f"{path}: has a character that cannot be seen; write visible ones")
    parts = _PLACEHOLDER.split(text)
    texts, claims = tuple(parts[::2]), tuple(parts[1::2])
    if any("{" in each or "}" in each for each in texts):
        raise SpecError(f"{path}: has a brace without its other one; write a claim like {{sub}}")
    if not all(texts[1:]):
        raise SpecError(
            f"{path}: a separator must follow each claim, as in user/{{sub}}/; "
            "otherwise one caller's prefix begins another's"
        )
    return KeyPrefix(texts, claims)


def _text(value: Any, path: str, chars_max: int) -> str:
    if not isinstance(value, str) or len(value) > chars_max:
        raise SpecError(f"{path}: write a text of at most {chars_max} characters")
    return value
