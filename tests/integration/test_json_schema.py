"""Test JSON values with a JSON Schema from a producer to an answer, in the frame of a schema registry."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.integration import topics
from tests.integration.system import example, running
from tests.support.schema_registry import framed, schema_registry

PAGE = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()


def test_json_schema_with_a_registry(kafka: Any, tmp_path: Path) -> None:
    """Records of the example's schema are answered as they were written. One that does not fit is counted, and status says
    where it does not."""
    document = example("invoices.yaml", kafka.bootstrap)
    topic = document["spec"]["topic"]
    source = document["spec"]["value"]["schemaFrom"]
    (reason,) = re.findall(r"```text\n(value: at /lines.*)\n```", PAGE)
    (shown,) = re.findall(r"An invoice that does not fit:\n\n```json\n(.*)\n```", PAGE)
    with schema_registry() as registry:
        id_ = registry.register("invoices-value", json.loads(source.pop("inline")), type_="JSON")
        source["registryUrl"] = registry.url
        good = b'{ "lines": [{"article": "pen", "pieces": 2}], "number": "DE-7" }'
        topics.create(kafka.bootstrap, topic, 1)
        topics.produce(
            kafka.bootstrap,
            topic,
            [
                (b"bare", good),
                (b"gone", framed(id_, good)),
                (b"gone", None),
                (b"a", framed(id_, good)),
                (b"b", framed(id_, shown.encode())),
            ],
        )
        with running(document, tmp_path) as system:
            system.at_end(topics.ends(kafka.bootstrap, topic))
            assert system.get("/v1/keys/a").content == good
            assert [row["key"] for row in system.items()] == ["a"]
            partition = system.partition(0)
            assert (partition["bad"], partition["lastBad"]["reason"]) == (2, reason)
