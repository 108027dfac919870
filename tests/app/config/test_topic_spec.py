"""Test how a resource's spec becomes frozen values, or an error that names the field."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryable_app.config.entries import EntriesSpec
from queryable_app.config.topic_spec import (
    Ingest,
    Read,
    SpecError,
    TopicSpec,
    duration_ms,
    parse_spec,
    parse_spec_json,
)
from queryable_app.config.value_schema import BASIC, TOKEN, authorization

INDEX = {"name": "by-user", "field": "user", "type": "string"}
ENTRIES = {"timeField": "at"}
COUNT: dict[str, Any] = {"columns": [{"name": "n", "op": "count"}]}
SMALL: dict[str, Any] = {"kafka": {"bootstrapServers": "kafka:9092"}, "topic": "users"}


def test_small_spec_has_defaults() -> None:
    """A spec needs Kafka's addresses and the topic; every other field has a default."""
    assert parse_spec(SMALL) == TopicSpec("kafka:9092", "users")


def test_entries() -> None:
    """A view of entries has the path to their time, and a retention or none."""
    spec = SMALL | {"view": {"entries": {"timeField": "meta.at", "retention": "30d"}}}
    assert parse_spec(spec).entries == EntriesSpec("meta.at", 30 * 86_400_000)
    assert parse_spec(SMALL | {"view": {"entries": ENTRIES}}).entries == EntriesSpec("at")


def test_full_spec_sets_every_field() -> None:
    """Every field that this version implements reaches the parsed value."""
    spec = {
        "kafka": {
            "bootstrapServers": "a:1,b:2",
            "config": {"isolation.level": "read_committed", "retries": 3},
        },
        "topic": "page-views",
        "key": {"format": "long"},
        "value": {"format": "json", "schema": "user STRING"},
        "onBadRecord": "DeadLetter",
        "partitioner": "crc32",
        "transform": {"sql": "SELECT key, value.user AS user FROM records"},
        "view": {"kind": "latest", "ttl": "30d"},
        "replicas": 3,
        "standbyReplicas": 1,
        "read": {"consistency": "any", "maxLagMs": 100, "ingest": True, "maxConcurrent": 5},
        "ingest": {
            "mode": "microbatch",
            "batch": "30s",
            "trigger": "1s",
            "maxOffsetsPerTrigger": 9,
            "driverMemory": "1g",
        },
        "onDataLoss": "Rebuild",
        "storage": {"highWaterPercent": 70},
    }
    assert parse_spec_json(json.dumps(spec)) == TopicSpec(
        bootstrap_servers="a:1,b:2",
        topic="page-views",
        kafka_config={"isolation.level": "read_committed", "retries": "3"},
        key_format="long",
        value_format="json",
        value_schema="user STRING",
        on_bad_record="DeadLetter",
        partitioner="crc32",
        sql="SELECT key, value.user AS user FROM records",
        ttl_ms=30 * 86_400_000,
        replicas=3,
        standby_replicas=1,
        read=Read("any", 100, True, 5),
        ingest=Ingest("microbatch", 30_000, 1000, 9, "1g"),
        on_data_loss="Rebuild",
        high_water_percent=70,
    )


PROTOBUF = {"format": "protobuf", "schemaFrom": {"inline": 'syntax = "proto3"; message M {}'}}
REGISTRY = {"format": "avro", "schemaFrom": {"registryUrl": "https://registry:8081"}}


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"key": {"format": "avro"}}, "spec.key.schemaFrom"),
        ({"key": {"schemaFrom": {"inline": '"long"'}}}, "spec.key.schemaFrom"),
        *(
            ({"key": {"format": "avro", "schemaFrom": {"inline": text}}}, "spec.key.schemaFrom.inline")
            for text in (
                "long",
                '"boolean"',
                '["null", "long"]',
                '{"type": "record", "name": "R", "fields": []}',
            )
        ),
        ({"key": {"format": "protobuf"}}, "spec.key.schemaFrom"),
        (
            {"key": {"format": "protobuf", "schemaFrom": {"inline": '"long"'}}},
            "spec.key.schemaFrom.inline",
        ),
        *(
            (
                {"key": {"format": "avro", "schemaFrom": {"inline": '"int"', "schemaId": n}}},
                "spec.key.schemaFrom.schemaId",
            )
            for n in (-1, 2**31, "7")
        ),
        ({"value": {"format": "protobuf"}}, "spec.value.schemaFrom"),
        ({"value": {"format": "protobuf", "schema": "a INT"}}, "spec.value.schema"),
        (
            {"value": {"format": "protobuf", "schemaFrom": {"inline": " " * 65537}}},
            "spec.value.schemaFrom.inline",
        ),
        (
            {"value": {**PROTOBUF, "schemaFrom": {"inline": "x", "message": "a..b"}}},
            "spec.value.schemaFrom.message",
        ),
        (
            {"value": {"format": "avro", "schemaFrom": {"inline": '"int"', "message": "a"}}},
            "spec.value.schemaFrom.message",
        ),
        ({"value": PROTOBUF, "read": {"ingest": True}}, "spec.read.ingest"),
        ({"value": {"format": "string", "schema": "a INT"}}, "spec.value.schema"),
        ({"value": {"format": "string", "schemaFrom": {"inline": "{}"}}}, "spec.value.schemaFrom"),
        *(
            ({"value": {"schemaFrom": {"inline": text}}}, "spec.value.schemaFrom.inline")
            for text in ("{", "[]", '"string"', "[" * 30_000, " " * 65_537)
        ),
        ({"value": {"schemaFrom": {"inline": "{}", "message": "a"}}}, "spec.value.schemaFrom.message"),
        ({"value": {"schemaFrom": {"inline": "{}"}}, "read": {"ingest": True}}, "spec.read.ingest"),
        ({"value": {"format": "avro"}}, "spec.value.schemaFrom"),
        ({"value": {"format": "avro", "schema": "a INT"}}, "spec.value.schema"),
        ({"value": {"format": "avro", "schemaFrom": {"inline": "{}"}}}, "spec.value.schemaFrom.inline"),
        (
            {"value": {"format": "avro", "schemaFrom": {"inline": '"int"' + " " * 65536}}},
            "spec.value.schemaFrom.inline",
        ),
        (
            {"value": {"format": "avro", "schemaFrom": {"configMapRef": {"name": "a", "key": "b"}}}},
            "spec.value.schemaFrom.configMapRef",
        ),
        ({"value": REGISTRY, "read": {"ingest": True}}, "spec.read.ingest"),
        *(
            ({"value": {"format": format, "schemaFrom": source}}, "spec.value.schemaFrom.schemaId")
            for format, source in (
                ("avro", {"inline": '"int"', "schemaId": 7}),
                ("avro", {"registryUrl": "http://a", "schemaId": 7}),
                ("json", {"registryUrl": "http://a", "inline": "{}", "schemaId": 7}),
                ("avro", {"registryUrl": "http://a", "inline": '"int"', "schemaId": -1}),
            )
        ),
        *(
            (
                {"value": {"format": "avro", "schemaFrom": {"registryUrl": url}}},
                "spec.value.schemaFrom.registryUrl",
            )
            for url in (
                "ftp://a",
                "http://",
                "http://a:b",
                "http://user:secret@a",
                "http://a/?b",
                "http://a b",
            )
        ),
        ({"partitioner": "custom"}, "spec.partitioner"),
        ({"onBadRecord": "Panic"}, "spec.onBadRecord"),
        ({"onDataLoss": "Shrug"}, "spec.onDataLoss"),
        ({"view": {"kind": "table"}}, "spec.view.kind"),
        ({"view": {"kind": "aggregate"}}, "spec.view.aggregate"),
        ({"view": {"keyBy": ["user", "user"]}}, "spec.view.keyBy"),
        ({"view": {"entries": ENTRIES, "keyBy": ["user"]}}, "spec.view.keyBy"),
        ({"view": {"entries": ENTRIES, "ttl": "1d"}}, "spec.view.ttl"),
        ({"view": {"entries": ENTRIES, "changes": True}}, "spec.view.changes"),
        ({"view": {"entries": ENTRIES, "indexes": [INDEX]}}, "spec.view.indexes"),
        ({"view": {"entries": ENTRIES, "kind": "aggregate", "aggregate": COUNT}}, "spec.view.entries"),
        ({"view": {"entries": ENTRIES}, "value": {"format": "string"}}, "spec.view.entries"),
        ({"view": {"entries": {}}}, "spec.view.entries.timeField"),
        ({"view": {"entries": {"timeField": "a..b"}}}, "spec.view.entries.timeField"),
        ({"view": {"entries": {"timeField": ""}}}, "spec.view.entries.timeField"),
        ({"view": {"entries": {"timeField": "at", "retention": "0d"}}}, "spec.view.entries.retention"),
        ({"view": {"entries": {"timeField": "at", "retention": "soon"}}}, "spec.view.entries.retention"),
        ({"view": {"kind": "aggregate", "keyBy": ["user"], "aggregate": COUNT}}, "spec.view.keyBy"),
        ({"view": {"keyBy": ["user"], "ttl": "1d"}}, "spec.view.ttl"),
        ({"view": {"keyBy": ["user"]}, "read": {"ingest": True}}, "spec.read.ingest"),
        ({"view": {"keyBy": ["user"]}, "onBadRecord": "DeadLetter"}, "spec.onBadRecord"),
        ({"view": {"history": {"retention": "7d"}}}, "spec.view.history"),
        ({"view": {"indexes": [{"name": "by-user"}]}}, "spec.view.indexes[0].field"),
        ({"view": {"indexes": [{**INDEX, "type": "uuid"}]}}, "spec.view.indexes[by-user].type"),
        ({"view": {"indexes": [{**INDEX, "field": "a..b"}]}}, "spec.view.indexes[by-user].field"),
        ({"view": {"indexes": [{**INDEX, "field": "a.b[0]"}]}}, "spec.view.indexes[by-user].field"),
        ({"view": {"indexes": [INDEX, INDEX]}}, "spec.view.indexes"),
        ({"view": {"indexes": [{**INDEX, "name": f"i{n}"} for n in range(17)]}}, "spec.view.indexes"),
        ({"view": {"indexes": [INDEX]}, "value": {"format": "string"}}, "spec.view.indexes"),
        (
            {"view": {"indexes": [INDEX], "kind": "aggregate", "aggregate": COUNT}},
            "spec.view.indexes[by-user].field",
        ),
        (
            {
                "view": {
                    "indexes": [INDEX],
                    "kind": "aggregate",
                    "aggregate": {**COUNT, "window": {"size": "1m"}},
                }
            },
            "spec.view.indexes",
        ),
        ({"view": {"ttl": "0s"}}, "spec.view.ttl"),
        ({"view": {"ttl": "soon"}}, "spec.view.ttl"),
        ({"auth": {"jwt": {}}}, "spec.auth.rules"),
        ({"tls": {"secretRef": {"name": "tls"}, "clientAuth": "maybe"}}, "spec.tls.clientAuth"),
        ({"tls": {"clientAuth": "request"}}, "spec.tls.clientAuth"),
        ({"replicas": 2, "standbyReplicas": 2}, "spec.standbyReplicas"),
        ({"read": {"consistency": "at-least"}}, "spec.read.consistency"),
        ({"read": {"consistency": "eventual"}}, "spec.read.consistency"),
        ({"ingest": {"mode": "batch"}}, "spec.ingest.mode"),
        ({"ingest": {"batch": "4s"}}, "spec.ingest.batch"),
        ({"ingest": {"trigger": "1"}}, "spec.ingest.trigger"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_field_is_named(fields: dict[str, Any], path: str) -> None:
    """A field that is wrong, or that this version does not implement, is refused by its path."""
    with pytest.raises(SpecError) as error:
        parse_spec(SMALL | fields)
    assert str(error.value).startswith(f"{path}: ")


@pytest.mark.parametrize("type", ["string", "boolean"])
def test_index_that_no_number_fits_is_refused_over_a_column_of_numbers(type: str) -> None:
    """An index of texts or booleans over a count would be empty, so it is refused with what to write."""
    index = {"name": "by-n", "field": "n", "type": type}
    view = {"kind": "aggregate", "aggregate": COUNT, "indexes": [index]}
    with pytest.raises(
        SpecError, match=r"^spec\.view\.indexes\[by-n\]\.type: count gives numbers.*long or double$"
    ):
        parse_spec(SMALL | {"view": view})
    assert parse_spec(SMALL | {"view": {**view, "indexes": [{**index, "type": "long"}]}}).indexes


@pytest.mark.parametrize("fields", [{"view": {"changes": False}}, {"view": {"indexes": []}}], ids=str)
def test_later_feature_may_be_turned_off(fields: dict[str, Any]) -> None:
    """A feature of a later version is accepted if it is turned off or empty."""
    assert parse_spec(SMALL | fields) == parse_spec(SMALL)


def test_record_key_as_new_key_changes_nothing() -> None:
    """A view keyed by the record key needs no rekey job."""
    assert parse_spec(SMALL | {"view": {"keyBy": ["key"]}}) == parse_spec(SMALL)
    assert parse_spec(SMALL | {"view": {"keyBy": ["key", "user"]}}).key_by == ("key", "user")


def test_executors_need_a_rekey_job() -> None:
    """A view under another key may have executors. Under the record key nothing would run on them, so they are refused."""
    executors = {"ingest": {"executors": 2}}
    assert parse_spec(SMALL | {"view": {"keyBy": ["user"]}, **executors}).ingest.executors == 2
    with pytest.raises(
        SpecError, match=r"^spec\.ingest\.executors: only a view with .* or spec\.view\.keyBy has"
    ):
        parse_spec(SMALL | {"view": {"keyBy": ["key"]}, **executors})


@pytest.mark.parametrize(
    ("text", "ms"),
    [("0s", 0), ("500ms", 500), ("30s", 30_000), ("5m", 300_000), ("12h", 43_200_000), ("7d", 604_800_000)],
)
def test_duration_is_a_number_and_a_unit(text: str, ms: int) -> None:
    """A duration is a whole number and a unit."""
    assert duration_ms(text, "spec.view.ttl") == ms


@given(
    st.text(max_size=12)
    | st.sampled_from(("1.5s", "-1s", "s", "1", "1S", "1 s", "1s\n", "٤s", "9" * 5000 + "d"))
)
def test_other_text_is_no_duration(text: str) -> None:
    """Text that is no duration is refused by the path of its field."""
    try:
        assert duration_ms(text, "spec.view.ttl") >= 0
    except SpecError as error:
        assert str(error).startswith("spec.view.ttl: ")  # noqa: PT017


def test_view_with_sql_stores_json() -> None:
    """A view with SQL stores JSON, whatever the format of the topic's values."""
    sql = {"transform": {"sql": "SELECT key, value FROM records"}, "value": {"format": "int"}}
    assert (
        parse_spec(SMALL | sql).stored_format,
        parse_spec(SMALL | {"value": {"format": "int"}}).stored_format,
    ) == (
        "json",
        "int",
    )


def test_replication_factor_counts_the_active_replica() -> None:
    """A partition has one active replica and its standby replicas."""
    assert parse_spec(SMALL | {"replicas": 3, "standbyReplicas": 2}).replication_factor == 3


def test_settings_of_the_registry_are_not_kafkas() -> None:
    """A registry's credentials are kept from Kafka's clients; an unknown one, and two at once, are refused without values."""
    kafka = {"bootstrapServers": "a:1", "config": {"retries": "3", BASIC: "ann:secret"}}
    parsed = parse_spec({"kafka": kafka, "topic": "t", "value": REGISTRY})
    assert (parsed.kafka_config, parsed.registry_config) == ({"retries": "3"}, {BASIC: "ann:secret"})
    assert authorization(parsed.registry_config) == "Basic YW5uOnNlY3JldA=="
    assert "secret" not in repr(parsed)
    for config in ({"schema.registry.url": "secret"}, {BASIC: "a:secret", TOKEN: "secret"}):
        with pytest.raises(SpecError, match=r"spec\.kafka\.config: .*schema\.registry") as refused:
            parse_spec({"kafka": {"bootstrapServers": "a:1", "config": config}, "topic": "t"})
        assert "secret" not in str(refused.value)
