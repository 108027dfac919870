"""Read the keys of a mounted Secret that tokens are signed with (HS256), and follow its changes.

Strategy: the Secret may have two keys, `<key>` and `<key>.next`, and both are accepted. So a key is replaced without a moment in
which tokens are refused. Kubernetes replaces the files of a mounted Secret while the node runs. If they disappear or cannot be
used, the node keeps the keys that it has, and says so.
"""

from __future__ import annotations

import asyncio
import hmac
from pathlib import Path
from typing import Final

from queryable_app.contract import SettingsError
from queryable_app.platform.log import event
from queryable_app.policy.tokens import VerificationKey
from queryable_app.serve.auth.key_source import KeySource

NEXT_SUFFIX: Final = ".next"
SECRET_BYTES_MIN: Final = 32  # as RFC 7518 requires for HS256
_SECRET_BYTES_MAX: Final = 4096
_LOOK_SECONDS: Final = 1.0


class SecretRefused(Exception):
    """Say why a file cannot be a key. The message names the file and never shows its content."""


class SharedSecret(KeySource):
    """Keep the keys of one Secret. Raises SettingsError if there are none at the start."""

    def __init__(self, directory: str, key: str, look_seconds: float = _LOOK_SECONDS) -> None:
        super().__init__()
        if not directory:
            raise SettingsError(
                "QT_AUTH_SECRET_DIR is not set; spec.auth.jwt.secretRef needs the directory of the mounted Secret"
            )
        self._look_seconds = look_seconds
        self._files = (Path(directory, key), Path(directory, key + NEXT_SUFFIX))
        self._problem = ""
        try:
            self._secrets = self._read()
        except (OSError, SecretRefused) as error:
            raise SettingsError(f"spec.auth.jwt.secretRef: {error}") from None
        self.keys = tuple(map(hmac_key, self._secrets))

    def may_fetch(self) -> bool:
        return False

    async def fetch(self) -> None:
        """Do nothing: the files are looked at every second."""

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._look_seconds)
            self.look()

    def look(self) -> None:
        """Take the keys as they are now on the disk."""
        try:
            secrets, problem = self._read(), ""
        except (OSError, SecretRefused) as error:
            secrets, problem = self._secrets, str(error)
        if problem != self._problem:
            self._problem = problem
            if problem:
                event("auth-secret-unusable", problem=problem, advice="the node keeps the keys that it has")
        if secrets != self._secrets:
            self._secrets = secrets
            event("auth-secret-changed", keys=len(secrets))
            self._replace([*map(hmac_key, secrets)])

    def _read(self) -> tuple[bytes, ...]:
        first, following = self._files
        secrets = [_secret(first)]
        if following.exists():
            secrets.append(_secret(following))
        return tuple(secrets)


def hmac_key(secret: bytes) -> VerificationKey:
    """Return the key that verifies HS256 with a secret."""

    def verify(signed: bytes, signature: bytes) -> bool:
        return hmac.compare_digest(hmac.digest(secret, signed, "sha256"), signature)

    return VerificationKey("HS256", None, verify)


def _secret(file: Path) -> bytes:
    with file.open("rb") as opened:
        content = opened.read(_SECRET_BYTES_MAX + 1)
    secret = content.removesuffix(b"\n").removesuffix(b"\r")
    if not SECRET_BYTES_MIN <= len(secret) <= _SECRET_BYTES_MAX:
        raise SecretRefused(
            f"{file} has {len(secret)} bytes; a key for HS256 has {SECRET_BYTES_MIN} to {_SECRET_BYTES_MAX}"
        )
    return secret
