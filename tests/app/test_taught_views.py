"""Test that the views which the pages about aggregates teach are valid resources."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from queryable_app.config.topic_spec import TopicSpec
from queryable_app.local.resource_file import parse_resource

DOCS = Path(__file__).parents[2] / "docs"
VIEWS = [
    pytest.param(block, id=f"{page}-{number}")
    for page in ("aggregates", "windows")
    for number, block in enumerate(re.findall(r"```yaml\n(.*?)```", (DOCS / f"{page}.md").read_text(), re.S))
    if "view:" in block
]


def taught(block: str) -> TopicSpec:
    spec = {"kafka": {"bootstrapServers": "kafka:9092"}, "topic": "orders", **yaml.safe_load(block)}
    resource = {
        "apiVersion": "queryabletopics.io/v1alpha1",
        "kind": "QueryableTopic",
        "metadata": {"name": "taught"},
        "spec": spec,
    }
    return parse_resource(yaml.safe_dump(resource), "page").spec


@pytest.mark.parametrize("block", VIEWS)
def test_view_of_a_page_is_valid(block: str) -> None:
    """A view that a page shows is accepted as it stands, and computes aggregates."""
    assert taught(block).aggregate is not None
