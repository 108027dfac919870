"""Test that the rekey job's clock and aggregates/clock.py follow one rule, with the real class in Spark's JVM."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from queryable_app.aggregates.clock import (
    AHEAD_RECORDS,
    NO_SOURCE_CLOCK,
    TIME_MAX_MS,
    TIME_MIN_MS,
    Clock,
    SourceClock,
)

AHEAD_MS = 3_600_000
NEAR = st.integers(0, 3 * AHEAD_MS)
TIMES = st.lists(
    st.one_of(
        NEAR,
        NEAR,
        NEAR,
        st.sampled_from(
            (TIME_MIN_MS - 1, TIME_MIN_MS, TIME_MAX_MS, TIME_MAX_MS + 1, -(1 << 63), (1 << 63) - 1)
        ),
    ),
    max_size=60,
)


def test_job_and_nodes_have_one_clock(spark: SparkSession) -> None:
    """The clock of the rekey job is that of the nodes after any event times, also if it goes on from a clock that a node kept."""
    jvm: Any = spark._jvm

    @settings(max_examples=60)
    @given(TIMES, st.integers(0, 60))
    @example([TIME_MAX_MS] * AHEAD_RECORDS + [0], 3)
    @example([0] * AHEAD_RECORDS + [AHEAD_MS, 2 * AHEAD_MS + 1, AHEAD_MS], 12)
    def run(times: list[int], cut: int) -> None:
        clock = Clock()
        ours = jvm.io.queryabletopics.SourceClock(*NO_SOURCE_CLOCK, AHEAD_MS)
        for number, time_ms in enumerate(times):
            if number == cut:
                ours = jvm.io.queryabletopics.SourceClock(
                    *SourceClock.decode(bytes(ours.encoded())), AHEAD_MS
                )
            clock.advance(time_ms, AHEAD_MS)
            ours.advance(time_ms)
            expected = SourceClock(clock.max_event_ms, clock.ahead_count, clock.ahead_min_ms)
            assert SourceClock.decode(bytes(ours.encoded())) == expected

    run()
