"""Sign tokens, as an issuer does, and run an issuer's server of keys."""

from __future__ import annotations

import hmac
import json
import time
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

SECRET: Final = b"a secret of thirty-two bytes, or more"
OTHER_SECRET: Final = b"another secret of thirty-two bytes !!"
ISSUER: Final = "https://issuer.test"
AUDIENCE: Final = "users-view"
SECRET_REF: Final = {"secretRef": {"name": "jwt", "key": "hmac"}, "issuer": ISSUER, "audience": AUDIENCE}


def claims(**changed: Any) -> dict[str, Any]:
    """Return the claims of a good token. A value of None leaves a claim out."""
    now = int(time.time())
    good = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "alice",
        "scope": "read scan write changes admin",
        "exp": now + 86_400,
    }
    return {name: value for name, value in (good | changed).items() if value is not None}


def token(secret: bytes = SECRET, headers: Mapping[str, Any] | None = None, **changed: Any) -> str:
    return jwt.encode(claims(**changed), secret, "HS256", dict(headers or {}))


def bearer(secret: bytes = SECRET, **changed: Any) -> dict[str, str]:
    """Return the header of a request with a good token, but for the changed claims."""
    return {"authorization": f"Bearer {token(secret, **changed)}"}


def raw_token(header: Any, payload: Any, signature: bytes = b"x" * 32) -> str:
    """Return a token of any parts; a text is taken as it is, anything else as JSON."""
    texts = [part if isinstance(part, bytes) else json.dumps(part).encode() for part in (header, payload)]
    return ".".join(urlsafe_b64encode(part).rstrip(b"=").decode() for part in (*texts, signature))


def hs256(payload: Any, secret: bytes = SECRET, **header: Any) -> str:
    """Sign any payload with any bytes, also where a library would refuse."""
    unsigned = raw_token({"alg": "HS256", **header}, payload).rpartition(".")[0]
    signature = hmac.digest(secret, unsigned.encode(), "sha256")
    return f"{unsigned}.{urlsafe_b64encode(signature).rstrip(b'=').decode()}"


def secret_directory(directory: Path, key: bytes = SECRET, following: bytes | None = None) -> str:
    """Write a Secret as Kubernetes mounts it."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "hmac").write_bytes(key)
    if following is not None:
        (directory / "hmac.next").write_bytes(following)
    return str(directory)


@lru_cache
def private_key(algorithm: str, number: int = 0) -> Any:
    """Return a private key, the same one for the same arguments."""
    if algorithm == "RS256":
        return rsa.generate_private_key(65537, 2048)
    if algorithm == "ES256":
        return ec.generate_private_key(ec.SECP256R1())
    return ed25519.Ed25519PrivateKey.generate()


def jwk(algorithm: str, key_id: str | None, number: int = 0) -> dict[str, Any]:
    """Return the public key as a JWKS lists it."""
    names = {"RS256": jwt.algorithms.RSAAlgorithm, "ES256": jwt.algorithms.ECAlgorithm}
    maker: Any = names.get(algorithm, jwt.algorithms.OKPAlgorithm)
    public: dict[str, Any] = maker.to_jwk(private_key(algorithm, number).public_key(), as_dict=True)
    return {name: value for name, value in public.items() if name != "key_ops"} | (
        {} if key_id is None else {"kid": key_id}
    )


def signed(algorithm: str, key_id: str | None, number: int = 0, **changed: Any) -> str:
    headers = {} if key_id is None else {"kid": key_id}
    return jwt.encode(claims(**changed), private_key(algorithm, number), algorithm, headers)
