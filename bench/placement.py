"""Measure the placement of 1 000 partitions with a standby on 100 nodes: the cost of a step, and the moved replicas."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from bench.harness import Result
from queryable_app.placement.assignment import DesiredPlacement, Placement, initial_placement, next_placement

PARTITIONS, NODES, REPLICAS = 1000, 100, 2

T = TypeVar("T")


def measure(directory: Path, quick: bool) -> Iterator[Result]:
    first, milliseconds = _timed(
        lambda: initial_placement("bench.users.r1", PARTITIONS, _addresses(NODES), REPLICAS)
    )
    yield _result("a first placement", milliseconds)
    share = PARTITIONS * REPLICAS // NODES
    racks = tuple(f"rack-{3 * node // NODES}" for node in range(NODES))
    for case, wanted, fewest in (
        ("nothing to do", DesiredPlacement(_addresses(NODES), REPLICAS), 0),
        (
            "one more node",
            DesiredPlacement(_addresses(NODES + 1), REPLICAS),
            PARTITIONS * REPLICAS // (NODES + 1),
        ),
        ("one node less", DesiredPlacement(_addresses(NODES - 1), REPLICAS), share),
        ("a lost node", DesiredPlacement(_addresses(NODES), REPLICAS, lost=frozenset({7})), share),
        ("another standby", DesiredPlacement(_addresses(NODES), REPLICAS + 1), PARTITIONS),
        ("three racks", DesiredPlacement(_addresses(NODES), REPLICAS, racks), _pairs_in_one(racks, first)),
    ):
        following, milliseconds = _timed(lambda wanted=wanted: next_placement(first, wanted, ()))  # type: ignore[misc]
        moves = sum(map(len, following.hydrating))
        yield _result(case, milliseconds, {"moves": moves, "fewest possible": fewest})


def _result(case: str, milliseconds: float, moves: dict[str, int] | None = None) -> Result:
    figures = {"ms": round(milliseconds, 1), **(moves or {})}
    return Result("placement", f"{case}, {PARTITIONS} x {NODES}", {**figures}, "well below 1 s, fewest moves")


def _timed(function: Callable[[], T]) -> tuple[T, float]:
    began = time.perf_counter()
    value = function()
    return value, 1000 * (time.perf_counter() - began)


def _addresses(nodes: int) -> tuple[str, ...]:
    return tuple(f"http://users-{node}:8080" for node in range(nodes))


def _pairs_in_one(racks: tuple[str, ...], placement: Placement) -> int:
    """Count partitions whose replicas share a rack: one of each has to move."""
    return sum(len({racks[node] for node in serving}) == 1 for serving in placement.serving)
