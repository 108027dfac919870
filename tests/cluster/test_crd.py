"""Test the schema in a real API server: its refusals, its defaults, and what kubectl shows of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from queryable_app.local.resource_file import crd
from queryable_operator.spec.defaults import with_defaults
from tests.support.bounds import inside, outside, words
from tests.support.cluster import Namespace
from tests.support.view import FULL

VERSION = crd()["spec"]["versions"][0]
SCHEMA: Mapping[str, Any] = VERSION["schema"]["openAPIV3Schema"]
EXAMPLES = Path(__file__).parents[2] / "examples"
KAFKA = {"bootstrapServers": "kafka:9092"}
SMALL: Mapping[str, Any] = {"kafka": KAFKA, "topic": "users"}


def topic(name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "queryabletopics.io/v1alpha1",
        "kind": "QueryableTopic",
        "metadata": {"name": name},
        "spec": dict(spec),
    }


def view_of(**fields: Any) -> dict[str, Any]:
    return {"view": fields}


def pods(**fields: Any) -> dict[str, Any]:
    return {"podTemplate": fields}


def column(**fields: Any) -> dict[str, Any]:
    return view_of(kind="aggregate", aggregate={"columns": [{"name": "c", **fields}]})


def window(**fields: Any) -> dict[str, Any]:
    return view_of(kind="aggregate", aggregate={"columns": [COUNT], "window": fields})


COUNT: Mapping[str, Any] = {"name": "c", "op": "count"}
JWKS: Mapping[str, Any] = {"jwksUrl": "https://a", "issuer": "b", "audience": "c"}

# Each rule by a part of its message, with what breaks it.
RULES: list[tuple[str, dict[str, Any]]] = [
    ("standbyReplicas must be smaller than replicas", {"replicas": 2, "standbyReplicas": 2}),
    ("schema is for the json format", {"value": {"format": "string", "schema": "a INT"}}),
    ("avro and protobuf keys need schemaFrom, and other keys have none", {"key": {"format": "avro"}}),
    ("avro and protobuf keys need schemaFrom, and other keys have none", {"key": {"format": "protobuf"}}),
    ("avro and protobuf keys need schemaFrom, and other keys have none", {"key": {"schemaFrom": {"inline": "x"}}}),
    ("avro and protobuf values need schemaFrom", {"value": {"format": "avro"}}),
    ("give registryUrl, inline or configMapRef", {"value": {"format": "avro", "schemaFrom": {}}}),
    (
        "give either inline or configMapRef",
        {"value": {"format": "avro", "schemaFrom": {"inline": "x", "configMapRef": {"name": "a", "key": "b"}}}},
    ),
    ("the kind aggregate needs the field aggregate", view_of(kind="aggregate")),
    ("the kind aggregate needs the field aggregate", view_of(aggregate={"columns": [{"name": "c", "op": "count"}]})),
    ("history is for the kind history", view_of(history={})),
    ("only the kind latest has entries", view_of(kind="history", entries={"timeField": "at"})),
    (
        "a view with entries has no keyBy, indexes or changes",
        view_of(entries={"timeField": "at"}, keyBy=["a"]),
    ),
    ("entries have a retention in place of a ttl", view_of(entries={"timeField": "at"}, ttl="1d")),
    (
        "an aggregate is keyed by aggregate.groupBy",
        view_of(kind="aggregate", aggregate={"columns": [{"name": "c", "op": "count"}]}, keyBy=["a"]),
    ),
    ("every op but count needs the column", column(op="sum")),
    ("top_k needs k, and no other op has it", column(op="top_k", of="a")),
    ("top_k needs k, and no other op has it", column(op="sum", of="a", k=3)),
    ("approx_quantiles needs quantiles", column(op="approx_quantiles", of="a")),
    ("approx_quantiles needs quantiles", column(op="sum", of="a", quantiles=[0.5])),
    ("only collect_set has a limit", column(op="sum", of="a", limit=3)),
    ("give either size, or sessionGap", window()),
    ("give either size, or sessionGap", window(size="1m", sessionGap="1m")),
    ("session windows do not slide", window(slide="1m", sessionGap="1m")),
    ("an aggregate has no ttl", view_of(kind="aggregate", aggregate={"columns": [COUNT]}, ttl="1d")),
    ("give either secretRef or jwksUrl", {"auth": {"jwt": {}}}),
    (
        "give either secretRef or jwksUrl",
        {"auth": {"jwt": {**JWKS, "secretRef": {"name": "a", "key": "b"}}}},
    ),
    ("give issuer and audience with jwksUrl", {"auth": {"jwt": {"jwksUrl": "https://a", "issuer": "b"}}}),
    ("clientAuth needs secretRef", {"tls": {"clientAuth": "require"}}),
    ("jwksCa goes with jwksUrl", {"auth": {"jwt": {"jwksCa": "a", "secretRef": {"name": "a", "key": "b"}}}}),
    (
        "give a claim with one of equals, contains and glob",
        {"auth": {"jwt": JWKS, "rules": [{"claim": "sub", "allow": ["read"]}]}},
    ),
    (
        "a view with history has neither keyBy nor ttl nor indexes",
        view_of(kind="history", history={}, ttl="1d"),
    ),
    ("size must be at least 1Mi", {"storage": {"size": "0"}}),
    ("labels below queryabletopics.io", pods(labels={"queryabletopics.io/view": "a"})),
    ("labels below queryabletopics.io", pods(labels={"apps.kubernetes.io/pod-index": "1"})),
    ("labels below queryabletopics.io", pods(labels={"statefulset.kubernetes.io/pod-name": "a"})),
    ("labels below queryabletopics.io", pods(labels={"app.kubernetes.io/name": "a"})),
    ("labels below queryabletopics.io", pods(labels={"app.kubernetes.io/instance": "a"})),
    ("labels below queryabletopics.io", pods(labels={"app.kubernetes.io/managed-by": "a"})),
    ("annotations below queryabletopics.io", pods(annotations={"queryabletopics.io/roll-hash": "a"})),
    ("annotations below queryabletopics.io", {"service": {"annotations": {"queryabletopics.io/wanted": "a"}}}),
    ("a key is a name, or a domain, a slash and a name", pods(labels={"Example.com/a": "a"})),
    ("a key is a name, or a domain, a slash and a name", pods(annotations={"a/b/c": "a"})),
    ("a key is a name, or a domain, a slash and a name", pods(nodeSelector={"-a": "a"})),
    ("a key is a name, or a domain, a slash and a name", {"service": {"annotations": {"n" * 64: "a"}}}),
    ("names that begin with QT_ are the operator's", pods(env=[{"name": "QT_NAME", "value": "a"}])),
    ("give podSelector, namespaceSelector or ipBlock", {"networkPolicy": {"from": [{}]}}),
    ("ipBlock stands alone", {"networkPolicy": {"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}}]}}),
    ("give either value or valueFrom", pods(env=[{"name": "A", "value": "a", "valueFrom": {}}])),
]  # fmt: skip

# What a change of STORED breaks.
STORED: Mapping[str, Any] = {**SMALL, "storage": {"size": "2Gi", "storageClassName": "fast"}}
CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("a volume cannot shrink", {"storage": {"size": "1Gi", "storageClassName": "fast"}}),
    ("a volume cannot shrink", {"storage": {"size": "2000M", "storageClassName": "fast"}}),
    ("storageClassName cannot be changed", {"storage": {"size": "2Gi", "storageClassName": "slow"}}),
    ("storageClassName cannot be changed", {"storage": {"size": "2Gi"}}),
    ("storageClassName cannot be changed", {}),
    ("ephemeral cannot be changed", {"storage": {"size": "2Gi", "storageClassName": "fast", "ephemeral": True}}),
]  # fmt: skip

NAMES = [
    ("n" * 63, "metadata.name"),
    ("n" * 41, "metadata.name"),
    ("1st", "metadata.name"),
    ("ends-", "metadata.name"),
    ("dotted.name", "metadata.name"),
    ("users-r12", "a name that ends in -r and a number is a revision's"),
]


def messages(schema: Mapping[str, Any]) -> Iterator[str]:
    for rule in schema.get("x-kubernetes-validations", []):
        yield rule["message"]
    for field in schema.get("properties", {}).values():
        yield from messages(field)
    if "items" in schema:
        yield from messages(schema["items"])


def test_every_rule_has_a_case() -> None:
    """Every rule of the schema has a case that breaks it."""
    tried = [part for part, _ in [*RULES, *CHANGES]] + [part for _, part in NAMES]

    assert [message for message in messages(SCHEMA) if not any(part in message for part in tried)] == []


@pytest.mark.parametrize(("name", "sentence"), NAMES)
def test_name_that_pods_cannot_have_is_refused(namespace: Namespace, name: str, sentence: str) -> None:
    """A name must be short, valid for a Service, and different from a revision's."""
    answer = namespace.try_topic(topic(name, SMALL))

    assert answer.status == 422
    assert sentence in answer.sentences


@pytest.mark.parametrize(("sentence", "spec"), RULES)
def test_rule_across_fields_refuses_its_case(
    namespace: Namespace, sentence: str, spec: dict[str, Any]
) -> None:
    """Each rule refuses what breaks it, in its own words, and no other rule complains."""
    answer = namespace.try_topic(topic("users", {**SMALL, **spec}))

    assert answer.status == 422
    assert [m for field in answer.mistakes.values() for m in field if sentence not in m] == []
    assert sentence in answer.sentences


def test_value_beyond_a_bound_is_refused(namespace: Namespace) -> None:
    """The API server refuses a value just outside of any bound of any field, and names the field."""
    taken = []
    for path, bound, value in outside(SCHEMA["properties"]["spec"], ("spec",)):
        resource = topic("users", {}) | inside(path, value)
        if isinstance(resource["spec"], dict):
            resource["spec"] = {**SMALL, **resource["spec"]}
        answer = namespace.try_topic(resource)
        if answer.status != 422 or words(path) not in answer.mistakes:
            taken.append((words(path), bound, answer.sentences))

    assert taken == []


@pytest.mark.parametrize(
    "missing", [("spec",), ("spec", "topic"), ("spec", "kafka"), ("spec", "kafka", "bootstrapServers")]
)
def test_missing_required_field_is_named(namespace: Namespace, missing: tuple[str, ...]) -> None:
    """The API server names each missing field that has no default."""
    resource: Any = json.loads(json.dumps(topic("users", SMALL)))
    holder = resource
    for step in missing[:-1]:
        holder = holder[step]
    del holder[missing[-1]]

    assert words(missing) in namespace.try_topic(resource).mistakes


@pytest.mark.parametrize(
    ("field", "item"),
    [
        ("env", {"name": "A", "value": "a"}),
        ("imagePullSecrets", {"name": "a"}),
        ("topologySpreadConstraints", {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}),
    ],
)  # fmt: skip
def test_duplicate_entry_is_refused(namespace: Namespace, field: str, item: dict[str, Any]) -> None:
    """The API server refuses two entries that a pod could not have together."""
    answer = namespace.try_topic(topic("users", {**SMALL, **pods(**{field: [item, item]})}))

    assert answer.status == 422
    assert list(answer.mistakes) == [f"spec.podTemplate.{field}[1]"]


@pytest.mark.parametrize(
    "file", sorted(EXAMPLES.rglob("*.yaml")), ids=lambda file: str(file.relative_to(EXAMPLES))
)
def test_examples_are_accepted(namespace: Namespace, file: Path) -> None:
    """A cluster accepts each example."""
    for document in yaml.safe_load_all(file.read_text()):
        if document["kind"] == "QueryableTopic":
            document["metadata"].pop("namespace", None)
            answer = namespace.try_topic(document)

            assert answer.status == 201, answer.sentences


def test_defaults_equal_the_operators(namespace: Namespace) -> None:
    """The API server's defaults for a resource equal the operator's."""
    for spec in (SMALL, FULL, {**SMALL, "view": {"kind": "history", "history": {}}}):
        answer = namespace.try_topic(topic("users", spec))

        assert answer.status == 201, answer.sentences
        assert answer.body["spec"] == with_defaults(spec)


@pytest.fixture(scope="module")
def stored(namespace: Namespace) -> Namespace:
    """Yield a namespace with the resource `stored`."""
    namespace.kubectl(
        "create", "--filename", "-", stdin=json.dumps(topic("stored", {**STORED, "paused": True}))
    )
    return namespace


@pytest.mark.parametrize(("sentence", "spec"), CHANGES)
def test_change_that_needs_other_volumes_is_refused(
    stored: Namespace, sentence: str, spec: dict[str, Any]
) -> None:
    """The API server refuses a change that would need other volumes, and the message gives advice."""
    answer = stored.try_change("stored", {**SMALL, **spec})

    assert answer.status == 422
    assert sentence in answer.sentences
    assert "create a new resource" in answer.sentences


def test_larger_volume_is_accepted(stored: Namespace) -> None:
    """The API server accepts a larger size, in any unit."""
    for size in ("3Gi", "2048Mi", "3G"):
        answer = stored.try_change("stored", {**SMALL, "storage": {"size": size, "storageClassName": "fast"}})

        assert answer.status == 200, answer.sentences
