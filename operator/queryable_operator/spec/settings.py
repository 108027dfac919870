"""Hold the settings of one operator installation, which apply to all resources."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    node_image: str
    """The node image for resources that name none."""

    cluster_domain: str = "cluster.local"
    """The domain of the cluster's own DNS names."""

    namespace: str = ""
    """The operator's own namespace. Empty: it does not run in a pod."""
