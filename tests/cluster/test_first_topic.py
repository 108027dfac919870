"""Test docs/first_topic.md, from the view on: its commands as written, and the results that it states. As on the page, the
operator is in another namespace than Kafka and the resource.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pages import commands
from tests.support.view_on_cluster import SMALL, Platform, ViewOnCluster

pytestmark = pytest.mark.timeout(900)

PAGE = Path(__file__).parents[2] / "docs" / "first_topic.md"
ELSEWHERE = (
    "exec",
    "port-forward",
    "rollout",
)  # Kafka is the tests' own, and this machine may not reach pods


def test_every_command_of_the_page_works(platform: Platform) -> None:
    """Every command of the page works in order, every awaited state comes, and every read value is right."""
    view = ViewOnCluster(platform, "users", "users")
    platform.make_topic(view.topic)
    london, paris = ('{"name": "Ada", "city": "London"}', '{"name": "Ada", "city": "Paris"}')
    for value in (london, paris):
        platform.produce(view.topic, {"ada": value})
    answers = []
    for words in commands(PAGE):
        match words:
            case ["kubectl", "apply", "-f", file]:
                if file.endswith("minimal.yaml"):
                    view.apply(SMALL)  # the same, with less memory
            case ["kubectl", "run", "reader", *_, "get", key, "--url", view.url]:
                answers.append(view.values(key)[key])
            case ["kubectl", "get", "qt", *options] if "-w" in options:
                view.wait_until_settled()
            case ["kubectl", verb, *rest] if verb not in ELSEWHERE:
                platform.namespace.kubectl(verb, *rest, timeout=300)
    assert answers == [(200, {"name": "Ada", "city": "Paris"}), (200, {"city": "PARIS"})]
    kinds = "pod,pvc,configmap,secret,service,statefulset"
    platform.eventually("no child remains", lambda: not view.live(kinds))  # its children are deleted after it
