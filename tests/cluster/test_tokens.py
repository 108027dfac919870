"""Test a view with rules on a cluster: pods read with the tokens of their ServiceAccounts, as docs/security.md says."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.cluster import Namespace, Refused, kubectl
from tests.support.pages import blocks
from tests.support.view_on_cluster import SMALL, Platform, ViewOnCluster, available_view

pytestmark = pytest.mark.timeout(900)

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
AUDIENCE = "users-view"
TOKEN = "/var/run/view/token"
KEYS = tuple(f"key-{number}" for number in range(8))  # on both nodes, so that reads are forwarded


def yaml_of_the_page(comment: str) -> Any:
    """Return the block of the page that begins with this comment."""
    (found,) = (text for text in blocks(PAGE, "yaml") if text.startswith(f"# {comment}\n"))
    return yaml.safe_load(found)


@pytest.fixture(scope="module")
def discovery(cluster: object) -> Iterator[None]:
    """Let nodes fetch the cluster's keys, by the command of the page."""
    (command,) = (
        line
        for line in PAGE.read_text().splitlines()
        if line.startswith("`kubectl create clusterrolebinding")
    )
    _, *arguments = command.strip("`.").split()
    kubectl(*arguments)
    yield
    kubectl("delete", *arguments[1:3])


@pytest.fixture(scope="module")
def view(platform: Platform, discovery: None) -> Iterator[ViewOnCluster]:
    """Yield a view of two nodes, each with half of the partitions, with the spec of the page."""
    auth = yaml_of_the_page("the view")["spec"]["auth"]
    root = platform.namespace.kubectl(
        "get", "configmap", "kube-root-ca.crt", "--output=jsonpath={.data.ca\\.crt}"
    )
    issuer = json.loads(kubectl("get", "--raw", "/.well-known/openid-configuration"))["issuer"]
    caller = f"system:serviceaccount:{platform.namespace.name}:checkout"
    auth["jwt"] |= {"jwksCa": root, "issuer": issuer}
    auth["rules"] = [{**rule, "equals": caller} for rule in auth["rules"]]
    auth["rules"].append(
        {"claim": "sub", "glob": "*:courier", "allow": ["read", "scan"], "keyPrefix": "{sub}/"}
    )
    with available_view(platform, "shielded", {**SMALL, "replicas": 2, "auth": auth}) as made:
        made.wait_until_settled()
        platform.produce(made.topic, {key: json.dumps({"of": key}) for key in KEYS})
        yield made


@pytest.fixture(scope="module")
def checkout(platform: Platform) -> Iterator[Namespace]:
    """Run a pod with the ServiceAccount and the volume of the page."""
    namespace = platform.namespace
    namespace.kubectl("create", "serviceaccount", "checkout")
    volumes = yaml_of_the_page("the caller's pod")["volumes"]
    clients = platform.listed("pod", "/clients")["spec"]
    (container,) = clients["containers"]
    (volume,) = (each["name"] for each in volumes)
    mounts = [{"name": volume, "mountPath": str(Path(TOKEN).parent)}, {"name": "tmp", "mountPath": "/tmp"}]
    kept = ("image", "command", "securityContext")
    spec = {
        "serviceAccountName": "checkout",
        "securityContext": clients["securityContext"],
        "terminationGracePeriodSeconds": 1,
        "containers": [
            {"name": "checkout", "volumeMounts": mounts, **{name: container[name] for name in kept}}
        ],
        "volumes": [*volumes, {"name": "tmp", "emptyDir": {}}],
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "checkout"}, "spec": spec}
    namespace.kubectl("apply", "--filename", "-", stdin=json.dumps(pod))
    namespace.kubectl("wait", "--for=condition=Ready", "pod/checkout", "--timeout=120s", timeout=130)
    yield namespace
    namespace.kubectl("delete", "pod/checkout", "serviceaccount/checkout", "--wait=false")


def ask(checkout: Namespace, view: ViewOnCluster, command: str, *arguments: str, token: str = "") -> str:
    """Run `qtopic` in the caller's pod, with its own token or another one."""
    given = ["env", f"QTOPIC_TOKEN={token}"] if token else ["env", f"QTOPIC_TOKEN_FILE={TOKEN}"]
    return checkout.kubectl(
        "exec",
        "checkout",
        "--",
        *given,
        "qtopic",
        command,
        *arguments,
        "--url",
        view.url,
        "--consistency",
        "strong",
        "--deadline-ms",
        "20000",
    )


def refusal(checkout: Namespace, view: ViewOnCluster, token: str) -> str:
    with pytest.raises(Refused) as refused:
        ask(checkout, view, "get", KEYS[0], token=token)
    return str(refused.value)


def token_of(platform: Platform, account: str, audience: str) -> str:
    return platform.namespace.kubectl("create", "token", account, f"--audience={audience}").strip()


def test_a_pod_reads_with_the_token_of_its_service_account(checkout: Namespace, view: ViewOnCluster) -> None:
    """Each key is read with the projected token, from the node that has it and through the other one."""
    for key in KEYS:
        assert json.loads(ask(checkout, view, "get", key)) == {"of": key}


def test_other_tokens_are_refused(checkout: Namespace, view: ViewOnCluster) -> None:
    """A token for another audience, one of another ServiceAccount, and none are refused with a sentence."""
    platform = view.platform
    assert "audience" in refusal(checkout, view, token_of(platform, "checkout", "another"))
    assert "no rule allows anything" in refusal(checkout, view, token_of(platform, "default", AUDIENCE))
    (answer,) = platform.clients("ask", f"{view.url}/v1/keys/{KEYS[0]}")
    assert answer["status"] == 401


def test_a_token_opens_the_keys_with_its_subject_only(checkout: Namespace, view: ViewOnCluster) -> None:
    """By a rule with a key prefix, a ServiceAccount reads and scans its own keys on both nodes, and no other ones."""
    platform = view.platform
    platform.namespace.kubectl("create", "serviceaccount", "courier")
    token = token_of(platform, "courier", AUDIENCE)
    own = {f"system:serviceaccount:{platform.namespace.name}:courier/{number}" for number in range(8)}
    platform.produce(view.topic, {key: json.dumps({"of": key}) for key in own})
    for key in own:
        assert json.loads(ask(checkout, view, "get", key, token=token)) == {"of": key}
    assert "no rule allows" in refusal(checkout, view, token)
    rows = ask(checkout, view, "scan", "--json", token=token).splitlines()
    assert {json.loads(row)["key"] for row in rows} == own
    platform.namespace.kubectl("delete", "serviceaccount", "courier")


def test_pods_of_a_view_with_rules_have_no_rights_of_their_own(view: ViewOnCluster) -> None:
    """Nodes have no token of Kubernetes, a read-only root and no capability, with authentication too."""
    for pod in view.pods().values():
        spec: Mapping[str, Any] = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert not [volume for volume in spec["volumes"] if "projected" in volume]
        for container in spec["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_operator_works_while_callers_need_tokens(view: ViewOnCluster) -> None:
    """The operator sees the nodes' positions and scales the view, with the nodes' own token; reads of a pod go on."""
    view.scale(1)
    view.wait_until_settled()
    assert view.status["nodes"] == "1/1"
