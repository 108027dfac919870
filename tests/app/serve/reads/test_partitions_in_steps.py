"""Test the hashing of long keys in steps."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryable_app.serve.base.step_budget import StepBudget
from queryable_app.serve.reads.partitions_in_steps import partitions_in_steps
from queryable_app.wire.partitioners import ALGORITHMS, SCATTER, Partitioning


def hashed(keys: list[bytes], partitioning: Partitioning) -> list[int | None]:
    return asyncio.run(partitions_in_steps(keys, partitioning, StepBudget()))


@given(
    keys=st.lists(st.binary(max_size=64) | st.binary(min_size=16_000, max_size=17_000), max_size=4),
    algorithm=st.sampled_from([*ALGORITHMS, SCATTER]),
)
def test_partitions_are_those_of_each_key(keys: list[bytes], algorithm: str) -> None:
    """Hashing in steps finds the same partitions as hashing each key at once."""
    partitioning = Partitioning(algorithm, 7)

    assert hashed(keys, partitioning) == [partitioning.partition_of(key) for key in keys]


@pytest.mark.parametrize("keys", [[b"k" * 256 * 1024], [b"k" * 4096] * 64], ids=["one long key", "many keys"])
def test_loop_runs_between_the_steps(keys: list[bytes]) -> None:
    """While 256 KiB of keys are hashed byte by byte, the event loop runs other callbacks sixteen times."""

    async def turns() -> int:
        hashing = asyncio.create_task(partitions_in_steps(keys, Partitioning("fnv1a", 7), StepBudget()))
        turns = 0
        while not hashing.done():
            await asyncio.sleep(0)
            turns += 1
        return turns

    assert asyncio.run(turns()) >= 16
