"""Test the builders' output in a real API server: accepted under the restricted Pod Security Standard, stable once applied."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from queryable_operator.build.policies import token_secret
from queryable_operator.build.services import client
from queryable_operator.build.workload import pod_template, stateful_set
from queryable_operator.decide.drift import difference
from queryable_operator.spec import names
from queryable_operator.spec.observed import Manifest
from queryable_operator.spec.resource import View, view_of
from tests.support.cluster import Namespace, Refused
from tests.support.view import FULL, SETTINGS, objects

SPECS: Mapping[str, Mapping[str, Any]] = {
    "small": {},
    "full": FULL,
    "ephemeral": {"storage": {"ephemeral": True, "size": "1.5Gi"}, "replicas": 2},
}


def apply(namespace: Namespace, manifest: Manifest, *options: str) -> str:
    return namespace.kubectl(
        "apply", "--server-side", "--force-conflicts", f"--field-manager={names.FIELD_MANAGER}", *options,
        "--filename", "-", stdin=json.dumps(manifest),
    )  # fmt: skip


def made(namespace: Namespace, name: str, **spec: Any) -> View:
    """Return a view as the operator reads it, of an existing resource, so that its children are not garbage-collected."""
    small = {"kafka": {"bootstrapServers": "kafka:9092"}, "topic": "users"}
    apply(
        namespace,
        {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": name, "namespace": namespace.name},
            "spec": {**small, **spec, "paused": True},
        },
    )
    return view_of(namespace.get("qt", name))


@pytest.fixture(scope="module", params=SPECS)
def view(request: pytest.FixtureRequest, namespace: Namespace) -> View:
    return made(namespace, request.param, **SPECS[request.param])


def test_api_server_accepts_every_child(namespace: Namespace, view: View) -> None:
    """The API server accepts each object unchanged and without a warning."""
    for child in [*objects(view), token_secret(view, 1, "abc")]:
        assert "Warning" not in apply(namespace, child, "--dry-run=server")


def test_restricted_namespace_accepts_pods(namespace: Namespace, view: View) -> None:
    """A namespace that enforces the restricted Pod Security Standard accepts the pods."""
    template = pod_template(view, 1, "shop.users.r1", "example.com/node:1", "0123456789abcdef", SETTINGS)
    metadata = {**template["metadata"], "name": "one", "namespace": namespace.name}
    claim = {"name": "data", "persistentVolumeClaim": {"claimName": "data-one"}}
    volumes = [v for v in template["spec"]["volumes"] if v["name"] != "data"]
    spec = {**template["spec"], "volumes": [*volumes, claim]}
    apply(namespace, _account(view))

    answer = apply(
        namespace, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}, "--dry-run=server"
    )

    assert "Warning" not in answer


def test_restricted_namespace_refuses_other_pods(namespace: Namespace, view: View) -> None:
    """The namespace of these tests refuses a pod that breaks the standard."""
    spec = {"containers": [{"name": "a", "image": "a"}]}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "two", "namespace": namespace.name},
        "spec": spec,
    }

    with pytest.raises(Refused, match="violates PodSecurity"):
        apply(namespace, pod, "--dry-run=server")


def test_applied_object_has_no_difference(namespace: Namespace, view: View) -> None:
    """An applied object has every desired field, and a second apply changes nothing."""
    for child in objects(view, pods=0):
        kind, name = child["kind"], child["metadata"]["name"]
        apply(namespace, child)
        live = namespace.get(kind, name)

        assert difference(child, live) is None
        apply(namespace, child)
        assert namespace.get(kind, name)["metadata"]["resourceVersion"] == live["metadata"]["resourceVersion"]


def test_removed_field_is_removed_from_the_object(namespace: Namespace) -> None:
    """A field that is no longer desired is a difference, and the next apply removes it from the live object."""
    before = made(namespace, "lessens", service={"annotations": {"example.com/a": "b"}})
    apply(namespace, client(before, 1))
    after = client(made(namespace, "lessens"), 1)

    assert difference(after, namespace.get("Service", "lessens")) is not None
    apply(namespace, after)
    live = namespace.get("Service", "lessens")
    assert difference(after, live) is None
    assert "example.com/a" not in live["metadata"]["annotations"]


def test_removed_spec_fields_leave_no_trace(namespace: Namespace) -> None:
    """After a change no earlier field remains: objects equal newly created ones."""
    full = {name: value for name, value in FULL.items() if name not in ("storage", "deletionPolicy")}

    def specs() -> list[Any]:
        live = [namespace.get("StatefulSet", "shrinks-r1"), namespace.get("Service", "shrinks")]
        for given in ("clusterIP", "clusterIPs"):
            live[1]["spec"].pop(given)
        return [{**o["spec"], "annotations": o["metadata"]["annotations"].keys()} for o in live]

    for spec in (full, {}):
        children = objects(made(namespace, "shrinks", **spec), pods=0)
        for child in children:
            apply(namespace, child)
    changed = specs()
    namespace.kubectl("delete", "statefulset/shrinks-r1", "service/shrinks")
    for child in children:
        apply(namespace, child)

    assert changed == specs()


def assert_reverted(namespace: Namespace, wanted: Manifest, edit: dict[str, Any], named: str) -> None:
    """Apply the object, edit its spec as a user does, and check that the difference is named and the next apply ends it."""
    kind, name = wanted["kind"], wanted["metadata"]["name"]
    apply(namespace, wanted)
    namespace.kubectl("patch", kind, name, "--type=merge", "--patch", json.dumps({"spec": edit}))
    assert difference(wanted, namespace.get(kind, name)) == named
    apply(namespace, wanted)
    assert difference(wanted, namespace.get(kind, name)) is None


def test_users_edit_is_reverted(namespace: Namespace) -> None:
    """The difference names a user's edit, and an apply reverts it."""
    view = made(namespace, "edited")
    [wanted] = [child for child in objects(view, pods=0) if child["kind"] == "NetworkPolicy"]
    assert_reverted(namespace, wanted, {"ingress": [{}]}, "spec.ingress[0].ports is missing")


def test_added_selector_label_is_removed(namespace: Namespace) -> None:
    """An apply removes a label that a user added to a selector, which would leave the Service without pods."""
    wanted = client(made(namespace, "selects"), 1)
    assert_reverted(namespace, wanted, {"selector": {"of": "mine"}}, "spec.selector.of is not allowed")


def test_stateful_set_is_applied_after_its_volumes_have_grown(namespace: Namespace) -> None:
    """A larger volume size does not change the StatefulSet, since the API server would refuse it."""

    def wanted(view: View, live: Manifest | None) -> Manifest:
        template = pod_template(view, 1, "shop.users.r1", "example.com/node:1", "0123456789abcdef", SETTINGS)
        return stateful_set(view, 1, template, 0, live)

    apply(namespace, wanted(made(namespace, "grows", storage={"size": "1Gi"}), None))
    live = namespace.get("StatefulSet", "grows-r1")
    larger = made(namespace, "grows", storage={"size": "2Gi"})

    with pytest.raises(Refused, match="updates to statefulset spec"):
        apply(namespace, wanted(larger, None), "--dry-run=server")
    assert difference(wanted(larger, live), live) is None
    apply(namespace, wanted(larger, live))


def _account(view: View) -> Manifest:
    [account] = [child for child in objects(view) if child["kind"] == "ServiceAccount"]
    return account
