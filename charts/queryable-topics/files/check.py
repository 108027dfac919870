"""What `helm test` runs inside the cluster: `operator` as the operator's own account, `resource` as one that may create a
QueryableTopic. Needs nothing but Python; what to ask for comes from the chart, in CHECKS.
"""

from __future__ import annotations

import json
import os
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def main() -> None:
    checks = json.loads(os.environ["CHECKS"])
    wrong = list({"operator": operator, "resource": resource}[sys.argv[1]](checks))
    for sentence in wrong:
        print("WRONG:", sentence)
    sys.exit(bool(wrong))


def operator(checks: dict[str, Any]) -> Iterator[str]:
    with urllib.request.urlopen(checks["health"], timeout=10) as answer:
        print("The operator is well:", answer.status)
    for namespace in checks["namespaces"]:
        for asked in needed(checks["rules"]):
            if not may(asked, namespace):
                yield f"in {namespace} it needs to {asked}, and may not"
    for namespace, denied in ((checks["namespace"], checks["denied"]), ("", checks["deniedEverywhere"])):
        for asked in denied:
            if may(asked, namespace):
                yield f"in {namespace or 'all namespaces'} it may {asked}, and should not"


def needed(rules: list[dict[str, list[str]]]) -> Iterator[str]:
    for rule in rules:
        (group,) = rule["apiGroups"]
        for resource in rule["resources"]:
            for verb in rule["verbs"]:
                yield f"{verb} {resource}.{group}"


def may(asked: str, namespace: str) -> bool:
    """`asked` as for kubectl: `create pods/eviction`, `list statefulsets.apps`."""
    verb, what = asked.split(" ")
    full, _, group = what.partition(".")
    resource, _, subresource = full.partition("/")
    attributes = {
        "verb": verb,
        "namespace": namespace,
        "group": group,
        "resource": resource,
        "subresource": subresource,
    }
    review = {"spec": {"resourceAttributes": attributes}}
    _, response = call("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
    return bool(response["status"]["allowed"])


def resource(checks: dict[str, Any]) -> Iterator[str]:
    status, response = try_out(checks["namespace"], {})
    if status != 201 or response["spec"].get("replicas") != 1:
        yield f"a small resource: {status} {response.get('message', 'without its defaults')}"
    status, response = try_out(checks["namespace"], {"replicas": 1, "standbyReplicas": 1})
    if status != 422:
        yield f"a resource with more replicas than nodes: {status}"
    print("A small resource is taken. A wrong one is not:", response.get("message"))


def try_out(namespace: str, fields: dict[str, Any]) -> tuple[int, Any]:
    path = f"/apis/queryabletopics.io/v1alpha1/namespaces/{namespace}/queryabletopics?dryRun=All"
    topic = {
        "apiVersion": "queryabletopics.io/v1alpha1",
        "kind": "QueryableTopic",
        "metadata": {"name": "helm-test"},
        "spec": {"kafka": {"bootstrapServers": "kafka:9092"}, "topic": "users", **fields},
    }
    return call(path, topic)


def call(path: str, body: object) -> tuple[int, Any]:
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    token = (ACCOUNT / "token").read_text()
    request = urllib.request.Request(
        f"https://{f'[{host}]' if ':' in host else host}:{port}{path}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {token}"},
    )
    context = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    try:
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as e:
        return e.code, json.load(e)


main()
