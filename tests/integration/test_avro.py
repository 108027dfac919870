"""Test Avro values from a producer to an answer: with the schema in the resource, and with a schema registry."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from queryable_app.config.avro_schema import parse_avro_schema
from queryable_app.wire.avro import avro_bytes, avro_json
from tests.integration import topics
from tests.integration.system import example, resource, running
from tests.support.schema_registry import V1, V2, framed, schema_registry
from tests.support.waiting import eventually

PAGE = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()


def test_avro_with_a_schema_in_the_resource(kafka: Any, tmp_path: Path) -> None:
    """The example is written as JSON, is Avro in the topic, and is answered as JSON, as Avro and as Avro's JSON."""
    document = example("user-profiles.yaml", kafka.bootstrap)
    topic = document["spec"]["topic"]
    schema = parse_avro_schema(document["spec"]["value"]["schemaFrom"]["inline"])
    (shown,) = re.findall(r"This record of the example:\n\n```json\n(.*)\n```", PAGE)
    (shown_in_avro,) = re.findall(r"as `application/avro\+json`:\n\n```json\n(.*)\n```", PAGE)
    topics.create(kafka.bootstrap, topic, 1)
    topics.produce(
        kafka.bootstrap,
        topic,
        [(b"bad", b"\xff"), (b"gone", avro_bytes(schema, shown.encode())), (b"gone", None)],
    )
    with running(document, tmp_path) as system:
        body = '{"key": "ann", "value": %s}' % shown  # noqa: UP031 - the text has braces
        written = system.post("/v1/records", content=body)
        assert written.status_code == 200, written.text
        path = "/v1/keys/ann?min-position=" + written.json()["position"]
        assert topics.records(kafka.bootstrap, topic)[-1].value == avro_bytes(schema, shown.encode())
        assert system.get(path).text == shown
        assert system.get(path, headers={"Accept": "application/octet-stream"}).text == shown
        avro = system.get(path, headers={"Accept": "application/avro"})
        assert (avro.headers["content-type"], avro.content) == (
            "application/avro",
            avro_bytes(schema, shown.encode()),
        )
        as_json = system.get(path, headers={"Accept": "application/avro+json"})
        assert as_json.json() == json.loads(shown_in_avro) == json.loads(avro_json(schema, shown.encode()))
        assert len({system.get(path).headers["etag"], avro.headers["etag"], as_json.headers["etag"]}) == 3
        assert [row["key"] for row in system.items()] == ["ann"]
        assert system.partition(0)["bad"] == 1
        wrong = system.post("/v1/records", content='{"key": "ann", "value": {"id": 1.5}}')
        assert (wrong.status_code, "id: Decimal('1.5') is no long" in wrong.json()["detail"]) == (400, True)


def test_avro_with_a_registry(kafka: Any, tmp_path: Path) -> None:
    """Records of two schemas are read as the resource's one, by the Avro keys of the page; ingest waits for a registry that is
    away, and says so."""
    (key,) = re.findall(r"```yaml\n(key:\n  format: avro\n.*?)```", PAGE, re.DOTALL)
    with schema_registry() as registry:
        first, second = registry.register("u-value", V1), registry.register("u-value", V2)
        topics.create(kafka.bootstrap, "registered", 1)
        one, two = framed(7, b"\x01"), framed(7, b"\x80\x01")  # -1 and 64
        other = framed(8, b"\x02")
        topics.produce(
            kafka.bootstrap,
            "registered",
            [
                (one, framed(first, b"\x0e\x02x")),
                (two, framed(99, b"")),
                (other, framed(first, b"\x0e\x02x")),
            ],
        )
        (value,) = re.findall(r"begins with:\n\n```yaml\n(.*?)```", PAGE, re.DOTALL)
        shown = yaml.safe_load(value)
        source = shown["value"]["schemaFrom"]
        assert (json.loads(source["inline"]), source["schemaId"]) == (V2, second)
        source["registryUrl"] = registry.url
        document = resource(
            "registered",
            kafka.bootstrap,
            **yaml.safe_load(key),
            **shown,
            transform={"sql": "SELECT key, value.id * 10 + key AS n, value.city AS city FROM records"},
        )
        with running(document, tmp_path) as system:
            system.at_end(topics.ends(kafka.bootstrap, "registered"))
            assert system.value("-1") == {"n": 69, "city": "none"}
            registry.broken = "away"
            topics.produce(kafka.bootstrap, "registered", [(two, framed(second, b"\x10\x02y"))])
            said = f"the schema registry {registry.url} gives no schema"
            eventually("status names the registry", lambda: said in system.status()["ingest"]["detail"])
            assert system.value("-1") == {"n": 69, "city": "none"}
            registry.broken = ""
            eventually("the record is readable", lambda: system.value("64") == {"n": 144, "city": "y"})
            answer = system.post("/v1/records", content='{"key": -64, "value": {"id": 9}}')
            assert answer.status_code == 200, answer.text
            record = topics.records(kafka.bootstrap, "registered")[-1]
            assert (record.key, record.value) == (framed(7, b"\x7f"), framed(second, b"\x12\x08none"))
            written = system.get("/v1/keys/-64?min-position=" + answer.json()["position"])
            assert written.json() == {"n": 26, "city": "none"}
            assert [row["key"] for row in system.items("/v1/range?from=-1")] == [-1, 64]
            partition = system.partition(0)
            said = "key: its schema has the id 8, and not 7 of spec.key.schemaFrom.schemaId"
            assert (partition["bad"], partition["lastBad"]["reason"]) == (2, said)
