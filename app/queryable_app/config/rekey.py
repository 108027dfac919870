"""Describe a view under another key than the record key, as its nodes see it: a view of the internal topic."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal

from queryable_app.config.topic_spec import KeyFormat, TopicSpec, ValueFormat

GroupKeyFormat = Literal["string", "long", "json"]
"""The key format of a group, or of a new key: text, an integer, or a JSON array of several columns."""

PARTITIONER: Final = "murmur2"
INTERNAL_TOPIC_CONFIG: Final = {
    "cleanup.policy": "delete",
    # A replica without a peer is rebuilt from it, also when the source topic has deleted its oldest records.
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "max.message.bytes": "16777216",
}


def internal_topic(application_id: str) -> str:
    """Return the topic into which the rekey job of a revision writes."""
    return f"{application_id}.rekey"


def spec_of_nodes(spec: TopicSpec, application_id: str, key_format: KeyFormat) -> TopicSpec:
    """Return the spec that the nodes of a rekeyed view follow. Their records are envelopes in the internal topic."""
    return replace(
        spec,
        topic=internal_topic(application_id),
        source_topic=spec.topic,
        key_format=key_format,
        key_schema=None,
        value_format=_stored_value(spec),
        value_schema=None,
        schema_source=None,
        sql=None,
        partitioner=PARTITIONER,
        on_bad_record="Fail",
        read=replace(spec.read, ingest=False),
    )


def _stored_value(spec: TopicSpec) -> ValueFormat:
    """Return the format of the values in envelopes."""
    return "json" if spec.sql is not None or spec.schema_source is not None else spec.value_format
