"""Test the pod of a rekey job: it is like a node's, and no node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from queryable_app.contract import NodeSettings
from queryable_operator.build.policies import disruption_budget, network_policy
from queryable_operator.build.rekey_job import rekey_stateful_set, rekey_template
from queryable_operator.build.services import client, headless
from queryable_operator.build.workload import pod_template, stateful_set
from queryable_operator.spec import names
from queryable_operator.spec.observed import Manifest
from queryable_operator.spec.pods import PodLayout
from queryable_operator.spec.requirements import requirements
from queryable_operator.spec.resource import View
from tests.support.rekeyed import WORDS
from tests.support.view import FULL, SETTINGS, view


def word_count(**spec: Any) -> View:
    return view(**{**spec, "view": WORDS})


def node_and_job(of: View) -> tuple[Any, Any]:
    """Return both pod templates of a revision."""
    inputs = (of, 1, "shop.users.r1-0b8a3f3e6a7e", "example.com/node:1", "hash", SETTINGS)
    return pod_template(*inputs), rekey_template(*inputs)


def selects(selector: Mapping[str, str], template: Any) -> bool:
    return all(template["metadata"]["labels"].get(label) == value for label, value in selector.items())


def selectors_of_nodes(of: View, node: Manifest) -> list[Mapping[str, str]]:
    constraints = node["spec"]["topologySpreadConstraints"]
    return [
        client(of, 1)["spec"]["selector"],
        headless(of, 1, PodLayout(1))["spec"]["selector"],
        disruption_budget(of, 1)["spec"]["selector"]["matchLabels"],
        stateful_set(of, 1, node, 1)["spec"]["selector"]["matchLabels"],
        *(constraint["labelSelector"]["matchLabels"] for constraint in constraints),
    ]


def test_nothing_that_selects_nodes_selects_the_job() -> None:
    """No Service, disruption budget, StatefulSet or spread constraint of nodes selects the job's pod, whatever labels the
    resource gives to its pods."""
    labels = {"team": "a", **names.revision_labels("users", 1)}
    of = word_count(podTemplate={"labels": labels})
    node, job = node_and_job(of)

    for selector in selectors_of_nodes(of, node):
        assert selects(selector, node)
        assert not selects(selector, job)
    own = rekey_stateful_set(of, 1, job, 1)["spec"]["selector"]["matchLabels"]
    assert selects(own, job)
    assert not selects(own, node)
    assert job["metadata"]["labels"]["team"] == "a"


def test_network_policy_lets_the_job_reach_the_nodes() -> None:
    """With named peers, the job's pod is still a peer of the nodes, and its own connections are not restricted."""
    of = word_count(networkPolicy={"from": [{"podSelector": {"matchLabels": {"app": "shop"}}}]})
    _, job = node_and_job(of)
    spec = network_policy(of, SETTINGS)["spec"]

    assert spec["policyTypes"] == ["Ingress"]
    peers = [peer["podSelector"]["matchLabels"] for peer in spec["ingress"][0]["from"]]
    assert any(selects(peer, job) for peer in peers)


def test_job_finds_the_settings_of_the_nodes() -> None:
    """The job's process finds the revision's identity, spec, placement, token and Kafka settings where the nodes find them."""
    _, job = node_and_job(word_count(**FULL, serve={"workers": 2}))
    (container,) = job["spec"]["containers"]
    assert container["command"] == ["python", "-m", "queryable_app.ingest.rekey"]
    from_pod = {"QT_NAME": "users-r1-rekey-0", "QT_ORDINAL": "0"}
    settings = NodeSettings.from_env(
        {v["name"]: str(v.get("value", from_pod.get(v["name"]))) for v in container["env"]}
    )

    assert settings.application_id == "shop.users.r1-0b8a3f3e6a7e"
    assert (settings.worker_ports, settings.drain_seconds) == ("", 0)
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    paths = (settings.spec_path, settings.placement_path, settings.internal_token_path)
    assert all(any(path.startswith(mount) for mount in mounts) for path in (*paths, settings.run_dir))
    assert settings.kafka_secret_dir in mounts


def test_only_the_job_starts_without_the_format_of_group_keys() -> None:
    """The job's check finds the format of group keys out, and reports it in the pod's status. Nodes wait for it."""
    node, job = node_and_job(word_count())
    key = {"name": "users-r1", "key": "group-key-format"}
    (check,) = job["spec"]["initContainers"]

    assert check["command"][2:] == ["queryable_app.ingest.check", "--report", "/dev/termination-log"]
    for container in node["spec"]["containers"]:
        assert {"name": "QT_GROUP_KEY_FORMAT", "valueFrom": {"configMapKeyRef": key}} in container["env"]
    for container in (check, *job["spec"]["containers"]):
        optional = {"configMapKeyRef": {**key, "optional": True}}
        assert {"name": "QT_GROUP_KEY_FORMAT", "valueFrom": optional} in container["env"]
    assert "GROUP_KEY_FORMAT" not in str(pod_template(view(), 1, "a.v.r1", "node:1", "hash", SETTINGS))


def test_job_has_no_volume_of_its_own() -> None:
    """The job keeps no state: neither a claim nor a directory for data."""
    of = word_count(storage={"ephemeral": True})
    _, job = node_and_job(of)

    assert "volumeClaimTemplates" not in rekey_stateful_set(of, 1, job, 1)["spec"]
    assert {volume["name"] for volume in job["spec"]["volumes"]} == {"view", "token", "run", "tmp"}
    assert {mount["name"] for mount in job["spec"]["containers"][0]["volumeMounts"]} == {
        "view",
        "token",
        "run",
        "tmp",
    }


def test_job_runs_as_the_nodes_do() -> None:
    """The job has the nodes' user, image, account and restrictions, and no port."""
    node, job = node_and_job(word_count(**FULL))
    (container,) = job["spec"]["containers"]
    ingest = node["spec"]["containers"][1]

    for field in ("securityContext", "serviceAccountName", "automountServiceAccountToken", "nodeSelector"):
        assert job["spec"][field] == node["spec"][field]
    assert (container["image"], container["securityContext"]) == (ingest["image"], ingest["securityContext"])
    assert "ports" not in container


def test_rules_that_spread_nodes_do_not_apply_to_the_job() -> None:
    """The job may run beside a node, but only on the hosts that the resource allows."""
    hosts: dict[str, Any] = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}
    apart: dict[str, Any] = {"requiredDuringSchedulingIgnoredDuringExecution": []}
    of = word_count(podTemplate={"affinity": {"nodeAffinity": hosts, "podAntiAffinity": apart}})
    _, job = node_and_job(of)

    assert job["spec"]["affinity"] == {"nodeAffinity": hosts}
    assert "topologySpreadConstraints" not in job["spec"]


def test_job_has_requirements_of_its_own() -> None:
    """The job's memory follows from the JVM's heap, unless the resource states its requirements."""
    given = {"requests": {"cpu": "2"}}
    stated = word_count(podTemplate={"resources": {"rekey": given}})

    assert requirements(stated.raw, "rekey") == given
    assert requirements(word_count().raw, "rekey") == requirements(view().raw, "ingest")


def test_kubernetes_replaces_the_pod_after_a_change() -> None:
    """Also a pod that never becomes ready is replaced after the next change of the template."""
    of = word_count()
    spec = rekey_stateful_set(of, 1, node_and_job(of)[1], 1)["spec"]

    assert (spec["updateStrategy"], spec["podManagementPolicy"]) == ({"type": "RollingUpdate"}, "Parallel")
