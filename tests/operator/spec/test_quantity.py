"""Test Kubernetes quantities as numbers."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryable_operator.spec.quantity import quantity


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1024Mi", "1Gi"), ("0.5", "500m"), (2, "2"), ("1.5Gi", "1536Mi"), ("1e3", "1k"), ("1E", "1000P"),
        ("5.", "5"), (".5", "0.5"), ("100n", "0.1u"), ("12E2", "1200"), ("1e-3", "1m"), ("+3", "3"), ("1Ei", "1024Pi"),
    ],
)  # fmt: skip
def test_equal_amounts_are_equal(one: str | int, other: str) -> None:
    """Two notations of an amount are one number."""
    assert quantity(one) == quantity(other)


@pytest.mark.parametrize(
    "text", ["", ".", "Gi", "1 Gi", "1gi", "1Gb", "1e", "--1", "1e400", "٣", "9" * 50, "1_0"]
)
def test_invalid_quantity_is_refused(text: str) -> None:
    """The error has an example, and parsing takes bounded time."""
    with pytest.raises(ValueError, match="is not a quantity"):
        quantity(text)


@given(st.integers(0, 10**15), st.sampled_from(["", "m", "k", "Mi", "Gi", "E"]))
def test_unit_is_a_factor(number: int, unit: str) -> None:
    """An amount is its number times its unit."""
    assert quantity(f"{number}{unit}") == number * quantity(f"1{unit}")
    assert isinstance(quantity(f"{number}{unit}"), Fraction)
