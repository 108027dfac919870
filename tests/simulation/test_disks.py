"""Test that the simulated store can stand in for the product's."""

from __future__ import annotations

from inspect import Parameter, isfunction, signature

import pytest

from queryable_app.serve.store.store import Store
from tests.simulation.disks import SimulatedStore

METHODS = [
    name
    for name, member in vars(SimulatedStore).items()
    if not name.startswith("_") and isfunction(member) and callable(getattr(Store, name, None))
]


@pytest.mark.parametrize("name", METHODS)
def test_simulated_store_takes_the_parameters_of_the_real_one(name: str) -> None:
    """A method of the simulated store takes the same parameters, with the same defaults, as the store's."""
    assert _parameters(SimulatedStore, name) == _parameters(Store, name)


def _parameters(store: type, name: str) -> list[Parameter]:
    return list(signature(getattr(store, name)).parameters.values())
