"""Parse the moment of a read, `as-of=`, and make it the read's requirement on freshness."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final

from starlette.requests import Request

from queryable_app.errors import Failure, Reason, invalid
from queryable_app.policy.freshness import Consistency, ReadOptions
from queryable_app.serve.api.request import HISTORY_END, RAW_KEY, Parameters
from queryable_app.serve.reads.point import Reads
from queryable_app.wire.as_of import AsOf, parse_as_of
from queryable_app.wire.version_keys import offset_in, partition_in

_FRESHNESS: Final = ("consistency", "max-lag-ms", "max-lag-records", "min-position")
_OF_VERSIONS: Final = ("from", "to", "limit", "order", "cursor")


def failure_of_history(request: Request, has_history: bool) -> Callable[[str], Failure | None]:
    """Return the failure of a parameter that this view lacks because it has no history; None of any other one."""
    asks_versions = request.scope.get(RAW_KEY, b"").endswith(HISTORY_END)

    def failure(name: str) -> Failure | None:
        if has_history:
            return None
        if name != "as-of" and not (asks_versions and name in _OF_VERSIONS):
            return None
        return Failure(
            Reason.NO_SUCH_RESOURCE,
            "this view keeps no history",
            "set spec.view.kind: history, which makes a new revision, or read the newest values",
        )

    return failure


def moment_of(values: Parameters, reads: Reads) -> AsOf:
    """Return the moment in the parameter `as-of`, which a read has in place of other requirements on freshness."""
    for name in _FRESHNESS:
        if name in values:
            raise invalid(name, "means nothing to a read as of a moment", f"leave out `{name}`, or `as-of`")
    as_of = parse_as_of("as-of", values["as-of"], reads.replicas.partitions, time.time_ns() // 1_000_000)
    assert as_of is not None
    return as_of


def options_behind(options: ReadOptions, version_key: bytes) -> ReadOptions:
    """Return the options of a page of versions behind this one. A replica that does not have it yet may lack others of the page.

    With `any` a replica answers with what it has, and with `strong` it has all."""
    if options.consistency not in (Consistency.BOUNDED, Consistency.AT_LEAST):
        return options
    partition, position = partition_in(version_key), offset_in(version_key) + 1
    named = options.min_positions.get(partition, 0)
    return replace(
        options,
        consistency=Consistency.AT_LEAST,
        min_positions={**options.min_positions, partition: max(named, position)},
    )


def options_as_of(options: ReadOptions, as_of: AsOf, partitions: Collection[int]) -> ReadOptions:
    """Return the options of a read of these partitions as of a moment. Raises Failure if it names no position of one."""
    if as_of.time_ms is not None:
        return replace(
            options, consistency=Consistency.BOUNDED, max_lag_ms=None, max_lag_records=None, as_of=as_of
        )
    for partition in partitions:
        if partition not in as_of.positions:
            raise invalid(
                "as-of",
                f"names no position of partition {partition}, which decides this read",
                "name one of each partition, such as `positions` of an answer",
            )
    return replace(
        options,
        consistency=Consistency.AT_LEAST,
        max_lag_ms=None,
        max_lag_records=None,
        min_positions={partition: as_of.positions[partition] for partition in partitions},
        as_of=as_of,
    )
