"""Build what every child has: name, labels, owner reference, and a digest of its desired fields."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from queryable_operator.spec import names
from queryable_operator.spec.observed import Manifest
from queryable_operator.spec.resource import Identity

API_VERSIONS: Final[Mapping[str, str]] = {
    "ConfigMap": "v1",
    "NetworkPolicy": "networking.k8s.io/v1",
    "PodDisruptionBudget": "policy/v1",
    "Secret": "v1",
    "Service": "v1",
    "ServiceAccount": "v1",
    "StatefulSet": "apps/v1",
}

WANTED_ANNOTATION: Final = f"{names.GROUP}/wanted"
"""A digest of the desired object. A field that is no longer desired leaves no difference in the live object, but the digest
changes, and the next apply removes the field there."""


def child(
    identity: Identity,
    revision: int | None,
    kind: str,
    body: Mapping[str, Any],
    annotations: Mapping[str, str] | None = None,
    name: str | None = None,
) -> Manifest:
    """Build a child. Without a revision it belongs to the whole view and has the view's name. `name` is another name."""
    view = identity.name
    usual = view if revision is None else names.child(view, revision)
    metadata: dict[str, Any] = {
        "name": name or usual,
        "namespace": identity.namespace,
        "labels": dict(names.labels(view) if revision is None else names.revision_labels(view, revision)),
        "annotations": dict(annotations or {}),
        "ownerReferences": [identity.owner],
    }
    manifest = {"apiVersion": API_VERSIONS[kind], "kind": kind, "metadata": metadata, **body}
    wanted = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    metadata["annotations"][WANTED_ANNOTATION] = hashlib.sha256(wanted.encode()).hexdigest()[:16]
    return manifest
