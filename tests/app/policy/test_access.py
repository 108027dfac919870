"""Rules grant what they say, and no value of a claim widens a prefix."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from queryable_app.config.auth import parse_auth, parse_key_prefix
from queryable_app.config.spec_fields import SpecError
from queryable_app.policy.access import access_of, render_prefix, shortest

JWT = {"secretRef": {"name": "jwt", "key": "hmac"}}


@given(st.text(), st.text())
def test_callers_never_share_a_prefix(one: str, other: str) -> None:
    """The prefixes of two subjects are the same, or neither begins with the other."""
    assume(one != other)
    prefix = parse_key_prefix("user/{sub}/", "x")
    first, second = (render_prefix(prefix, {"sub": sub}) for sub in (one, other))
    if first is not None and second is not None:
        assert not first.startswith(second)
        assert not second.startswith(first)


@given(st.tuples(st.text(), st.text()), st.tuples(st.text(), st.text()))
def test_two_claims_do_not_mix(one: tuple[str, str], other: tuple[str, str]) -> None:
    """Two different pairs of values never make one prefix, also if the separators differ."""
    assume(one != other)
    prefix = parse_key_prefix("{a}-{b}/", "x")
    first, second = (render_prefix(prefix, {"a": a, "b": b}) for a, b in (one, other))
    assert first is None or first != second


@given(st.lists(st.binary(max_size=3)), st.binary(max_size=5))
def test_shortest_prefixes_allow_the_same_keys(prefixes: list[bytes], key: bytes) -> None:
    """Leaving out prefixes that others begin changes no decision."""
    assert key.startswith(shortest(prefixes)) == key.startswith(tuple(prefixes))


@pytest.mark.parametrize(
    ("rule", "claim", "applies"),
    [
        ({"equals": "a"}, "a", True),
        ({"equals": "a"}, ["a"], False),
        ({"equals": "7"}, 7, True),
        ({"equals": "True"}, True, False),
        ({"contains": "a"}, "b a c", True),
        ({"contains": "a"}, "ba", False),
        ({"contains": "a b"}, ["a b"], True),
        ({"contains": "a"}, ["b", 3, None], False),
        ({"glob": "team-*"}, "team-blue", True),
        ({"glob": "team-*"}, "my-team-blue", False),
        ({"glob": "*:reader"}, ["x", "a:reader"], True),
        ({"glob": "a?c"}, "abc", True),
        ({"glob": "a.c"}, "abc", False),
        ({"glob": "*"}, None, False),
        ({"glob": "*a*a*a*a*a*a*b"}, "a" * 512, False),
    ],
)
def test_comparisons(rule: dict[str, str], claim: Any, applies: bool) -> None:
    """A claim matches as text, as an element or a word, or by a pattern, and by nothing else."""
    auth = parse_auth({"jwt": JWT, "rules": [{"claim": "c", "allow": ["read"], **rule}]}, "string")
    assert auth is not None
    assert access_of({"c": claim}, 1.0, auth.rules).may("read") == applies


@pytest.mark.parametrize(
    ("auth", "field"),
    [
        ({}, "spec.auth.jwt"),
        ({"jwt": JWT}, "spec.auth.rules"),
        ({"jwt": {}, "rules": [{"allow": ["read"]}]}, "spec.auth.jwt"),
        ({"jwt": JWT, "rules": [{"allow": []}]}, "spec.auth.rules[0].allow"),
        ({"jwt": JWT, "rules": [{"allow": ["all"]}]}, "spec.auth.rules[0].allow"),
        ({"jwt": JWT, "rules": [{"claim": "a", "allow": ["read"]}]}, "spec.auth.rules[0]"),
        ({"jwt": JWT, "rules": [{"equals": "a", "allow": ["read"]}]}, "spec.auth.rules[0]"),
        ({"jwt": JWT, "rules": [{"allow": ["read"], "keyPrefix": "a{sub}"}]}, "spec.auth.rules[0].keyPrefix"),
        (
            {"jwt": JWT, "rules": [{"allow": ["read"], "keyPrefix": "{a}{b}/"}]},
            "spec.auth.rules[0].keyPrefix",
        ),
        ({"jwt": JWT, "rules": [{"allow": ["read"], "keyPrefix": "a{"}]}, "spec.auth.rules[0].keyPrefix"),
        ({"jwt": JWT, "rules": [{"allow": ["admin"], "keyPrefix": "a"}]}, "spec.auth.rules[0].keyPrefix"),
        *(
            ({"jwt": {"jwksUrl": url, "issuer": "i", "audience": "a"}, "rules": [{"allow": ["read"]}]}, field)
            for url, field in {
                "http://issuer.example/keys": "spec.auth.jwt.jwksUrl",
                "https://169.254.169.254/keys": "spec.auth.jwt.jwksUrl",
                "https://user@issuer.example": "spec.auth.jwt.jwksUrl",
                "https://": "spec.auth.jwt.jwksUrl",
                "ftp://issuer.example": "spec.auth.jwt.jwksUrl",
            }.items()
        ),
        ({"jwt": {"jwksUrl": "https://i"}, "rules": [{"allow": ["read"]}]}, "spec.auth.jwt.issuer"),
    ],
)
def test_wrong_field_is_named(auth: dict[str, Any], field: str) -> None:
    """A wrong rule is refused by the name of its field."""
    with pytest.raises(SpecError) as refused:
        parse_auth(auth, "string")
    assert str(refused.value).startswith(f"{field}:")


def test_prefixes_need_keys_of_text() -> None:
    """A prefix of numbers is refused, since their order on the disk is not that of their text."""
    with pytest.raises(SpecError, match="long keys have no prefixes"):
        parse_auth({"jwt": JWT, "rules": [{"allow": ["read"], "keyPrefix": "a"}]}, "long")
