"""Test parsing a resource, and the errors that name its invalid fields."""

from __future__ import annotations

from typing import Any

import pytest

from queryable_app.config.topic_spec import SpecError
from queryable_operator.spec.resource import SPEC_CHARACTERS_MAX, Rollout, identity_of
from tests.support.view import FULL, resource, view

SASL = {"bootstrapServers": "kafka:9092", "config": {"security.protocol": "SASL_PLAINTEXT"}}
PATH = {"bootstrapServers": "kafka:9092", "config": {"ssl.truststore.location": "/proc/self/fd/2"}}
LIMITS = {"limits": {"memory": "512Mi"}}


def test_small_resource_has_every_default() -> None:
    """Missing fields have the schema's defaults, also before an API server filled them in."""
    small = view()

    assert small.rollout == Rollout(3600.0, 0, 30.0, "DeleteCandidate")
    assert (small.replace_after_seconds, small.image) == (300.0, None)
    assert (small.paused, small.suspended, small.on_partitions_changed) == (False, False, "Redeploy")
    assert small.raw["storage"]["size"] == "10Gi"
    assert small.spec.replicas == 1


def test_full_resource_is_parsed() -> None:
    """Every field that the operator uses is parsed."""
    full = view(**FULL)

    assert (full.spec.topic, full.spec.replication_factor) == ("page-views", 2)


def test_invalid_resource_has_an_identity() -> None:
    """The operator can write its status whatever the spec says."""
    wrong = resource(view={"kind": "aggregate"})
    wrong["metadata"] |= {"generation": 7, "deletionTimestamp": "2026-01-01T00:00:00Z"}

    identity = identity_of(wrong)

    assert (identity.name, identity.namespace, identity.generation, identity.deleting) == (
        "users",
        "shop",
        7,
        True,
    )


def test_owner_reference_names_the_controller() -> None:
    """The resource controls its children."""
    assert view().owner == {
        "apiVersion": "queryabletopics.io/v1alpha1",
        "kind": "QueryableTopic",
        "name": "users",
        "uid": "0b8a3f3e-6a7e-4a43-8f0a-6f1d9a6f3c51",
        "controller": True,
    }


def test_view_can_follow_an_earlier_spec() -> None:
    """An earlier revision is built from its own spec, for the same resource."""
    earlier = view(replicas=2, redeployNonce=1).following({**FULL, "replicas": 5})

    assert (earlier.spec.topic, earlier.spec.replicas, earlier.name) == ("page-views", 5, "users")
    assert earlier.raw["redeployNonce"] == 0


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"replicas": 2, "standbyReplicas": 2}, "spec.standbyReplicas: 2 standby replicas need at least 3 nodes"),
        ({"view": {"kind": "history", "ttl": "1d"}}, "spec.view.ttl: rows of a view with history do not expire"),
        ({"view": {"ttl": "0s"}}, "spec.view.ttl: a row that expires at once can never be read"),
        ({"key": {"format": "avro"}}, "spec.key.schemaFrom: avro keys need one"),
        ({"auth": {"jwt": {"jwksUrl": "https://a"}}}, "spec.auth.rules: is empty"),
        ({"tls": {"clientAuth": "require"}}, "spec.tls.clientAuth: require needs spec.tls.secretRef"),
        ({"ingest": {"batch": "1s"}}, "spec.ingest.batch: Spark's Real-Time Mode takes no batch under 5s"),
        (
            {"ingest": {"executors": 2}},
            "spec.ingest.executors: only a view with spec.view.aggregate.groupBy or spec.view.keyBy has",
        ),
        ({"ingest": {"driverMemory": "256m"}}, "spec.ingest.driverMemory: Spark needs at least 512m"),
        ({"kafka": SASL}, "spec.kafka.config: sasl.mechanism is not set"),
        ({"kafka": PATH}, "spec.kafka.config: ssl.truststore.location names a file"),
        ({"kafka": {**PATH, "secretRef": {"name": "a"}}}, "spec.kafka.config: ssl.truststore.location names a file"),
        ({"rollout": {"promotion": "Manual"}}, "spec.rollout.promotion: only Automatic is supported"),
        ({"rollout": {"stable": "9999999999s"}}, "spec.rollout.stable: '9999999999s' is not a duration"),
        ({"replaceAfter": "999999999d"}, "spec.replaceAfter: 999999999d is more than ten years"),
        ({"replaceAfter": "9999999999s"}, "spec.replaceAfter: '9999999999s' is not a duration"),
        (
            {"podTemplate": {"resources": {"serve": {"requests": {"memory": "1Gi"}, **LIMITS}}}},
            "spec.podTemplate.resources.serve.requests.memory: 1Gi is more than the limit of 512Mi",
        ),
        (
            {"podTemplate": {"resources": {"ingest": LIMITS}}},
            "spec.podTemplate.resources.ingest.limits.memory: 512Mi is too little for the JVM's heap",
        ),
        (
            {"podTemplate": {"resources": {"serve": {"requests": {"cpu": "two"}}}}},
            "spec.podTemplate.resources.serve.requests.cpu: 'two' is not a quantity",
        ),
        (
            {"podTemplate": {"annotations": {"a": "x" * SPEC_CHARACTERS_MAX}}},
            "spec: 300106 characters as JSON, and the limit is 300000",
        ),
    ],
    ids=lambda value: value.split(":")[0] if isinstance(value, str) else "spec",
)  # fmt: skip
def test_rule_across_fields_names_the_field(spec: dict[str, Any], sentence: str) -> None:
    """An error that the schema cannot find begins with the path of the field."""
    with pytest.raises(SpecError) as refused:
        view(**spec)

    assert str(refused.value).startswith(sentence)


def test_secret_may_complete_the_kafka_settings() -> None:
    """With a Secret, the spec's settings may be incomplete."""
    assert view(kafka={**SASL, "secretRef": {"name": "kafka-client"}}).spec.topic == "users"


def test_error_contains_no_kafka_setting() -> None:
    """Values of Kafka settings may be secret."""
    config = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": "hunter2"}

    with pytest.raises(SpecError) as refused:
        view(kafka={"bootstrapServers": "kafka:9092", "config": config})

    assert "hunter2" not in str(refused.value)
    assert refused.value.__cause__ is None
