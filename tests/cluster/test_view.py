"""A view from its first moment to its last: applied, available, read; and what is left of it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.view_on_cluster import Platform, ViewOnCluster

pytestmark = pytest.mark.timeout(900)

MINIMAL = Path(__file__).parents[2] / "examples" / "kubernetes" / "minimal.yaml"
KEYS = [f"key-{number}" for number in range(40)]


@pytest.fixture
def minimal(platform: Platform) -> Iterator[ViewOnCluster]:
    """The example, as it is."""
    (resource,) = yaml.safe_load_all(MINIMAL.read_text())
    view = ViewOnCluster(platform, resource["metadata"]["name"], resource["spec"]["topic"])
    platform.make_topic(view.topic)
    platform.produce(view.topic, {key: json.dumps({"is": key}) for key in KEYS})
    began = time.monotonic()
    platform.namespace.kubectl("apply", "--filename", str(MINIMAL))
    view.wait_until_available()
    print(f"\nfrom apply to Available: {time.monotonic() - began:.1f} s")
    yield view
    view.delete()


def test_what_is_produced_can_be_read_through_the_service(minimal: ViewOnCluster) -> None:
    """Once it is available every key is there, and so is what comes later, and what is deleted is not."""
    assert minimal.values(*KEYS, "nobody") == {
        **{key: (200, {"is": key}) for key in KEYS},
        "nobody": (404, minimal.values("nobody")["nobody"][1]),
    }
    minimal.platform.produce(minimal.topic, {"key-1": '{"is": "new"}', "key-2": "", "later": '"here"'})
    found = minimal.values("key-1", "key-2", "later")
    assert [status for status, _ in found.values()] == [200, 404, 200]
    assert [found["key-1"][1], found["later"][1]] == [{"is": "new"}, "here"]
