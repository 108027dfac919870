"""Test the pod of a rekey job: it is like a node's, and no node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from queryable_app.contract import REKEY_BLOCKS_PORT, REKEY_PORT, NodeSettings
from queryable_operator.build.executors import driver_template, executor_stateful_set
from queryable_operator.build.policies import disruption_budget, network_policy
from queryable_operator.build.rekey_job import rekey_stateful_set, rekey_template
from queryable_operator.build.services import client, headless, rekey_driver
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


def test_executors_are_selected_by_nothing_else() -> None:
    """No selector of nodes or of the job selects an executor's pod, and that of executors selects no other pod."""
    of = word_count(ingest={"executors": 2}, podTemplate={"labels": {"team": "a"}})
    node, job = node_and_job(of)
    stateful_set = executor_stateful_set(of, 1, job, 2, SETTINGS)["spec"]
    executor, own = stateful_set["template"], stateful_set["selector"]["matchLabels"]

    of_job = rekey_stateful_set(of, 1, job, 1)["spec"]["selector"]["matchLabels"]
    for selector in (*selectors_of_nodes(of, node), of_job, rekey_driver(of, 1)["spec"]["selector"]):
        assert not selects(selector, executor)
    assert selects(rekey_driver(of, 1)["spec"]["selector"], driver_template(job))
    assert selects(own, executor)
    assert not selects(own, node)
    assert not selects(own, job)
    assert executor["metadata"]["labels"]["team"] == "a"


def test_executors_and_their_driver_call_no_api_server() -> None:
    """The pods of a job and of its executors have no token of a service account, and run as restricted as nodes."""
    of = word_count(ingest={"executors": 2})
    node, job = node_and_job(of)
    executor = executor_stateful_set(of, 1, job, 2, SETTINGS)["spec"]["template"]

    for template in (driver_template(job), executor):
        assert template["spec"]["automountServiceAccountToken"] is False
        assert template["spec"]["securityContext"] == node["spec"]["securityContext"]
        (container,) = template["spec"]["containers"]
        assert container["securityContext"] == node["spec"]["containers"][0]["securityContext"]
        assert container["resources"] == job["spec"]["containers"][0]["resources"]
    assert "initContainers" not in executor["spec"]


def test_no_argument_or_variable_of_an_executor_has_a_secret() -> None:
    """An executor finds the token and the settings of Kafka in files."""
    executor = executor_stateful_set(word_count(**FULL), 1, node_and_job(word_count(**FULL))[1], 2, SETTINGS)[
        "spec"
    ]["template"]
    (container,) = executor["spec"]["containers"]

    given = {variable["name"]: variable for variable in container["env"]}
    assert "secretKeyRef" not in str(container)
    assert given["QT_REKEY_HOST"]["value"] == "users-r1-rekey.shop.svc.cluster.local"
    assert given["QT_POD_ADDRESS"]["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
    assert container["command"] == ["python", "-m", "queryable_app.ingest.rekey_executor"]


def test_job_without_executors_has_no_address() -> None:
    """Executors change nothing of the recorded template: an upgrade of the operator restarts no job."""
    without, with_ = word_count(), word_count(ingest={"executors": 2})

    assert node_and_job(without) == node_and_job(with_)


def test_network_policy_opens_the_ports_of_spark_to_the_view_alone() -> None:
    """Only pods of the view reach the ports of a driver and its executors, whichever peers the resource names. Without executors
    no such port is open."""
    ports = [{"protocol": "TCP", "port": port} for port in (REKEY_PORT, REKEY_BLOCKS_PORT)]
    for peers in ({}, {"from": [{"podSelector": {"matchLabels": {"app": "shop"}}}]}):
        of = word_count(ingest={"executors": 2}, networkPolicy=peers)
        _, rule = network_policy(of, SETTINGS)["spec"]["ingress"]
        assert rule == {
            "ports": ports,
            "from": [{"podSelector": {"matchLabels": {names.VIEW_LABEL: of.name}}}],
        }
    assert len(network_policy(word_count(), SETTINGS)["spec"]["ingress"]) == 1


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


def test_keys_of_certificates_are_in_serve_alone() -> None:
    """Serve alone has the keys in the Secrets of TLS and of tokens. The rekey job has the CA of the nodes, which it calls, and
    ingest has nothing."""
    jwt = {"jwt": {"secretRef": {"name": "jwt", "key": "hmac"}}, "rules": [{"allow": ["read"]}]}
    of = word_count(tls={"secretRef": {"name": "users-tls"}}, auth=jwt)
    node, job = (template["spec"] for template in node_and_job(of))

    serve, ingest = ({mount["name"] for mount in each["volumeMounts"]} for each in node["containers"])
    assert serve - ingest == {"auth", "tls", "node-tls"}
    secrets = {volume["name"]: volume["secret"] for volume in job["volumes"] if "secret" in volume}
    assert secrets.keys() == {"token", "node-tls"}
    assert secrets["node-tls"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}]
    for container in (*job["containers"], *job["initContainers"]):
        assert {mount["name"] for mount in container["volumeMounts"]} >= {"token", "node-tls"}
