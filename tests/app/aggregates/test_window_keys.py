"""Test that keys of windows sort by group and start, and can be taken apart."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from queryable_app.aggregates.window_keys import (
    START_MAX_MS,
    START_MIN_MS,
    first_key,
    key_after,
    split_window_key,
    window_key,
)

GROUPS = st.binary(max_size=12) | st.lists(st.sampled_from((0, 1, 0xFF)), max_size=6).map(bytes)
STARTS = st.integers(START_MIN_MS, START_MAX_MS) | st.integers(-2, 2)
WINDOWS = st.tuples(GROUPS, STARTS)


@given(WINDOWS, WINDOWS)
@example((b"", 0), (b"\0", -1))
@example((b"a", START_MAX_MS), (b"a\0", START_MIN_MS))
@example((b"a\0", START_MAX_MS), (b"a\0\0", START_MIN_MS))
@example((b"a\0\xff", 0), (b"a\0\0", 0))
def test_keys_sort_by_group_and_start(one: tuple[bytes, int], other: tuple[bytes, int]) -> None:
    """Keys compare as their groups and starts do."""
    assert (window_key(*one) < window_key(*other)) == (one < other)
    assert (window_key(*one) == window_key(*other)) == (one == other)


@given(WINDOWS)
@example((b"\0\xff\0\0", START_MIN_MS))
def test_key_gives_group_and_start(window: tuple[bytes, int]) -> None:
    """A key gives back the group and the start that it was made of."""
    assert split_window_key(window_key(*window)) == window


@given(GROUPS, WINDOWS)
def test_bounds_of_a_group_contain_its_windows_only(group: bytes, window: tuple[bytes, int]) -> None:
    """The windows of a group, and no others, are between its first key and the key after it."""
    assert (first_key(group) <= window_key(*window) < key_after(group)) == (window[0] == group)
