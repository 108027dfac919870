"""Test a view from creation to deletion: applied, available, read, and what remains of it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.view_on_cluster import SMALL, Platform, ViewOnCluster

pytestmark = pytest.mark.timeout(900)

MINIMAL = Path(__file__).parents[2] / "examples" / "kubernetes" / "minimal.yaml"
KEYS = [f"key-{number}" for number in range(40)]


@pytest.fixture
def minimal(platform: Platform) -> Iterator[ViewOnCluster]:
    """Yield a view of the unchanged example."""
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


def test_produced_records_are_read_through_the_service(minimal: ViewOnCluster) -> None:
    """An available view answers every key and later ones through the Service, and no deleted one."""
    assert minimal.values(*KEYS, "missing") == {
        **{key: (200, {"is": key}) for key in KEYS},
        "missing": (404, minimal.values("missing")["missing"][1]),
    }
    minimal.platform.produce(minimal.topic, {"key-1": '{"is": "new"}', "key-2": "", "later": '"here"'})
    found = minimal.values("key-1", "key-2", "later")
    assert [status for status, _ in found.values()] == [200, 404, 200]
    assert [found["key-1"][1], found["later"][1]] == [{"is": "new"}, "here"]


def test_refused_sql_is_shown_by_kubectl(platform: Platform) -> None:
    """`kubectl get qt` shows Spark's error at once; a corrected spec rolls out, and a broken candidate leaves the view as it
    was.
    """
    view = ViewOnCluster(platform, "mistaken", "mistaken")
    platform.make_topic(view.topic)
    platform.produce(view.topic, {"a": '{"n": 1}'})
    wrong, right = "SELECT key, nope FROM records", "SELECT key, value FROM records"

    view.apply({**SMALL, "transform": {"sql": wrong}})
    platform.eventually("the first revision has failed", lambda: view.status.get("phase") == "Failed")
    shown = platform.namespace.kubectl("get", "qt", view.name, "--no-headers")
    assert "`nope` cannot be resolved" in shown
    assert "line 1 pos 12" in shown
    assert refusal(view) == ("False", "TransformRefused")
    platform.eventually("an event reports it", lambda: view.events()["TransformRefused"] == 1)

    view.patch(transform={"sql": right})
    view.wait_until_available()
    view.wait_until_settled()
    assert (refusal(view), view.active) == (("True", "Valid"), "r2")

    view.patch(transform={"sql": wrong})
    platform.eventually(
        "the candidate is refused", lambda: "failure" in view.status, 180
    )  # its deadline is an hour
    assert "line 1 pos 12" in view.status["message"]
    assert refusal(view) == ("False", "TransformRefused")
    platform.eventually("an event reports it", lambda: view.events()["RolloutFailed"] == 1)
    assert (view.active, view.values("a")["a"]) == ("r2", (200, {"n": 1}))
    view.delete()


def refusal(view: ViewOnCluster) -> tuple[str, str]:
    valid = next(condition for condition in view.status["conditions"] if condition["type"] == "SpecValid")
    return valid["status"], valid["reason"]


@pytest.fixture
def dead_letters(platform: Platform) -> ViewOnCluster:
    """Yield a view that leaves a group in Kafka, and a dead letter topic with a record."""
    view = ViewOnCluster(platform, "leaving", "left")
    platform.make_topic(view.topic)
    view.apply({**SMALL, "onBadRecord": "DeadLetter", "deletionPolicy": "Retain"})
    platform.produce(view.topic, {"good": '{"n": 1}', "bad": "{"})
    view.wait_until_available()
    return view


def test_deletion_policy_decides_what_remains(dead_letters: ViewOnCluster) -> None:
    """`Retain` keeps volumes and Kafka objects, a resource of the same name gets a new revision, and `Delete` removes only its
    own.
    """
    view, platform = dead_letters, dead_letters.platform
    application = view.status["active"]["applicationId"]
    in_kafka = [application, f"{application}.dead-letter"]
    platform.eventually(
        "the group and the topic exist in Kafka", lambda: platform.in_kafka(application) == in_kafka
    )
    volumes = {claim["metadata"]["uid"] for claim in view.live("pvc")}

    view.delete()
    assert platform.in_kafka(application) == in_kafka
    assert {claim["metadata"]["uid"] for claim in view.live("pvc")} == volumes
    platform.eventually("only the volumes remain", lambda: kinds_left(view) == {"PersistentVolumeClaim"})

    view.apply({**SMALL, "onBadRecord": "DeadLetter"})
    view.wait_until_available()
    assert (view.active, view.values("good")["good"]) == ("r2", (200, {"n": 1}))

    view.delete()
    assert platform.in_kafka(f"{view.namespace.name}.{view.name}.") == in_kafka
    platform.eventually("nothing remains", lambda: not kinds_left(view))


def kinds_left(view: ViewOnCluster) -> set[str]:
    """Return the kinds with objects that have the view's label or refer to the view."""
    kinds = view.namespace.kubectl("api-resources", "--namespaced", "--verbs=list", "--output=name").split()
    output = view.namespace.kubectl("get", ",".join(kinds), "--output=json")
    found, _ = json.JSONDecoder().raw_decode(output)  # a warning about a deprecated kind may follow
    left = set()
    for live in found["items"]:
        meta = live["metadata"]
        owners = {(owner["kind"], owner["name"]) for owner in meta.get("ownerReferences", ())}
        ours = meta.get("labels", {}).get("queryabletopics.io/view") == view.name
        if ours or ("QueryableTopic", view.name) in owners:
            left.add(live["kind"])
    return left
