"""Resources as the API server would give them, for tests of what thinks about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from queryable_operator.resource import View, view_of


def resource(name: str = "users", namespace: str = "shop", **spec: Any) -> dict[str, Any]:
    """A small resource; keywords are fields of its spec."""
    return {
        "apiVersion": "queryabletopics.io/v1alpha1",
        "kind": "QueryableTopic",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": "0b8a3f3e-6a7e-4a43-8f0a-6f1d9a6f3c51",
            "generation": 1,
        },
        "spec": {"kafka": {"bootstrapServers": "kafka:9092"}, "topic": "users", **spec},
    }


def view(name: str = "users", namespace: str = "shop", **spec: Any) -> View:
    return view_of(resource(name, namespace, **spec))


# Everything that pods and Services can be told.
FULL: Mapping[str, Any] = {
    "kafka": {
        "bootstrapServers": "kafka-0:9092,kafka-1:9092",
        "secretRef": {"name": "kafka-client"},
        "config": {"isolation.level": "read_committed"},
    },
    "topic": "page-views",
    "transform": {"sql": "SELECT key, value.page AS page FROM records WHERE value.bot = false"},
    "value": {"format": "json", "schema": "page STRING, bot BOOLEAN"},
    "replicas": 3,
    "standbyReplicas": 1,
    "storage": {"size": "1024Gi", "storageClassName": "fast", "highWaterPercent": 80},
    "ingest": {"driverMemory": "2g"},
    "service": {"port": 80, "annotations": {"example.com/owner": "shop"}},
    "deletionPolicy": "Retain",
    "podTemplate": {
        "labels": {"app.kubernetes.io/component": "page-views", "team": "shop"},
        "annotations": {"example.com/scrape": "true"},
        "resources": {
            "serve": {"requests": {"cpu": "500m", "memory": "2048Mi"}, "limits": {"memory": "4Gi"}},
            "ingest": {
                "requests": {"cpu": "1500m", "memory": "3Gi"},
                "limits": {"cpu": "2", "memory": "3Gi"},
            },
        },
        "nodeSelector": {"disk": "ssd"},
        "affinity": {
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "weight": 50,
                        "podAffinityTerm": {
                            "topologyKey": "kubernetes.io/hostname",
                            "labelSelector": {"matchLabels": {"team": "shop"}},
                        },
                    }
                ]
            }
        },
        "tolerations": [
            {"key": "dedicated", "operator": "Equal", "value": "queries", "effect": "NoSchedule"}
        ],
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}
        ],
        "priorityClassName": "system-cluster-critical",
        "imagePullSecrets": [{"name": "registry"}],
        "env": [
            {"name": "TZ", "value": "Europe/Vienna"},
            {"name": "HOST", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ],
    },
}
