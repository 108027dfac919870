"""Test the values of the client: keys, options, placements, exceptions."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any, cast, get_args
from urllib.parse import unquote_to_bytes
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryable_app.client import exceptions
from queryable_app.client.exceptions import InvalidRequest, QueryableTopicError, from_problem, more_specific
from queryable_app.client.keys import Key, in_request, record_key
from queryable_app.client.options import ReadOptions, ReadSettings, parse_options
from queryable_app.client.placement_map import checked_address, parse_placement
from queryable_app.client.rows import Freshness, item_row
from queryable_app.config.key_schema import PROTOBUF_TYPES, KeySchema, TypedKey
from queryable_app.config.protobuf_key import ProtobufField
from queryable_app.config.topic_spec import KeyFormat
from queryable_app.errors import Failure, Reason
from queryable_app.policy import freshness
from queryable_app.policy.freshness import READ_OPTION_NAMES, Consistency, parse_read_options
from queryable_app.wire.encoded_keys import key_codec_of
from queryable_app.wire.http_text import parse_positions, parse_query
from queryable_app.wire.serde import key_codec

KEYS: dict[str, st.SearchStrategy[Any]] = {
    "string": st.text(st.characters(codec="utf-8")),
    "bytes": st.text(st.characters(codec="utf-8")),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(allow_nan=False) | st.integers(-(2**53), 2**53),
    "uuid": st.uuids(),
    "json": st.text(st.characters(codec="utf-8")).map(json.dumps),
}
SCHEMAS: dict[str, KeySchema] = {
    **{f"avro {type_}": KeySchema(type_) for type_ in get_args(TypedKey)},
    **{
        f"protobuf {kind}": KeySchema(type_, field=ProtobufField(kind, 300))
        for kind, type_ in PROTOBUF_TYPES.items()
    },
}


@pytest.mark.parametrize("schema_id", [None, 7])
@pytest.mark.parametrize("key_format", [*KEYS, *SCHEMAS])
@given(st.data())
def test_node_reads_the_same_key(key_format: str, schema_id: int | None, data: st.DataObject) -> None:
    """A node turns the text in the request into the bytes of the key, for any key. Bytes that are none are refused."""
    codec = key_codec(cast(KeyFormat, key_format))
    type_ = key_format
    if (schema := SCHEMAS.get(key_format)) is not None:
        type_ = schema.type
        codec = key_codec_of("avro", replace(schema, schema_id=schema_id))
    key: Key = data.draw(KEYS[type_] | st.binary(max_size=12))
    try:
        record = record_key(key, codec)
    except InvalidRequest:
        refused = True
    else:
        refused = False
    if refused:
        assert (isinstance(key, bytes), key_format in SCHEMAS) == (True, True)
        return
    texts, how = in_request([record], codec)
    raw = unquote_to_bytes(texts[0])
    assert "/" not in texts[0]
    assert texts[0] not in (".", "..")
    assert record == (codec.from_base64url(raw.decode()) if how else codec.from_url_bytes(raw))


@pytest.mark.parametrize(
    ("key_format", "key", "message"),
    [
        ("string", 5, "5 is an int, and this view's keys are string (give a str"),
        ("string", None, "None is a NoneType"),
        ("string", "\ud800", "half of a surrogate pair"),
        ("long", True, "True is a bool"),
        ("long", 1.5, "1.5 is no long"),
        ("long", 2**63, "is no long"),
        ("int", "one", "'one' is not a whole number"),
        ("uuid", "x", "'x' is not a UUID"),
        ("uuid", 5, "give a uuid.UUID or its text"),
        ("string", UUID(int=1), "is a UUID, and this view's keys are string"),
        ("json", "{", "is not JSON"),
    ],
)
def test_wrong_key_is_reported(key_format: KeyFormat, key: Any, message: str) -> None:
    """The message has the type of the key, and what to give instead."""
    with pytest.raises(InvalidRequest) as caught:
        record_key(key, key_codec(key_format))
    assert message in str(caught.value)
    assert caught.value.detail.startswith("key: ")


def test_dots_are_encoded_in_a_path() -> None:
    """A key that consists of dots does not change the path."""
    codec = key_codec("string")
    assert in_request([b".", b"..", b"..."], codec) == (["%2E", "%2E%2E", "..."], [])


def test_key_that_its_format_cannot_express_is_bytes() -> None:
    """A key that a node marks as base64url is returned as bytes."""
    item = {"key": "_w", "keyEncoding": "base64url", "value": 1, "partition": 0, "offset": 1, "timestamp": 2}
    assert item_row(item, Freshness("0:2", 1, 1, "active", "n", 1)).key == b"\xff"


def test_nan_is_a_key() -> None:
    """NaN is a valid key in a view whose keys are doubles."""
    codec = key_codec("double")
    assert in_request([record_key(math.nan, codec)], codec) == (["NaN"], [])


options = st.fixed_dictionaries(
    {},
    optional={
        "consistency": st.sampled_from(["any", "bounded", "at-least", "strong"]),
        "max_lag_ms": st.integers(0, 10**6),
        "max_lag_records": st.integers(0, 10**6),
        "min_position": st.just("1:5,0:7") | st.just({1: 5, 0: 7}),
        "deadline_ms": st.integers(1, 60_000),
    },
)


@given(options)
def test_options_mean_the_same_to_a_node(given: Any) -> None:
    """The client and a node accept the same options, and give them the same meaning."""

    def node_reads(parameters: list[str]) -> Any:
        values = parse_query("&".join(parameters).encode(), READ_OPTION_NAMES)
        return parse_read_options(values, defaults=freshness.ReadOptions(), partitions=3)

    plain = [
        f"{name.replace('_', '-')}={'1:5,0:7' if name == 'min_position' else value}"
        for name, value in given.items()
    ]
    try:
        expected = node_reads(plain)
    except Failure:
        with pytest.raises(InvalidRequest):
            parse_options(given, ReadSettings())
        return
    parsed = parse_options(given, ReadSettings())
    assert node_reads(parsed.parameters(given.get("deadline_ms"))) == expected


def test_defaults_apply_together() -> None:
    """A read with any option of freshness ignores the default ones. The default deadline applies separately."""
    defaults = parse_options({"max_lag_ms": 5, "deadline_ms": 7}, ReadSettings())
    assert defaults == ReadSettings(Consistency.BOUNDED, 5, deadline_ms=7)
    assert parse_options({}, defaults) == defaults
    assert parse_options({"deadline_ms": 9}, defaults) == ReadSettings(Consistency.BOUNDED, 5, deadline_ms=9)
    assert parse_options({"consistency": "strong"}, defaults) == ReadSettings(
        Consistency.STRONG, deadline_ms=7
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("consistency", "eventual"),
        ("max_lag_ms", -1),
        ("max_lag_ms", "5"),
        ("deadline_ms", 0),
        ("deadline_ms", True),
        ("min_position", "x"),
        ("min_position", {}),
        ("min_position", {0: -1}),
        ("min_position", 5),
    ],
)
def test_wrong_option_is_reported(name: str, value: object) -> None:
    """The message begins with the name of the option."""
    with pytest.raises(InvalidRequest, match=f"^invalid_request: {name}: "):
        parse_options({name: value}, ReadSettings())


def test_every_option_of_a_node_is_an_option() -> None:
    """The client has all options of a node except the route, which it decides itself."""
    assert {name.replace("-", "_") for name in READ_OPTION_NAMES} - {"route"} == set(
        ReadOptions.__annotations__
    )


@given(st.dictionaries(st.integers(0, 10**5), st.integers(0, 2**63 - 1), min_size=1))
def test_positions_are_parsed(positions: dict[int, int]) -> None:
    """The client parses positions as nodes write them."""
    assert parse_positions(", ".join(f"{p}:{o}" for p, o in positions.items())) == positions


@pytest.mark.parametrize("text", ["", "1", "1:", ":1", "a:1", "1:1;2:2", "1:-1", "1:²"])
def test_invalid_position_is_none(text: str) -> None:
    """A text that is no position gives None."""
    assert parse_positions(text) is None


@pytest.mark.parametrize("reason", [r for r in Reason if r is not Reason.KEY_NOT_FOUND])
def test_every_reason_has_its_exception(reason: Reason) -> None:
    """The exception has all fields of the problem."""
    failure = Failure(reason, "what", "do", 3, "3:4", 500, (1, 2))
    error = from_problem(reason.status, json.dumps(failure.problem()).encode(), "http://n")
    assert error.reason is reason
    assert error.status == reason.status
    assert (error.detail, error.advice, error.partition, error.position) == ("what", "do", 3, "3:4")
    assert (error.retry_after_ms, error.missing, error.address) == (500, (1, 2), "http://n")


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"reason": 5}', b'{"reason": "key_not_found"}', b"[" * 10**5]
)
def test_body_that_is_no_problem_is_unreachable(body: bytes) -> None:
    """A body that is no problem is from another server or a proxy."""
    assert type(from_problem(502, body, "http://n")) is exceptions.Unreachable


def test_any_two_retryable_refusals_can_be_compared() -> None:
    """The client raises one of two refusals after which it tries no other node."""
    kinds = [
        k for k in vars(exceptions).values() if isinstance(k, type) and issubclass(k, QueryableTopicError)
    ]
    weighed = [kind("x") for kind in kinds if kind.others_may_answer]
    assert len(weighed) >= 7
    for one in weighed:
        for other in weighed:
            assert more_specific(one, other) in (one, other)


GOOD: dict[str, Any] = {
    "epoch": 3,
    "applicationId": "a",
    "partitioner": "murmur2",
    "keyFormat": "string",
    "partitions": [{"partition": 0, "addresses": ["http://b", "http://a"], "hydrating": []}],
}


def protobuf(**field: Any) -> dict[str, Any]:
    """Return the parts of a placement whose keys are a message with an int64."""
    written = {"type": "int64", "number": 1, "alwaysWritten": False, **field}
    return {"keyFormat": "protobuf", "keySchema": {"type": "long", "schemaId": 7, "field": written}}


def test_placement_has_the_schema_of_keys() -> None:
    """The client writes keys as the schema in the placement says."""
    assert parse_placement(GOOD | protobuf()).codec.from_text("5") == b"\0\0\0\0\7\0\x08\5"
    assert (
        parse_placement(GOOD | protobuf(number=2, type="sint64")).codec.from_text("5")
        == b"\0\0\0\0\7\0\x10\x0a"
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"partitions": []},
        {"partitions": {}},
        {"partitions": [{"partition": 1, "addresses": []}]},
        {"partitions": [{"partition": 0, "addresses": ["file:///etc/passwd"]}]},
        {"partitions": [{"partition": 0, "addresses": [5]}]},
        {"keyFormat": "avro"},
        {"keyFormat": "avro", "keySchema": {"type": "uuid", "schemaId": None}},
        {"keyFormat": "protobuf", "keySchema": {"type": "long", "schemaId": 7}},
        protobuf(type="string"),
        protobuf(number=0),
        protobuf(number="1"),
        protobuf(alwaysWritten=0),
        {"partitioner": "other"},
        {"epoch": "x"},
    ],
)
def test_placement_is_checked(wrong: dict[str, Any]) -> None:
    """The client checks a placement, since it sends requests with the caller's headers to its addresses."""
    assert parse_placement(GOOD).nodes == ("http://a", "http://b")
    with pytest.raises((ValueError, KeyError, TypeError, InvalidRequest)):
        parse_placement(GOOD | wrong)


@pytest.mark.parametrize(
    "text", ["", "localhost:8080", "ftp://a", "http://a b", "http://a?x", "http://u:p@a", "http://"]
)
def test_address_is_checked(text: object) -> None:
    """An invalid address is refused, and not taken for an unreachable node."""
    with pytest.raises(InvalidRequest, match=r"^invalid_request: url: "):
        checked_address(text)
