"""Test a view with rules on a cluster: pods read with the tokens of their ServiceAccounts, as the example has it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.cluster import Namespace, Refused, kubectl
from tests.support.view_on_cluster import SMALL, Platform, ViewOnCluster, available_view

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "security.md"
EXAMPLE = ROOT / "examples" / "kubernetes" / "service-account.yaml"
VIEW, ACCOUNT, JOB = yaml.safe_load_all(EXAMPLE.read_text())
AUDIENCE = "users-view"
TOKEN = "/var/run/view/token"
KEYS = tuple(f"key-{number}" for number in range(8))  # on both nodes, so that reads are forwarded


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
    """Yield a view of two nodes, each with half of the partitions, with the rules of the example."""
    auth = deepcopy(VIEW["spec"]["auth"])
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
    """Run a pod as the Job of the example, which waits for commands."""
    namespace = platform.namespace
    namespace.kubectl("apply", "--filename", "-", stdin=json.dumps(ACCOUNT))
    wait = ["python", "-c", "import signal; signal.sigwait({signal.SIGTERM})"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "checkout"},
        "spec": job_of(platform, wait)["spec"]["template"]["spec"],
    }
    namespace.kubectl("apply", "--filename", "-", stdin=json.dumps(pod))
    namespace.kubectl("wait", "--for=condition=Ready", "pod/checkout", "--timeout=120s", timeout=130)
    yield namespace
    namespace.kubectl("delete", "pod/checkout", "serviceaccount/checkout", "--wait=false")


def job_of(platform: Platform, command: list[str]) -> Any:
    """Return the Job of the example with the image of this test, and a command."""
    job = deepcopy(JOB)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    container |= {"image": platform.image, "command": command}
    return job


def ask(checkout: Namespace, *words: str, token: str = "") -> str:
    """Run `qtopic` in the caller's pod, with its own token or another one."""
    given = f"QTOPIC_TOKEN={token}" if token else f"QTOPIC_TOKEN_FILE={TOKEN}"
    return checkout.kubectl("exec", "checkout", "--", "env", given, "qtopic", *words)


def read(checkout: Namespace, view: ViewOnCluster, key: str, token: str = "") -> str:
    newest = ("--consistency", "strong", "--deadline-ms", "20000")
    return ask(checkout, "get", key, "--url", view.url, *newest, token=token)


def refusal(checkout: Namespace, view: ViewOnCluster, token: str) -> str:
    with pytest.raises(Refused) as refused:
        read(checkout, view, KEYS[0], token)
    return str(refused.value)


def token_of(platform: Platform, account: str, audience: str) -> str:
    return platform.namespace.kubectl("create", "token", account, f"--audience={audience}").strip()


def test_a_pod_reads_with_the_token_of_its_service_account(checkout: Namespace, view: ViewOnCluster) -> None:
    """Each key is read with the projected token, from the node that has it and through the other one."""
    for key in KEYS:
        assert json.loads(read(checkout, view, key)) == {"of": key}


def test_the_job_of_the_example_reads_a_key(checkout: Namespace, view: ViewOnCluster) -> None:
    """The Job runs the command of the example once, with the address and the key of this view, and prints the value."""
    (container,) = JOB["spec"]["template"]["spec"]["containers"]
    replaced = {"alice": KEYS[0], f"http://{VIEW['metadata']['name']}:8080": view.url}
    command = [replaced.get(word, word) for word in container["command"]]
    checkout.kubectl("apply", "--filename", "-", stdin=json.dumps(job_of(view.platform, command)))
    checkout.kubectl("wait", "--for=condition=Complete", "job/checkout", "--timeout=120s", timeout=130)
    assert json.loads(checkout.kubectl("logs", "job/checkout")) == {"of": KEYS[0]}
    checkout.kubectl("delete", "job/checkout")


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
        assert json.loads(read(checkout, view, key, token)) == {"of": key}
    assert "does not allow read of this key" in refusal(checkout, view, token)
    rows = ask(checkout, "scan", "--json", "--url", view.url, token=token).splitlines()
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
