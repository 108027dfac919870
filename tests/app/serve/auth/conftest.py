"""Two nodes of a view with authentication, each with one of two partitions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from queryable_app.placement.assignment import Placement
from queryable_app.wire.partitioners import partition_for
from tests.support.node import put
from tests.support.node_cluster import APPLICATION_ID, NodeCluster
from tests.support.served import Served, now_ms
from tests.support.tokens import SECRET_REF, secret_directory

RULES: Final[list[Mapping[str, Any]]] = [
    *(
        {"claim": "scope", "contains": operation, "allow": [operation]}
        for operation in ("read", "scan", "write", "changes", "admin")
    ),
    {
        "claim": "role",
        "equals": "user",
        "allow": ["read", "scan", "write", "changes"],
        "keyPrefix": "user/{sub}/",
    },
    {"claim": "team", "glob": "blue-*", "allow": ["read", "scan"], "keyPrefix": "blue/"},
]
AUTH: Final = {"jwt": SECRET_REF, "rules": RULES}


def key_of(prefix: str, partition: int) -> str:
    """Return a key with the prefix in the partition."""
    keys = (f"{prefix}{number}" for number in itertools.count())
    return next(key for key in keys if partition_for(key.encode(), "murmur2", 2) == partition)


HERE: Final = {prefix: key_of(prefix, 0) for prefix in ("user/alice/", "user/bob/", "blue/", "plain")}
"""A key for each prefix on the first node."""
THERE: Final = {prefix: key_of(prefix, 1) for prefix in HERE}
"""One on the second node."""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Served]]:
    directory = tmp_path_factory.mktemp("callers")
    placement = Placement(1, APPLICATION_ID, (), ((0,), (1,)), ((), ()))
    with NodeCluster(
        directory,
        [placement] * 2,
        settings={"auth_secret_dir": secret_directory(directory / "jwt")},
        auth=AUTH,
        read={"ingest": True},
        view={"changes": True, "indexes": [{"name": "by-n", "field": "n", "type": "long"}]},
    ) as cluster:
        first, second = cluster.nodes
        for partition, (node, keys) in enumerate(((first, HERE), (second, THERE))):
            rows = [
                put(offset, key.encode(), b'{"n":%d}' % (10 * partition + offset), now_ms())
                for offset, key in enumerate(keys.values())
            ]
            node.put_slice(*rows, partition=partition)
        yield list(cluster.nodes)
