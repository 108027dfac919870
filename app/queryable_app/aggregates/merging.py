"""Merge the states of one group that mixed producers spread over several partitions."""

from __future__ import annotations

from collections.abc import Callable

from queryable_app.aggregates.states import Group, StateError, codes_of, state_codec
from queryable_app.config.aggregate_spec import AggregateSpec


def state_merger(spec: AggregateSpec) -> Callable[[bytes, bytes], bytes]:
    """Return the function from two rows to the row of the records of both.

    There is no order between records of two partitions, so the row with the newer last record counts as the later one.
    """

    def merge(earlier: bytes, later: bytes) -> bytes:
        codec = state_codec(spec.columns, codes_of(later))
        if codes_of(earlier) != codec.codes:
            raise StateError("states with different functions")
        one, other = codec.decode(earlier), codec.decode(later)
        states = codec.merge(one.states, other.states)
        return codec.encode(
            Group(states, other.offset, other.timestamp_ms, max(one.expiry_ms, other.expiry_ms))
        )

    return merge
