"""Test Protobuf values from a producer to an answer: with the schema in the resource, and with a schema registry."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import yaml

from queryable_app.client import QueryableTopic
from tests.integration import topics
from tests.integration.system import example, resource, running
from tests.support.protobuf import USER, indexed, tagged, varint
from tests.support.schema_registry import schema_registry

PAGE = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()

PARCEL = b"".join(
    (
        tagged(1, 0, varint(2**64 - 1)),
        tagged(2, 0, b"\x01"),
        tagged(3, 1, struct.pack("<d", 1.5)),
        tagged(4, 2, tagged(1, 0, varint(1_795_406_706)) + tagged(2, 0, varint(7000))),
        tagged(5, 2, tagged(1, 2, b"Bonn")),
        tagged(6, 2, tagged(1, 2, b"a") + tagged(2, 2, b"b")),
    )
)


def test_protobuf_with_a_schema_in_the_resource(kafka: Any, tmp_path: Path) -> None:
    """A record of the example is answered as the JSON of the page, and wrong bytes are counted as bad."""
    document = example("parcels.yaml", kafka.bootstrap)
    topic = document["spec"]["topic"]
    (shown,) = re.findall(r"A parcel of the example:\n\n```json\n(.*)\n```", PAGE)
    topics.create(kafka.bootstrap, topic, 1)
    topics.produce(
        kafka.bootstrap, topic, [(b"bad", b"\xff"), (b"gone", PARCEL), (b"gone", None), (b"a", PARCEL)]
    )
    with running(document, tmp_path) as system:
        system.at_end(topics.ends(kafka.bootstrap, topic))
        assert system.get("/v1/keys/a").text == shown
        assert system.get("/v1/keys/a", headers={"Accept": "application/octet-stream"}).text == shown
        refused = system.get("/v1/keys/a", headers={"Accept": "application/x-protobuf"})
        assert (refused.status_code, "application/json" in refused.text) == (400, True)
        assert [row["key"] for row in system.items()] == ["a"]
        assert system.partition(0)["bad"] == 1


def test_protobuf_with_a_registry_and_sql(kafka: Any, tmp_path: Path) -> None:
    """The message of the resource reads the records of a registry, and SQL has its columns. Keys are those of the
    page, and other ones are bad."""
    (key_spec,) = re.findall(r"```yaml\n(key:\n  format: protobuf\n.*?)```", PAGE, re.DOTALL)
    with schema_registry() as registry:
        id_ = registry.register("user", USER, type_="PROTOBUF")
        user = tagged(1, 0, b"\x07") + tagged(2, 2, b"ann")

        def key(number: int) -> bytes:
            return indexed(7, [0], tagged(1, 0, varint(number)))

        topics.create(kafka.bootstrap, "protobuf-users", 1)
        topics.produce(
            kafka.bootstrap,
            "protobuf-users",
            [
                *((key(number), indexed(id_, [0], user)) for number in (300, -1, 5)),
                (key(6), indexed(id_, [1], b"")),
                (key(7), user),
                (b"a", indexed(id_, [0], user)),
            ],
        )
        source = {"registryUrl": registry.url, "inline": USER, "message": "shop.User"}
        document = resource(
            "protobuf-users",
            kafka.bootstrap,
            **yaml.safe_load(key_spec),
            value={"format": "protobuf", "schemaFrom": source},
            transform={"sql": "SELECT key, key + value.id * 10 AS n, upper(value.name) AS name FROM records"},
        )
        with running(document, tmp_path) as system:
            system.at_end(topics.ends(kafka.bootstrap, "protobuf-users"))
            assert system.value("300") == {"n": 370, "name": "ANN"}
            assert [row["key"] for row in system.items("/v1/range?from=-1")] == [-1, 5, 300]
            assert system.partition(0)["bad"] == 3
            with QueryableTopic([system.url(0)], deadline_ms=30_000) as client:
                row = client.get(-1)
                assert row is not None
                assert row.value == {"n": 69, "name": "ANN"}
