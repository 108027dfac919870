"""Build resources as the API server returns them, for tests of pure files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from queryable_app.placement.assignment import initial_placement
from queryable_operator.build.executors import driver_template, executor_stateful_set
from queryable_operator.build.policies import disruption_budget, network_policy, service_account
from queryable_operator.build.rekey_job import rekey_stateful_set, rekey_template
from queryable_operator.build.services import client, headless, rekey_driver
from queryable_operator.build.settings_map import RevisionRecord, config_map
from queryable_operator.build.workload import pod_template, stateful_set
from queryable_operator.spec import names
from queryable_operator.spec.changes import roll_hash, spec_hash
from queryable_operator.spec.observed import Manifest
from queryable_operator.spec.pods import PodIndex, PodLayout
from queryable_operator.spec.rekeying import executor_count, is_rekeyed
from queryable_operator.spec.resource import View, view_of
from queryable_operator.spec.settings import OperatorSettings

_DIGEST = "0123456789abcdef"  # of the Kafka Secret
SETTINGS = OperatorSettings(node_image="example.com/queryable-topics:0.1.0", namespace="queryable-topics")


def resource(name: str = "users", namespace: str = "shop", **spec: Any) -> dict[str, Any]:
    """Return a small resource; keywords are fields of its spec."""
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


# Every field of pods and Services.
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
    "tls": {"secretRef": {"name": "page-views-tls"}, "clientAuth": "request"},
    "networkPolicy": {
        "from": [
            {"podSelector": {"matchLabels": {"app": "shop"}}},
            {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}},
        ]
    },
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


def objects(of: View, pods: int | None = None) -> list[Manifest]:
    """Return all objects of revision 1 of a view except its token."""
    image = of.image or SETTINGS.node_image
    roll = roll_hash(of.raw, image, _DIGEST)
    application_id = names.application_id(of.namespace, of.name, 1, of.uid)
    inputs = (of, 1, application_id, image, roll, SETTINGS)
    template = pod_template(*inputs)
    of_job = rekey_template(*inputs) if is_rekeyed(of.raw) else None
    nodes = range(of.spec.replicas)
    scheme = PodLayout.of(of.raw).scheme
    urls = [
        names.advertised_url(of.namespace, of.name, 1, o, SETTINGS.cluster_domain, scheme=scheme)
        for o in nodes
    ]
    record = RevisionRecord(
        spec=of.raw,
        placement=initial_placement(application_id, 4, urls, of.spec.replication_factor),
        template=template,
        domains={PodIndex(0): "zone-a"},
        spec_hash=spec_hash(of.raw, 4, disk_format=1),
        roll_hash=roll,
        partitions=4,
        image=image,
        disk_format=1,
        rekey_template=of_job,
    )
    return [
        config_map(of, 1, record),
        headless(of, 1, record.layout),
        service_account(of),
        disruption_budget(of, 1),
        network_policy(of, SETTINGS),
        stateful_set(of, 1, template, of.spec.replicas if pods is None else pods),
        client(of, 1),
        *(() if of_job is None else _of_job(of, of_job)),
    ]


def _of_job(of: View, template: Manifest) -> list[Manifest]:
    count = executor_count(of.raw, 4)
    job = rekey_stateful_set(of, 1, driver_template(template) if count else template, 1)
    if not count:
        return [job]
    return [job, rekey_driver(of, 1), executor_stateful_set(of, 1, template, count, SETTINGS)]
