"""Open what authenticates the callers of a node."""

from __future__ import annotations

from queryable_app.config.auth import PREFIX_FORMATS, AuthSpec
from queryable_app.config.spec_fields import SpecError
from queryable_app.contract import NodeSettings
from queryable_app.serve.auth.authenticator import Authenticator
from queryable_app.serve.auth.key_source import KeySource
from queryable_app.serve.auth.shared_secret import SharedSecret


def open_authenticator(
    settings: NodeSettings, auth: AuthSpec | None, key_format: str
) -> Authenticator | None:
    """Return what authenticates callers; None if the view has no authentication. Raise SpecError or SettingsError."""
    if auth is None:
        return None
    if key_format not in PREFIX_FORMATS and any(rule.key_prefix for rule in auth.rules):
        raise SpecError(
            f"spec.auth.rules: keys of the format {key_format} have no prefixes; leave keyPrefix out"
        )
    return Authenticator(auth, _key_source(settings, auth))


def _key_source(settings: NodeSettings, auth: AuthSpec) -> KeySource:
    if auth.jwks_url:
        from queryable_app.serve.auth.jwks import IssuerKeys  # other nodes do not load what it needs

        return IssuerKeys(auth.jwks_url, auth.jwks_ca)
    return SharedSecret(settings.auth_secret_dir, auth.secret_key)
