"""Fold contributions into the states of their groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from queryable_app.aggregates.catalog import UnknownFunction, code_of
from queryable_app.aggregates.states import Group, StateCodec, state_codec
from queryable_app.config.aggregate_spec import AggregateSpec
from queryable_app.wire.contributions import ABSENT, Layout, layout_of
from queryable_app.wire.row_frames import FrameError


class Folding:
    """Fold contributions whose inputs have one string of types."""

    def __init__(self, spec: AggregateSpec, types: bytes) -> None:
        self.layout: Layout = layout_of(types)
        inputs = spec.inputs
        if len(types) != len(inputs):
            raise FrameError(f"a contribution of {len(types)} inputs to a view with {len(inputs)}")
        places = [inputs.index(column.input) for column in spec.columns]
        shown = types.decode()
        try:
            codes = bytes(
                code_of(column.op, shown[place]) for column, place in zip(spec.columns, places, strict=True)
            )
        except UnknownFunction as error:
            raise FrameError(str(error)) from None
        self.codec: StateCodec = state_codec(spec.columns, codes)
        self._steps = [
            (column, place, function.fold)
            for column, (place, function) in enumerate(zip(places, self.codec.functions, strict=True))
        ]

    def fold(self, group: Group, offset: int, timestamp_ms: int, inputs: Sequence[Any]) -> None:
        """Fold one record into a group. Call it in offset order."""
        group.offset = offset
        group.timestamp_ms = timestamp_ms
        states = group.states
        for column, place, fold in self._steps:
            value = inputs[place]
            if value is not ABSENT:
                states[column] = fold(states[column], value)

    def fold_all(
        self, states: Sequence[list[Any]], slots: Sequence[int], inputs: Sequence[Sequence[Any]]
    ) -> None:
        """Fold records in offset order into states by column. Each record has the slot of its group in the columns."""
        for column, place, fold in self._steps:
            of_column = states[column]
            for slot, value in zip(slots, inputs[place], strict=True):
                if value is not ABSENT:
                    of_column[slot] = fold(of_column[slot], value)
