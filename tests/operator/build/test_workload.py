"""Test the pod template of a revision and its StatefulSet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

import pytest

from queryable_app.contract import SERVE_ENV, NodeSettings
from queryable_operator.build.workload import larger_claim, pod_template, stateful_set
from queryable_operator.spec import names
from queryable_operator.spec.pods import PodIndex
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
    """Pods use no namespace, port, path or kernel setting of the host, and no privileges."""
    spec = pod(of)

    assert not {"hostNetwork", "hostPID", "hostIPC", "hostUsers"} & spec.keys()
    assert "sysctls" not in spec["securityContext"]
    for container in containers(of):
        assert not {"privileged", "procMount", "seLinuxOptions"} & container["securityContext"].keys()
        assert all("hostPort" not in port for port in container.get("ports", []))


@pytest.mark.parametrize("of", VIEWS)
def test_probes_name_no_host(of: View) -> None:
    """A probe goes to the pod itself."""
    serve = containers(of)[0]

    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert "host" not in serve[probe]["httpGet"]


@pytest.mark.parametrize("of", VIEWS)
def test_volumes_are_of_harmless_kinds(of: View) -> None:
    """Pods use ConfigMaps, Secrets, empty directories and claims only."""
    kinds = {kind for volume in pod(of)["volumes"] for kind in volume if kind != "name"}

    assert kinds <= {"configMap", "secret", "emptyDir", "persistentVolumeClaim"}


@pytest.mark.parametrize("of", VIEWS)
def test_privileges_are_not_escalated(of: View) -> None:
    """No process gets more privileges than its parent."""
    assert all(c["securityContext"]["allowPrivilegeEscalation"] is False for c in containers(of))


@pytest.mark.parametrize("of", VIEWS)
def test_pods_do_not_run_as_root(of: View) -> None:
    """The user is a number other than 0, so that the kubelet can check it."""
    context = pod(of)["securityContext"]

    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] == context["runAsGroup"] == context["fsGroup"] == 10001
    assert all("runAsUser" not in c["securityContext"] for c in containers(of))


@pytest.mark.parametrize("of", VIEWS)
def test_system_calls_are_filtered(of: View) -> None:
    """The runtime's default seccomp profile applies."""
    assert pod(of)["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


@pytest.mark.parametrize("of", VIEWS)
def test_every_capability_is_dropped(of: View) -> None:
    """No capability is added."""
    assert all(c["securityContext"]["capabilities"] == {"drop": ["ALL"]} for c in containers(of))


@pytest.mark.parametrize("of", VIEWS)
def test_root_file_system_is_read_only(of: View) -> None:
    """Nodes write to their volumes only."""
    assert all(c["securityContext"]["readOnlyRootFilesystem"] is True for c in containers(of))


@pytest.mark.parametrize("of", VIEWS)
def test_pods_have_no_service_account_token(of: View) -> None:
    """Nodes never call the API server."""
    assert pod(of)["automountServiceAccountToken"] is False
    assert pod(of)["serviceAccountName"] == "users"


# The environment of a node.


@pytest.mark.parametrize("of", VIEWS)
@pytest.mark.parametrize("container", [0, 1], ids=["serve", "ingest"])
def test_environment_has_every_required_variable(of: View, container: int) -> None:
    """Both containers have every variable without a default, and no unknown one."""
    ours = {name for name in env(of, container) if name.startswith("QT_")}
    known = {f"QT_{f.name.upper()}": f.default is MISSING for f in fields(NodeSettings)}

    assert ours <= known.keys()
    assert {name for name, must in known.items() if must} <= ours


def test_pods_know_their_name_and_ordinal() -> None:
    """Name and ordinal come from the pod, and the advertised address is the one in the placement."""
    variables = env(view(), 0)

    assert variables["QT_NAME"]["fieldRef"]["fieldPath"] == "metadata.name"
    assert (
        variables["QT_ORDINAL"]["fieldRef"]["fieldPath"] == "metadata.labels['apps.kubernetes.io/pod-index']"
    )
    address = variables["QT_ADVERTISED_URL"].replace("$(QT_NAME)", names.pod("users", 1, 2))
    assert address == names.advertised_url("shop", "users", 1, 2, "cluster.local")


def test_pod_name_is_substituted_once() -> None:
    """Kubernetes substitutes only the pod's name in the address, whatever the name of the view is."""
    url = env(view("a", "a-r1-0"))["QT_ADVERTISED_URL"]

    assert url == "http://$(QT_NAME).a-r1.a-r1-0.svc.cluster.local:8080"


def test_name_variable_comes_first() -> None:
    """Kubernetes substitutes a variable in later ones only."""
    order = list(env(view()))

    assert order.index("QT_NAME") < order.index("QT_ADVERTISED_URL")


def test_paths_are_inside_mounts() -> None:
    """Every path in the environment is inside a mount."""
    of = view(**FULL)
    mounts = [m["mountPath"] for m in containers(of)[0]["volumeMounts"]]

    for name, value in env(of).items():
        if name.startswith("QT_") and isinstance(value, str) and value.startswith("/"):
            assert any(value == mount or value.startswith(f"{mount}/") for mount in mounts), name


@pytest.mark.parametrize("of", VIEWS)
def test_every_mount_has_a_volume(of: View) -> None:
    """Every mount names a volume of the pod or the StatefulSet's claim."""
    claims = stateful_set(of, 1, template(of), 1)["spec"].get("volumeClaimTemplates", [])
    there = {*volumes(of), *(claim["metadata"]["name"] for claim in claims)}

    assert all(m["name"] in there for c in containers(of) for m in c["volumeMounts"])
    assert len(there) == len(volumes(of)) + len(claims)


def test_kafka_secret_is_mounted_as_files() -> None:
    """The Kafka Secret is mounted as files, and its settings are in no environment variable."""
    of = view(**FULL)

    assert volumes(of)["kafka"]["secret"]["secretName"] == "kafka-client"
    assert env(of)["QT_KAFKA_SECRET_DIR"] == "/etc/qt/kafka"
    assert "kafka" not in volumes(view())
    assert "QT_KAFKA_SECRET_DIR" not in env(view())


def test_draining_node_has_time_for_its_requests() -> None:
    """After the drain, time is left for requests in progress."""
    assert int(env(view())["QT_DRAIN_SECONDS"]) + 30 <= pod(view())["terminationGracePeriodSeconds"]


def test_serve_asks_for_large_pages() -> None:
    """serve has the variables that are for it alone, and ingest does not."""
    assert SERVE_ENV.items() <= env(view(), 0).items()
    assert not SERVE_ENV.keys() & env(view(), 1).keys()


def test_variable_of_the_pod_template_stays() -> None:
    """Settings of glibc in podTemplate reach both processes as they are, and the API server sees the name once."""
    given = {"name": "GLIBC_TUNABLES", "value": "glibc.malloc.arena_max=2"}
    for container in containers(view(podTemplate={"env": [given]})):
        assert [v for v in container["env"] if v["name"] == given["name"]] == [given]


# What the resource adds.


def test_pod_template_fields_reach_the_pod() -> None:
    """Each field of podTemplate is applied."""
    of, given = view(**FULL), FULL["podTemplate"]
    spec, metadata = pod(of), template(of)["metadata"]

    for field in ("nodeSelector", "affinity", "tolerations", "priorityClassName", "imagePullSecrets"):
        assert spec[field] == given[field]
    assert given["labels"].items() <= metadata["labels"].items()
    assert given["annotations"].items() <= metadata["annotations"].items()
    assert {e["name"] for e in given["env"]} <= env(of, 0).keys() & env(of, 1).keys()
    assert containers(of)[0]["resources"] == given["resources"]["serve"]
    assert containers(of)[1]["resources"] == given["resources"]["ingest"]


def test_operator_labels_take_precedence() -> None:
    """The revision's selector finds the pod whatever labels the resource adds."""
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
    """Pods spread over zones and hosts where possible, if the resource sets no constraint."""
    assert [(c["topologyKey"], c["whenUnsatisfiable"]) for c in pod(view())["topologySpreadConstraints"]] == [
        ("topology.kubernetes.io/zone", "ScheduleAnyway"),
        ("kubernetes.io/hostname", "ScheduleAnyway"),
    ]


def test_constraint_selects_the_revision_by_default() -> None:
    """Pods of other revisions do not count."""
    constraint = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    own = {**constraint, "labelSelector": {"matchLabels": {"team": "shop"}}}

    def spread(given: Mapping[str, Any]) -> Any:
        return pod(view(podTemplate={"topologySpreadConstraints": [given]}))["topologySpreadConstraints"]

    assert spread(constraint) == [
        {**constraint, "labelSelector": {"matchLabels": names.selector("users", 1)}}
    ]
    assert spread(own) == [own]


def test_spread_can_be_disabled() -> None:
    """An empty list means no constraint."""
    assert pod(view(podTemplate={"topologySpreadConstraints": []}))["topologySpreadConstraints"] == []


# The StatefulSet.


@pytest.mark.parametrize("policy", ["Delete", "Retain"])
def test_volumes_outlive_the_stateful_set(policy: str) -> None:
    """A deleted StatefulSet is recreated with its volumes; only the operator deletes them."""
    of = view(deletionPolicy=policy)
    retention = stateful_set(of, 1, template(of), 1)["spec"]["persistentVolumeClaimRetentionPolicy"]
    assert retention == {"whenScaled": "Retain", "whenDeleted": "Retain"}


def test_volume_has_the_stated_size_and_class() -> None:
    """Without a class the cluster's default applies."""
    of = view(storage={"size": "3Gi", "storageClassName": "fast"})
    [claim] = stateful_set(of, 1, template(of), 1)["spec"]["volumeClaimTemplates"]
    [default] = stateful_set(view(), 1, template(view()), 1)["spec"]["volumeClaimTemplates"]

    assert claim["spec"]["resources"]["requests"] == {"storage": "3Gi"}
    assert claim["spec"]["storageClassName"] == "fast"
    assert "storageClassName" not in default["spec"]


def test_claim_template_never_changes() -> None:
    """A larger size goes to the volume claims, since the StatefulSet's claim template is immutable."""
    small, large = view(storage={"size": "1Gi"}), view(storage={"size": "2Gi"})
    live = stateful_set(small, 1, template(small), 1)

    assert stateful_set(large, 1, template(large), 1, live) == live
    assert larger_claim(large, 1, PodIndex(2)) == {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data-users-r1-2", "namespace": "shop"},
        "spec": {"resources": {"requests": {"storage": "2Gi"}}},
    }


def test_normalized_size_is_no_change() -> None:
    """The API server's notation of a size changes no StatefulSet."""
    of = view(storage={"size": "1024Mi"})
    first = stateful_set(of, 1, template(of), 1)
    live = stateful_set(view(storage={"size": "1Gi"}), 1, template(of), 1)

    assert stateful_set(of, 1, template(of), 1, live) == first


def test_ephemeral_data_is_bounded() -> None:
    """Without a volume the data is in the pod, and the stated size is its limit."""
    of = view(**EPHEMERAL)

    assert "volumeClaimTemplates" not in stateful_set(of, 1, template(of), 1)["spec"]
    assert volumes(of)["data"]["emptyDir"] == {"sizeLimit": "2Gi"}


def test_stored_template_is_used_unchanged() -> None:
    """An unchanged revision keeps its stored template literally."""
    stored = {"metadata": {"labels": {}}, "spec": {"containers": []}}

    assert stateful_set(view(), 1, stored, 5)["spec"]["template"] == stored


def test_secret_of_tokens_is_mounted_into_serve() -> None:
    """The Secret that tokens are signed with is files of serve, and no file of ingest; its name is no variable's value."""
    auth = {"jwt": {"secretRef": {"name": "users-jwt", "key": "hmac"}}, "rules": [{"allow": ["read"]}]}
    of = view(auth=auth)
    assert volumes(of)["auth"]["secret"]["secretName"] == "users-jwt"
    serve, ingest = (
        {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        for container in containers(of)
    )
    assert serve["auth"] == env(of)["QT_AUTH_SECRET_DIR"]
    assert "auth" not in ingest
    assert "auth" not in volumes(view())
