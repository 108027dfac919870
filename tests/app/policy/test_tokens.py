"""The verifier of tokens accepts what was signed, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryable_app.policy.tokens import (
    Expectations,
    TokenRefused,
    VerificationKey,
    VerifiedClaims,
    keys_for,
    parse_token,
    verify_claims,
    verify_signature,
)
from queryable_app.serve.auth.shared_secret import hmac_key
from tests.support.tokens import AUDIENCE, ISSUER, OTHER_SECRET, SECRET, claims, hs256, raw_token, token

EXPECTED = Expectations(ISSUER, AUDIENCE, 30)
NOW = 1_800_000_000.0
GOOD = token(exp=int(NOW) + 60).encode()


def verify(text: bytes, *secrets: bytes, now: float = NOW) -> VerifiedClaims:
    keys: list[VerificationKey] = [hmac_key(secret) for secret in secrets or (SECRET,)]
    parsed = parse_token(text)
    verify_signature(parsed, keys_for(parsed, keys))
    return verify_claims(parsed, EXPECTED, now)


@given(st.integers(0, len(GOOD) * 8 - 1))
def test_any_changed_bit_is_refused(bit: int) -> None:
    """A token with one bit changed is refused, wherever the bit is."""
    changed = bytearray(GOOD)
    changed[bit // 8] ^= 1 << bit % 8
    assert verify(GOOD).claims["sub"] == "alice"
    with pytest.raises(TokenRefused):
        verify(bytes(changed))


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_with_a_sentence(text: bytes) -> None:
    """Bytes that are no token are refused, and cause no other error."""
    with pytest.raises(TokenRefused):
        verify(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)


@given(st.fixed_dictionaries({}, optional={"alg": JSON, "kid": JSON, "typ": JSON, "crit": JSON}) | JSON, JSON)
def test_any_header_is_refused_without_the_signature(header: Any, payload: Any) -> None:
    """A token of any header and payload is refused, as long as no key of the view signed it."""
    with pytest.raises(TokenRefused):
        verify(raw_token(header, payload).encode())


@given(st.sampled_from(["exp", "nbf", "iss", "aud"]), JSON)
def test_claim_of_another_kind_is_refused(name: str, value: Any) -> None:
    """A signed token whose claim is not what is expected is refused, or the claim really says it."""
    text = hs256(claims(exp=NOW + 60) | {name: value}).encode()
    try:
        verified = verify(text)
    except TokenRefused:
        return
    assert verified.claims["iss"] == ISSUER
    assert verified.claims["aud"] == AUDIENCE or AUDIENCE in verified.claims["aud"]
    assert verified.until > NOW
    assert verified.claims.get("nbf", 0) <= NOW + 30


@given(st.floats(0, 4e9), st.integers(0, 4_000_000_000))
def test_expiry_and_skew(now: float, exp: int) -> None:
    """A token is accepted until its expiry and the skew, and not from then on."""
    text = token(exp=exp).encode()
    if now < exp + 30:
        assert verify(text, now=now).until == exp + 30
    else:
        with pytest.raises(TokenRefused):
            verify(text, now=now)


def test_two_secrets_are_accepted_at_once() -> None:
    """While a secret is replaced, tokens of both are accepted, and afterwards those of the new one only."""
    old, new = (token(secret, exp=NOW + 60).encode() for secret in (SECRET, OTHER_SECRET))
    for text in (old, new):
        assert verify(text, SECRET, OTHER_SECRET)
    assert verify(new, OTHER_SECRET)
    with pytest.raises(TokenRefused):
        verify(old, OTHER_SECRET)


def test_claims_of_a_good_token() -> None:
    """The claims of a verified token are those that were signed."""
    wanted = claims(exp=NOW + 60, groups=["a", "b"])
    assert verify(token(exp=NOW + 60, groups=["a", "b"]).encode()).claims == wanted
