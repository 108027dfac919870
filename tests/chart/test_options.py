"""Test that the chart starts the operator with valid options."""

from __future__ import annotations

from typing import Any

import pytest

from queryable_operator.__main__ import main
from tests.support.helm import render

MORE = {
    "watchNamespaces": ["a", "b"],
    "leaderElection": {"enabled": False},
    "logging": {"verbose": True},
    "reconcileSeconds": 2.5,
}


@pytest.mark.parametrize("values", [{}, MORE], ids=["without values", "with values"])
def test_operator_accepts_the_charts_options(values: dict[str, Any]) -> None:
    """Every argument is an option of the operator, with a valid value."""
    (container,) = render(values).one("Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["python", "-m", "queryable_operator"]
    given = main.make_context("queryable_operator", list(container["args"])).params
    assert given["namespaces"] == tuple(values.get("watchNamespaces", ()))
    assert given["leader_election"] is ("leaderElection" not in values)
    assert given["metrics_port"] == container["ports"][0]["containerPort"]
