"""Test how a node divides its descriptors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryable_app.policy.descriptor_plan import (
    CONNECTIONS_RESERVE,
    STORE_FILES_MIN,
    descriptor_shortage,
    plan_descriptors,
)


def test_usual_limit_of_a_container_is_enough() -> None:
    """With the usual limit of container runtimes, clients get the connections of the setting."""
    plan = plan_descriptors(1 << 20, partitions=64, stores=32, other_nodes=9, connections_max=1024)

    assert (plan.connections, plan.fits) == (1024, True)
    assert plan.store_files >= 8192


@pytest.mark.parametrize(("stores", "connections"), [(1, 644), (4, 188)])
def test_stores_come_before_clients(stores: int, connections: int) -> None:
    """With a limit of 1 024, clients get the descriptors that stores leave."""
    plan = plan_descriptors(1024, partitions=4, stores=stores, other_nodes=1, connections_max=1024)

    assert (plan.connections, plan.fits) == (connections, True)


@given(st.integers(64, 1 << 20), st.integers(1, 512), st.integers(0, 64), st.integers(1, 65_536), st.data())
def test_plan_that_fits_stays_below_the_limit(
    limit: int, partitions: int, others: int, connections_max: int, data: st.DataObject
) -> None:
    """A plan that fits does not exceed the limit, and no plan gives clients more than the setting."""
    stores = data.draw(st.integers(0, partitions))
    plan = plan_descriptors(
        limit, partitions=partitions, stores=stores, other_nodes=others, connections_max=connections_max
    )

    assert 1 <= plan.connections <= connections_max
    assert plan.store_files >= STORE_FILES_MIN
    assert plan.fits == (plan.reserved + plan.connections <= limit)
    assert plan.reserved > stores * plan.store_files + others * plan.node_connections + CONNECTIONS_RESERVE
    if plan.connections < connections_max:
        assert plan.connections == max(16, limit - plan.reserved)


def test_tiny_limit_leaves_a_few_connections() -> None:
    """A node with a limit of 64 is reachable, and its plan does not fit."""
    plan = plan_descriptors(64, partitions=4, stores=4, other_nodes=2, connections_max=1024)

    assert (plan.connections, plan.fits) == (16, False)


@pytest.mark.parametrize(
    ("limit", "partitions", "fits"), [(1024, 50, True), (256, 1, False), (380, 4, False), (600, 50, False)]
)
def test_limit_too_low_for_the_jvm_is_refused(limit: int, partitions: int, fits: bool) -> None:
    """A limit at which the JVM did not start, or did not read, is refused, with the needed limit."""
    shortage = descriptor_shortage(limit, partitions)

    assert (shortage is None) == fits
    if shortage is not None:
        assert f"is {limit}, and Spark needs " in shortage
