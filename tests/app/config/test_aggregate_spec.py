"""Test the description of aggregates."""

from __future__ import annotations

from queryable_app.config.aggregate_spec import AggregateColumn, AggregateInput, AggregateSpec


def test_columns_with_equal_inputs_share_one() -> None:
    """Inputs are distinct by expression and filter, in the order in which columns first name them."""
    spec = AggregateSpec(
        (
            AggregateColumn("total", "sum", of="amount"),
            AggregateColumn("orders", "count"),
            AggregateColumn("mean", "avg", of="amount"),
            AggregateColumn("large", "sum", of="amount", filter="amount > 100"),
        )
    )

    assert spec.inputs == (
        AggregateInput("amount", None),
        AggregateInput(None, None),
        AggregateInput("amount", "amount > 100"),
    )
