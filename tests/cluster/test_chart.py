"""Test the chart in a real cluster: install, `helm test`, upgrade, uninstall, and every right that it does not grant."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from queryable_operator.act.preflight import permissions
from tests.support.cluster import Namespace, Refused, kubectl
from tests.support.helm import CHART, helm
from tests.support.helm import Refused as HelmRefused
from tests.support.kafka import KafkaForTests
from tests.support.operator_process import operator_process
from tests.support.rights import words
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(900)

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "kubernetes").glob("*.yaml"))
RELEASE = "qt"
NAME = "qt-queryable-topics"
CRD = "crd/queryabletopics.queryabletopics.io"
FOREIGN = ("PodMonitor", "ServiceMonitor", "PrometheusRule")  # kinds that the Prometheus Operator brings
LEASES = "leases.coordination.k8s.io"
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")


def install(namespace: Namespace, values: Mapping[str, Any], *options: str, verb: str = "install") -> str:
    """Install a release that leaves the cluster's other namespaces alone, unless `values` say otherwise."""
    own = {"watchNamespaces": [namespace.name], "rbac": {"aggregateRoles": False}}
    return helm(
        verb, RELEASE, str(CHART), "--namespace", namespace.name, "--values", "-", *options,
        stdin=json.dumps({**own, **values}), timeout=240,
    )  # fmt: skip


@pytest.fixture
def release(namespace: Namespace) -> Iterator[Callable[..., str]]:
    """Call `install`, and uninstall the release after the test."""
    try:
        yield lambda values, *options, **more: install(namespace, values, *options, **more)
    finally:
        helm("uninstall", RELEASE, "--namespace", namespace.name, "--ignore-not-found", "--wait")


@pytest.fixture
def image(node_image: str) -> Mapping[str, str]:
    """Return the product's image as values of the chart."""
    repository, _, tag = node_image.rpartition(":")
    return {"repository": repository, "tag": tag}


@pytest.mark.parametrize(
    "values",
    [
        {},
        {
            "replicas": 2,
            "networkPolicy": {"enabled": True, "from": [{"podSelector": {}}]},
            "podMonitor": {"enabled": True},
            "prometheusRule": {"enabled": True},
            "grafanaDashboard": {"enabled": True},
        },
    ],
    ids=["without values", "with everything"],
)
def test_api_server_accepts_every_object(namespace: Namespace, values: dict[str, Any]) -> None:
    """The API server accepts every object without a warning, and the pods pass the restricted Pod Security Standard."""
    text = helm(
        "template", RELEASE, str(CHART), "--namespace", namespace.name, "--values", "-",
        stdin=json.dumps({"watchNamespaces": [namespace.name], **values}),
    )  # fmt: skip
    objects = [o for o in yaml.safe_load_all(text) if o and o["kind"] not in FOREIGN]
    assert len(objects) >= 15
    for pod in (o for o in objects if o["kind"] == "Pod"):
        pod["spec"]["serviceAccountName"] = "default"  # its own does not exist, since nothing is created
    output = namespace.kubectl(
        "apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "--filename", "-",
        stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}),
    )  # fmt: skip
    assert "warning" not in output.lower()


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_api_server_accepts_every_example(namespace: Namespace, file: Path) -> None:
    """The API server accepts every example unchanged."""
    options = ("--server-side", "--dry-run=server", "--validate=strict")
    assert "serverside-applied" in namespace.kubectl("apply", *options, "--filename", str(file))


def access_of(cluster: httpx.Client, user: str, groups: list[str], namespace: str) -> Callable[..., bool]:
    """Return a check of an account's rights by the API server: `may("list", "secrets")`, `may("create", "pods/eviction")`."""

    def may(verb: str, resource: str, name: str = "") -> bool:
        full, _, group = resource.partition(".")
        plural, _, subresource = full.partition("/")
        attributes = {
            "verb": verb,
            "group": group,
            "resource": plural,
            "subresource": subresource,
            "name": name,
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": user,
                "groups": groups,
                "resourceAttributes": {**attributes, "namespace": namespace},
            },
        }
        answer = cluster.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", json=review)
        return bool(answer.raise_for_status().json()["status"]["allowed"])

    return may


def all_resources(cluster: httpx.Client) -> Iterator[str]:
    """Return every resource and subresource of the API server, as `plural/sub.group`."""
    for group in cluster.get("/apis").raise_for_status().json()["groups"]:
        version = group["preferredVersion"]["groupVersion"]
        for resource in cluster.get(f"/apis/{version}").raise_for_status().json()["resources"]:
            yield f"{resource['name']}.{group['name']}"
    for resource in cluster.get("/api/v1").raise_for_status().json()["resources"]:
        yield resource["name"]


@pytest.mark.parametrize("narrow", [True, False], ids=["namespace", "cluster"])
def test_unused_permissions_are_denied(
    cluster: httpx.Client, namespace: Namespace, release: Callable[..., str], narrow: bool
) -> None:
    """Of all verbs on all resources the operator has those that it uses, and those that every account has."""
    release(
        {"replicas": 0, "crds": {"install": False}, "watchNamespaces": [namespace.name] if narrow else []}
    )
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace.name}", "system:authenticated"]
    operator = f"system:serviceaccount:{namespace.name}:{NAME}"
    used = {
        words(p)
        for p in permissions([namespace.name] if narrow else [], (namespace.name, NAME))
        if not p.name
    }

    may = access_of(cluster, operator, groups, namespace.name)
    default_account = access_of(
        cluster, f"system:serviceaccount:{namespace.name}:default", groups, namespace.name
    )
    elsewhere = access_of(cluster, operator, groups, "kube-system")
    wrong = []
    for resource in all_resources(cluster):
        for verb in VERBS:
            if default_account(verb, resource):
                continue
            needed = f"{verb} {resource}" in used
            if may(verb, resource) != needed:
                wrong.append(f"{verb} {resource}: {'denied' if needed else 'allowed'}")
            if elsewhere(verb, resource) != (needed and not narrow and "leases" not in resource):
                wrong.append(f"{verb} {resource} in another namespace")
    assert wrong == []
    for name in (NAME, "another"):
        assert [may(verb, LEASES, name) for verb in ("get", "update", "delete")] == [
            name == NAME,
            name == NAME,
            False,
        ]
    for verb in ("impersonate", "escalate", "bind", "*"):
        assert not may(verb, "users")
        assert not may(verb, "clusterroles.rbac.authorization.k8s.io")


def test_aggregated_roles_grant_their_verbs(
    cluster: httpx.Client, namespace: Namespace, release: Callable[..., str]
) -> None:
    """The cluster's role view grants reading QueryableTopics, and edit grants writing and scaling them."""
    release({"replicas": 0, "crds": {"install": False}, "rbac": {"aggregateRoles": True}})
    may = {}
    for role in ("view", "edit", "admin"):
        namespace.kubectl(
            "create", "rolebinding", f"test-{role}", f"--clusterrole={role}", f"--user={role}er"
        )
        may[role] = access_of(cluster, f"{role}er", [], namespace.name)
    topics = "queryabletopics.queryabletopics.io"
    eventually("view is aggregated", lambda: may["view"]("list", topics))
    eventually("edit is aggregated", lambda: may["edit"]("delete", topics))
    eventually("admin is aggregated", lambda: may["admin"]("delete", topics))
    assert not may["view"]("patch", topics)
    scale, status = ("queryabletopics/" + of + ".queryabletopics.io" for of in ("scale", "status"))
    assert [may[role]("patch", scale) for role in may] == [False, True, True]
    assert [may[role]("patch", status) for role in may] == [False, False, False]


def test_existing_crd_is_adopted_and_retained(namespace: Namespace, release: Callable[..., str]) -> None:
    """Helm adopts an existing CRD only with the option for it, gives the reason otherwise, and never uninstalls it."""
    kubectl("annotate", CRD, "meta.helm.sh/release-name-", "meta.helm.sh/release-namespace-")
    with pytest.raises(HelmRefused, match="cannot be imported into the current release"):
        release({"replicas": 0})
    before = json.loads(kubectl("get", CRD, "--output", "json"))["metadata"]["uid"]
    release({"replicas": 0}, "--take-ownership")
    release({"replicas": 0}, verb="upgrade")
    helm("uninstall", RELEASE, "--namespace", namespace.name, "--wait")
    assert json.loads(kubectl("get", CRD, "--output", "json"))["metadata"]["uid"] == before


@pytest.mark.parametrize("narrow", [True, False], ids=["namespace", "cluster"])
def test_operator_works_with_its_permissions(
    namespace: Namespace, release: Callable[..., str], kafka: KafkaForTests, tmp_path: Path, narrow: bool
) -> None:
    """The chart's account creates, repairs and deletes every child without a refusal, in one namespace and in all of the
    cluster.
    """
    watched = [namespace.name] if narrow else []
    name = "narrow" if narrow else "wide"
    kafka.create_topic(name, 2)
    release({"replicas": 0, "crds": {"install": False}, "watchNamespaces": watched})
    config = json.loads(kubectl("config", "view", "--raw", "--minify", "--output=json"))
    config["users"][0]["user"] = {"token": namespace.kubectl("create", "token", NAME).strip()}
    options = ("--leader-election", f"--lease-name={NAME}", f"--lease-namespace={namespace.name}")
    with operator_process(
        tmp_path / "operator.log", json.dumps(config), f"--namespaces={','.join(watched)}", *options
    ) as operator:
        operator.wait_for_log("This operator acts now")
        apply_topic(namespace, name, kafka.bootstrap)
        eventually("all children exist", lambda: kinds_left(namespace, name) >= CHILDREN)
        namespace.kubectl("patch", "pdb", f"{name}-r1", "--type=merge", "-p", '{"spec":{"maxUnavailable":2}}')
        eventually("the edit is reverted", lambda: "DriftCorrected" in namespace.kubectl("get", "events"))
        namespace.kubectl("delete", "qt", name, "--timeout=90s", timeout=100)
        eventually("no child remains", lambda: not kinds_left(namespace, name))
        assert operator.get("/healthz").text == "ok\n"
        assert "forbidden" not in operator.log


CHILDREN = {
    "configmap", "networkpolicy.networking.k8s.io", "persistentvolumeclaim", "pod", "poddisruptionbudget.policy", "secret",
    "service", "serviceaccount", "statefulset.apps",
}  # fmt: skip


def kinds_left(namespace: Namespace, view: str) -> set[str]:
    """Return the kinds of which the view has children."""
    label = f"--selector=queryabletopics.io/view={view}"
    output = namespace.kubectl(
        "get", ",".join(sorted(CHILDREN)), label, "--output=name", "--ignore-not-found"
    )
    return {line.partition("/")[0] for line in output.splitlines() if "/" in line}


def apply_topic(namespace: Namespace, name: str, bootstrap: str) -> None:
    topic = {
        "apiVersion": "queryabletopics.io/v1alpha1",
        "kind": "QueryableTopic",
        "metadata": {"name": name},
        "spec": {"kafka": {"bootstrapServers": bootstrap}, "topic": name},
    }
    namespace.kubectl("apply", "--filename", "-", stdin=json.dumps(topic))


def test_release_is_installed_upgraded_and_uninstalled(
    namespace: Namespace, image: Mapping[str, str], release: Callable[..., str]
) -> None:
    """The operator works with its rights, `helm test` passes, an upgrade replaces it, and after its removal a user can release
    a resource by hand.
    """
    without_crd = {"image": image, "crds": {"install": False}}
    release(without_crd, "--wait")
    assert "Phase:          Succeeded" in helm("test", RELEASE, "--namespace", namespace.name, timeout=120)
    apply_topic(namespace, "users", "nowhere:9092")
    eventually(
        "the condition Progressing is False", lambda: conditions(namespace).get("Progressing") == "False"
    )

    release(
        {**without_crd, "replicas": 2},
        "--wait",
        verb="upgrade",
    )
    helm("test", RELEASE, "--namespace", namespace.name, timeout=120)
    lease = eventually("an operator of the upgraded release acts", lambda: holder(namespace))
    namespace.kubectl("delete", "pod", lease.rpartition("_")[0])
    eventually(
        "the standby operator takes over",
        lambda: namespace.get("lease", NAME)["spec"]["holderIdentity"] not in ("", lease),
    )

    helm("uninstall", RELEASE, "--namespace", namespace.name, "--wait")
    assert namespace.kubectl("get", "deploy,svc,role,rolebinding,pdb", "--selector=app.kubernetes.io/instance=qt") in (
        "", f"No resources found in {namespace.name} namespace.\n",
    )  # fmt: skip
    namespace.kubectl("delete", "qt", "users", "--wait=false")
    assert namespace.get("qt", "users")["metadata"]["finalizers"] == ["queryabletopics.io/cleanup"]
    namespace.kubectl("patch", "qt", "users", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    with pytest.raises(Refused, match="NotFound"):
        namespace.get("qt", "users")


def holder(namespace: Namespace) -> str:
    """Return the holder of the Lease, or nothing if its pod is gone or ending."""
    identity: str = namespace.get("lease", NAME)["spec"]["holderIdentity"]
    pods = namespace.listed("pod")["items"]
    staying = {pod["metadata"]["name"] for pod in pods if "deletionTimestamp" not in pod["metadata"]}
    return identity if identity.rpartition("_")[0] in staying else ""


def conditions(namespace: Namespace) -> dict[str, str]:
    status = namespace.get("qt", "users").get("status", {})
    return {condition["type"]: condition["status"] for condition in status.get("conditions", ())}
