"""What one installation of the operator is told, for all resources alike."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    node_image: str
    """The image of nodes whose resource names none."""

    cluster_domain: str = "cluster.local"
    """What the cluster's own names end in."""

    namespace: str = ""
    """The operator's own. Empty: it does not run in a pod."""
