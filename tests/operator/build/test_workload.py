"""The pods of a revision and the StatefulSet that makes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

import pytest

from queryable_app.contract import NodeSettings
from queryable_operator.build.workload import larger_claim, pod_template, stateful_set
from queryable_operator.spec import names
from queryable_operator.spec.resource import View
from queryable_operator.spec.settings import OperatorSettings
from tests.support.view import FULL, view

SETTINGS = OperatorSettings(node_image="example.com/node:1")
EPHEMERAL: dict[str, Any] = {"storage": {"ephemeral": True, "size": "2Gi"}}
VIEWS = [
    pytest.param(view(), id="small"),
    pytest.param(view(**FULL), id="full"),
    pytest.param(view(**EPHEMERAL), id="ephemeral"),
]


def template(of: View, revision: int = 1) -> dict[str, Any]:
    return dict(
        pod_template(of, revision, "shop.users.r1", "example.com/node:1", "0123456789abcdef", SETTINGS)
    )


def pod(of: View) -> dict[str, Any]:
    spec: dict[str, Any] = template(of)["spec"]
    return spec


def containers(of: View) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pod(of)["containers"]
    return found


def env(of: View, container: int = 0) -> dict[str, Any]:
    return {v["name"]: v.get("value", v.get("valueFrom")) for v in containers(of)[container]["env"]}


def volumes(of: View) -> dict[str, Any]:
    return {v["name"]: v for v in pod(of)["volumes"]}


# The restricted Pod Security Standard, rule by rule. A namespace that enforces it would refuse the pod for any of them.


@pytest.mark.parametrize("of", VIEWS)
def test_nothing_of_the_host_is_shared(of: View) -> None:
    """No namespace, port or path of the host, no privileges, and no settings of its kernel."""
    spec = pod(of)

    assert not {"hostNetwork", "hostPID", "hostIPC", "hostUsers"} & spec.keys()
    assert "sysctls" not in spec["securityContext"]
    for container in containers(of):
        assert not {"privileged", "procMount", "seLinuxOptions"} & container["securityContext"].keys()
        assert all("hostPort" not in port for port in container.get("ports", []))


@pytest.mark.parametrize("of", VIEWS)
def test_probes_name_no_host(of: View) -> None:
    """A probe goes to the pod itself, nowhere else."""
    serve = containers(of)[0]

    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert "host" not in serve[probe]["httpGet"]


@pytest.mark.parametrize("of", VIEWS)
def test_volumes_are_of_harmless_kinds(of: View) -> None:
    """Settings, secrets, empty directories and claims; nothing else."""
    kinds = {kind for volume in pod(of)["volumes"] for kind in volume if kind != "name"}

    assert kinds <= {"configMap", "secret", "emptyDir", "persistentVolumeClaim"}


@pytest.mark.parametrize("of", VIEWS)
def test_privileges_are_not_escalated(of: View) -> None:
    """No program in a container gets more rights than the one that started it."""
    assert all(c["securityContext"]["allowPrivilegeEscalation"] is False for c in containers(of))


@pytest.mark.parametrize("of", VIEWS)
def test_pods_do_not_run_as_root(of: View) -> None:
    """The user is a number that is not 0, so that the kubelet can see it is not root."""
    context = pod(of)["securityContext"]

    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] == context["runAsGroup"] == context["fsGroup"] == 10001
    assert all("runAsUser" not in c["securityContext"] for c in containers(of))


@pytest.mark.parametrize("of", VIEWS)
def test_system_calls_are_filtered(of: View) -> None:
    """The runtime's own filter of system calls applies."""
    assert pod(of)["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


@pytest.mark.parametrize("of", VIEWS)
def test_every_capability_is_dropped(of: View) -> None:
    """No capability is left, and none is added."""
    assert all(c["securityContext"]["capabilities"] == {"drop": ["ALL"]} for c in containers(of))


@pytest.mark.parametrize("of", VIEWS)
def test_the_root_file_system_is_read_only(of: View) -> None:
    """Nodes write to their volumes and nowhere else."""
    assert all(c["securityContext"]["readOnlyRootFilesystem"] is True for c in containers(of))


@pytest.mark.parametrize("of", VIEWS)
def test_pods_have_no_token_of_the_cluster(of: View) -> None:
    """A node never asks the API server, and has nothing to ask it with."""
    assert pod(of)["automountServiceAccountToken"] is False
    assert pod(of)["serviceAccountName"] == "users"


# What the node is told.


@pytest.mark.parametrize("of", VIEWS)
@pytest.mark.parametrize("container", [0, 1], ids=["serve", "ingest"])
def test_a_node_is_told_all_that_it_must_know(of: View, container: int) -> None:
    """Both containers have every variable without a default, and none that a node does not know."""
    ours = {name for name in env(of, container) if name.startswith("QT_")}
    known = {f"QT_{f.name.upper()}": f.default is MISSING for f in fields(NodeSettings)}

    assert ours <= known.keys()
    assert {name for name, must in known.items() if must} <= ours


def test_pods_know_their_own_name_and_place() -> None:
    """Name and ordinal come from the pod, and the address is the one in the placement."""
    told = env(view(), 0)

    assert told["QT_NAME"]["fieldRef"]["fieldPath"] == "metadata.name"
    assert told["QT_ORDINAL"]["fieldRef"]["fieldPath"] == "metadata.labels['apps.kubernetes.io/pod-index']"
    address = told["QT_ADVERTISED_URL"].replace("$(QT_NAME)", names.pod("users", 1, 2))
    assert address == names.advertised_url("shop", "users", 1, 2, "cluster.local")


def test_names_that_stand_in_names_are_not_mistaken() -> None:
    """The pod's name is put in where the pod's name is, whatever the view is called."""
    url = env(view("a", "a-r1-0"))["QT_ADVERTISED_URL"]

    assert url == "http://$(QT_NAME).a-r1.a-r1-0.svc.cluster.local:8080"


def test_what_refers_to_the_name_stands_behind_it() -> None:
    """A variable is only put into those that come after it."""
    order = list(env(view()))

    assert order.index("QT_NAME") < order.index("QT_ADVERTISED_URL")


def test_paths_are_of_mounts() -> None:
    """Every path that a node is told is inside one of its mounts."""
    of = view(**FULL)
    mounts = [m["mountPath"] for m in containers(of)[0]["volumeMounts"]]

    for name, value in env(of).items():
        if name.startswith("QT_") and isinstance(value, str) and value.startswith("/"):
            assert any(value == mount or value.startswith(f"{mount}/") for mount in mounts), name


@pytest.mark.parametrize("of", VIEWS)
def test_every_mount_has_its_volume(of: View) -> None:
    """A mount is of a volume of the pod, or of the claim that the StatefulSet makes."""
    claims = stateful_set(of, 1, template(of), 1)["spec"].get("volumeClaimTemplates", [])
    there = {*volumes(of), *(claim["metadata"]["name"] for claim in claims)}

    assert all(m["name"] in there for c in containers(of) for m in c["volumeMounts"])
    assert len(there) == len(volumes(of)) + len(claims)


def test_the_kafka_secret_is_files() -> None:
    """A Secret with Kafka settings is mounted, and never becomes a variable."""
    of = view(**FULL)

    assert volumes(of)["kafka"]["secret"]["secretName"] == "kafka-client"
    assert env(of)["QT_KAFKA_SECRET_DIR"] == "/etc/qt/kafka"
    assert "kafka" not in volumes(view())
    assert "QT_KAFKA_SECRET_DIR" not in env(view())


def test_a_draining_node_has_time_for_its_requests() -> None:
    """When a node has been taken out of the Service, time is left to answer what it has."""
    assert int(env(view())["QT_DRAIN_SECONDS"]) + 30 <= pod(view())["terminationGracePeriodSeconds"]


# What the resource adds.


def test_what_the_resource_adds_is_there() -> None:
    """Each field of podTemplate reaches the pod."""
    of, asked = view(**FULL), FULL["podTemplate"]
    spec, metadata = pod(of), template(of)["metadata"]

    for field in ("nodeSelector", "affinity", "tolerations", "priorityClassName", "imagePullSecrets"):
        assert spec[field] == asked[field]
    assert asked["labels"].items() <= metadata["labels"].items()
    assert asked["annotations"].items() <= metadata["annotations"].items()
    assert {e["name"] for e in asked["env"]} <= env(of, 0).keys() & env(of, 1).keys()
    assert containers(of)[0]["resources"] == asked["resources"]["serve"]
    assert containers(of)[1]["resources"] == asked["resources"]["ingest"]


def test_labels_of_ours_are_never_replaced() -> None:
    """Whatever else a pod is labelled with, its revision's selector finds it."""
    of = view(
        podTemplate={
            "labels": {names.VIEW_LABEL: "other"},
            "annotations": {"queryabletopics.io/roll-hash": ""},
        }
    )
    metadata = template(of)["metadata"]

    assert names.selector("users", 1).items() <= metadata["labels"].items()
    assert metadata["annotations"]["queryabletopics.io/roll-hash"] == "0123456789abcdef"


def test_pods_are_spread_by_default() -> None:
    """Over zones and over hosts, as far as that goes."""
    assert [(c["topologyKey"], c["whenUnsatisfiable"]) for c in pod(view())["topologySpreadConstraints"]] == [
        ("topology.kubernetes.io/zone", "ScheduleAnyway"),
        ("kubernetes.io/hostname", "ScheduleAnyway"),
    ]


def test_a_constraint_is_of_the_revision_unless_it_says_otherwise() -> None:
    """Pods of another revision do not count when those of this one are spread."""
    constraint = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    own = {**constraint, "labelSelector": {"matchLabels": {"team": "shop"}}}

    def spread(given: Mapping[str, Any]) -> Any:
        return pod(view(podTemplate={"topologySpreadConstraints": [given]}))["topologySpreadConstraints"]

    assert spread(constraint) == [
        {**constraint, "labelSelector": {"matchLabels": names.selector("users", 1)}}
    ]
    assert spread(own) == [own]


def test_no_spread_can_be_asked_for() -> None:
    """An empty list means no constraint at all."""
    assert pod(view(podTemplate={"topologySpreadConstraints": []}))["topologySpreadConstraints"] == []


# The StatefulSet.


@pytest.mark.parametrize("policy", ["Delete", "Retain"])
def test_no_volume_goes_with_its_stateful_set(policy: str) -> None:
    """One that somebody deletes is made again, with the same volumes; the operator takes them away when their time has come."""
    of = view(deletionPolicy=policy)
    retention = stateful_set(of, 1, template(of), 1)["spec"]["persistentVolumeClaimRetentionPolicy"]
    assert retention == {"whenScaled": "Retain", "whenDeleted": "Retain"}


def test_a_volume_has_the_size_and_class_that_were_asked_for() -> None:
    """Without a class it is the cluster's default class."""
    of = view(storage={"size": "3Gi", "storageClassName": "fast"})
    [claim] = stateful_set(of, 1, template(of), 1)["spec"]["volumeClaimTemplates"]
    [default] = stateful_set(view(), 1, template(view()), 1)["spec"]["volumeClaimTemplates"]

    assert claim["spec"]["resources"]["requests"] == {"storage": "3Gi"}
    assert claim["spec"]["storageClassName"] == "fast"
    assert "storageClassName" not in default["spec"]


def test_the_claim_of_a_statefulset_never_changes() -> None:
    """A larger size is given to the volume claims, since a StatefulSet does not take another claim template."""
    small, large = view(storage={"size": "1Gi"}), view(storage={"size": "2Gi"})
    live = stateful_set(small, 1, template(small), 1)

    assert stateful_set(large, 1, template(large), 1, live) == live
    assert larger_claim(large, 1, 2) == {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data-users-r1-2", "namespace": "shop"},
        "spec": {"resources": {"requests": {"storage": "2Gi"}}},
    }


def test_a_size_in_other_words_is_the_same_size() -> None:
    """What the API server writes in its own way makes no other StatefulSet."""
    of = view(storage={"size": "1024Mi"})
    first = stateful_set(of, 1, template(of), 1)
    live = stateful_set(view(storage={"size": "1Gi"}), 1, template(of), 1)

    assert stateful_set(of, 1, template(of), 1, live) == first


def test_ephemeral_data_is_bounded() -> None:
    """Without a volume the data is in the pod, and no larger than was asked for."""
    of = view(**EPHEMERAL)

    assert "volumeClaimTemplates" not in stateful_set(of, 1, template(of), 1)["spec"]
    assert volumes(of)["data"]["emptyDir"] == {"sizeLimit": "2Gi"}


def test_the_template_is_taken_as_it_is() -> None:
    """The template of an unchanged revision is the one that was stored, to the letter."""
    stored = {"metadata": {"labels": {}}, "spec": {"containers": []}}

    assert stateful_set(view(), 1, stored, 5)["spec"]["template"] == stored
