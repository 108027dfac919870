"""Test which .proto texts are schemas of keys."""

from __future__ import annotations

from contextlib import suppress
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryable_app.config.protobuf_key import (
    FIELD_NUMBER_MAX,
    ProtobufField,
    ProtobufKeyType,
    ProtoTextError,
    parse_protobuf_key,
)

HEAD = 'syntax = "proto3";\n'


@given(
    st.sampled_from(get_args(ProtobufKeyType)),
    st.integers(1, FIELD_NUMBER_MAX),
    st.sampled_from(["", "optional "]),
    st.sampled_from(["", "package shop.v1;", 'option java_package = "a.b";', "/* a { */ // b }\n"]),
)
def test_field_of_the_message_is_found(
    kind: ProtobufKeyType, number: int, label: str, statement: str
) -> None:
    """The type and the number of the field are read, whatever else the file says; an optional field is always written."""
    text = f"{HEAD}{statement}message UserKey {{ {label}{kind} user_id = {number}; }}"
    assert parse_protobuf_key(text) == ProtobufField(kind, number, bool(label))


@pytest.mark.parametrize("label", ["optional", "required"])
@pytest.mark.parametrize("head", ["", "syntax = 'proto2';"])
def test_field_of_proto2_is_always_written(head: str, label: str) -> None:
    """A serializer of proto2 writes the default of a type too; a file without a syntax is proto2."""
    text = f"{head} message Key {{ {label} int64 id = 1; }}"
    assert parse_protobuf_key(text) == ProtobufField("int64", 1, always_written=True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it has no message"),
        ('"long"', "is not read here"),
        (HEAD + "message K {}", "'}' is not read here"),
        (HEAD + "message K { string a = 1; string b = 2; }", "'string' stands where } was expected"),
        (HEAD + "message K { string a = 1; } message L { string a = 1; }", "'message' is not read here"),
        (HEAD + "message K { repeated string a = 1; }", "'repeated' is not read here"),
        (HEAD + "message K { map<string, string> a = 1; }", "'<string, string> a =' is not read here"),
        (HEAD + "message K { oneof a { string b = 1; } }", "'oneof' is not read here"),
        (HEAD + "message K { float a = 1; }", "'float' is not read here"),
        (HEAD + "message K { uint64 a = 1; }", "'uint64' is not read here"),
        (HEAD + "message K { K a = 1; }", "'K' is not read here"),
        (HEAD + "message K { string a = 1 [deprecated = true]; }", "is not read here"),
        (HEAD + "message K { string a = 0; }", "'0' is no number of a field"),
        (HEAD + "message K { string a = 536870912; }", "is no number of a field"),
        (HEAD + "message K { string a = b; }", "'b' is no number of a field"),
        (HEAD + "message K { string a = 1; ", "'its end' stands where } was expected"),
        (HEAD + "import 'a.proto'; message K { string a = 1; }", "'import' is not read here"),
        (HEAD + "enum E { A = 0; }", "'enum' is not read here"),
        ("/*" * 20_000, "is not read here"),
        ("// a", "it has no message"),
    ],
)
def test_other_files_are_refused(text: str, said: str) -> None:
    """The message names what is not read, and which keys are."""
    with pytest.raises(ProtoTextError) as refused:
        parse_protobuf_key(text)
    assert said in str(refused.value)
    assert len(str(refused.value)) < 300


@given(st.text('messagKy{}=;"/* \n1', max_size=60) | st.text(max_size=20))
def test_any_text_is_a_schema_or_refused(text: str) -> None:
    """No text ends in another error."""
    with suppress(ProtoTextError):
        parse_protobuf_key(HEAD + text)
