"""Build the two Services: one names the pods of a revision, the other receives client requests."""

from __future__ import annotations

from queryable_app.contract import DEFAULT_PORT, REKEY_BLOCKS_PORT, REKEY_PORT
from queryable_operator.build.children import child
from queryable_operator.spec import names
from queryable_operator.spec.observed import Manifest
from queryable_operator.spec.pods import PodLayout
from queryable_operator.spec.resource import View

_HTTP = "http"


def headless(view: View, revision: int, layout: PodLayout) -> Manifest:
    """Build the Service that names the pods of a revision, also before they are ready."""
    spec = {
        "type": "ClusterIP",
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": dict(names.selector(view.name, revision)),
        "ports": [
            {"name": name, "protocol": "TCP", "port": port, "targetPort": name}
            for name, port in {_HTTP: DEFAULT_PORT, **layout.worker_ports}.items()
        ],
    }
    return child(view, revision, "Service", {"spec": spec})


def rekey_driver(view: View, revision: int) -> Manifest:
    """Build the Service at which executors find the pod of the rekey job, also before it is ready."""
    spec = {
        "type": "ClusterIP",
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": dict(names.rekey_selector(view.name, revision)),
        "ports": [
            {"name": name, "protocol": "TCP", "port": port, "targetPort": port}
            for name, port in (("driver", REKEY_PORT), ("blocks", REKEY_BLOCKS_PORT))
        ],
    }
    return child(view, revision, "Service", {"spec": spec}, name=names.rekey_job(view.name, revision))


def client(view: View, active: int) -> Manifest:
    """Build the client Service. It selects the active revision's ready pods.

    It has an address of each family that the cluster has. The headless Service has one family, the cluster's first, so that the
    nodes call each other over one network.
    """
    service = view.raw["service"]
    spec = {
        "type": "ClusterIP",
        "ipFamilyPolicy": "PreferDualStack",
        "selector": dict(names.selector(view.name, active)),
        "ports": [{"name": _HTTP, "protocol": "TCP", "port": service["port"], "targetPort": _HTTP}],
    }
    return child(view, None, "Service", {"spec": spec}, service.get("annotations"))
