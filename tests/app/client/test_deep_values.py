"""Test values that an older version stored deeper than the limit: they come as bytes, and every other row decodes."""

from __future__ import annotations

from typing import Any

import pytest

from queryable_app.client.exceptions import InvalidRequest, Unreachable
from queryable_app.client.operations import Operations
from tests.app.client.fake_view import PLAIN, FakeView, client, read

DEEP = b"[" * 50_000 + b'"]}"' + b"]" * 50_000


@pytest.fixture
def view() -> FakeView:
    """Return a view with values nested deeper than Python's parser allows."""
    made = FakeView(1, 1, partitions=1)
    made.rows = {b"a": {"n": [1]}, b"b": "deep", b"c": "deep\n[", b"d": None}
    made.texts = {b'"deep"': DEEP}
    return made


@pytest.fixture
def operations(view: FakeView) -> Operations:
    return client(view)


EXPECTED: list[Any] = [{"n": [1]}, DEEP, "deep\n[", None]


def test_scan_returns_a_deep_value_as_bytes(view: FakeView, operations: Operations) -> None:
    """A scan returns the deep value as the bytes of its text, and all other rows decoded."""
    scan = operations.scan(PLAIN, "asc", None, 1000)
    view.run_operation(operations.next_page(scan, None))
    assert [row.value for row in scan.ready] == EXPECTED
    assert [row.key for row in scan.ready] == ["a", "b", "c", "d"]
    assert scan.ended


def test_multi_get_returns_a_deep_value_as_bytes(view: FakeView, operations: Operations) -> None:
    """A multi-get returns a deep value as bytes, and a missing key as None."""
    rows = view.run_operation(operations.multi_get(["a", "b", "c", "d", "e"], PLAIN, None))
    assert [getattr(row, "value", "no row") for row in rows] == [*EXPECTED, "no row"]


def test_get_returns_a_deep_value_as_bytes(view: FakeView, operations: Operations) -> None:
    """A point read returns a deep value as bytes."""
    row = read(view, operations, "b")
    assert row is not None
    assert row.value == DEEP


def test_deep_body_that_is_no_json_is_unreachable(view: FakeView, operations: Operations) -> None:
    """A body that is deep and no JSON is not taken for rows."""
    view.texts = {b'"deep"': DEEP + b"]"}
    scan = operations.scan(PLAIN, "asc", None, 1000)
    with pytest.raises(Unreachable, match="no node of a view"):
        view.run_operation(operations.next_page(scan, None))


@pytest.mark.parametrize(
    ("levels", "digits", "message"), [(101, 1, "nested deeper than 100"), (1, 1001, "1000 characters")]
)
def test_value_beyond_a_limit_is_not_sent(
    view: FakeView, operations: Operations, levels: int, digits: int, message: str
) -> None:
    """The client refuses what a node would refuse, before it sends anything."""
    value: Any = 10 ** (digits - 1)
    for _ in range(levels):
        value = [value]
    with pytest.raises(InvalidRequest, match=message):
        view.run_operation(operations.put("a", value, PLAIN, None))
    assert view.attempted_addresses("/v1/records") == []
