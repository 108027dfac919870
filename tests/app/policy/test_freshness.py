"""Test which replica may answer a request, and which read options a request may have."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from queryable_app.errors import Failure, Reason
from queryable_app.policy.freshness import (
    READ_OPTION_NAMES,
    Consistency,
    NeededPosition,
    ReadOptions,
    freshness_failure,
    lag_ms,
    lag_records,
    parse_read_options,
    position_text,
)
from queryable_app.wire.as_of import AsOf

NOW_MS = 1_000_000


@dataclass(frozen=True)
class Replica:
    """Describe a replica that has caught up, except for the fields that a test sets."""

    partition: int = 3
    position: int = 100
    complete: bool = True
    end_offset: int = 100
    fresh_as_of_ms: int = NOW_MS
    failed: str | None = None
    absent: str | None = None
    source_offsets: tuple[int, ...] = ()
    source_ends: tuple[int, ...] = ()


ANY, STRONG, AT_LEAST = (ReadOptions(c) for c in (Consistency.ANY, Consistency.STRONG, Consistency.AT_LEAST))
BOUNDED, WITHIN_A_SECOND, WITHIN_10_RECORDS = (
    ReadOptions(),
    ReadOptions(max_lag_ms=1000),
    ReadOptions(max_lag_records=10),
)
HYDRATING = Replica(position=40, complete=False, fresh_as_of_ms=-1)
END_UNKNOWN = Replica(end_offset=-1, fresh_as_of_ms=-1)


def refused(replica: Replica, options: ReadOptions, needed_position: NeededPosition | None = None) -> Failure:
    failure = freshness_failure(replica, options, NOW_MS, needed_position)
    assert failure is not None
    return failure


@pytest.mark.parametrize(
    ("replica", "options", "needed_position"),
    [
        (HYDRATING, ANY, None),
        (Replica(failed="offset 9 cannot be decoded"), ANY, None),
        (Replica(failed="offset 9 cannot be decoded"), BOUNDED, None),
        (END_UNKNOWN, BOUNDED, None),
        (Replica(position=1), BOUNDED, None),
        (Replica(fresh_as_of_ms=NOW_MS - 1000), WITHIN_A_SECOND, None),
        (Replica(fresh_as_of_ms=NOW_MS + 50), WITHIN_A_SECOND, None),
        (Replica(position=90), WITHIN_10_RECORDS, None),
        (Replica(), AT_LEAST, None),
        (Replica(), AT_LEAST, 100),
        (Replica(position=100, end_offset=105), replace(AT_LEAST, max_lag_records=5), 100),
        (Replica(position=101), STRONG, 100),
        (Replica(position=-1, end_offset=0), STRONG, 0),
    ],
    ids=[
        "any: hydrating",
        "any: failed",
        "bounded: failed",
        "bounded: the end offset is not known",
        "bounded: no bound given",
        "bounded: at the bound in ms",
        "bounded: a clock that went back",
        "bounded: at the bound in records",
        "at-least: nothing about this partition",
        "at-least: reached",
        "at-least: reached, and at the bound",
        "strong: beyond",
        "strong: an empty log",
    ],
)
def test_replica_that_may_answer(replica: Replica, options: ReadOptions, needed_position: int | None) -> None:
    """A replica that satisfies the read options answers."""
    assert freshness_failure(replica, options, NOW_MS, needed_position) is None


@pytest.mark.parametrize(
    ("replica", "options", "needed_position", "reason", "detail"),
    [
        (
            HYDRATING,
            BOUNDED,
            None,
            Reason.NOT_AVAILABLE,
            "the replica of partition 3 is still being built, at offset 40 of 100",
        ),
        (
            Replica(position=-1, complete=False, end_offset=-1),
            STRONG,
            0,
            Reason.NOT_AVAILABLE,
            "the replica of partition 3 is still being built, at offset 0",
        ),
        (
            Replica(fresh_as_of_ms=NOW_MS - 1001),
            WITHIN_A_SECOND,
            None,
            Reason.NOT_FRESH_ENOUGH,
            "the replica of partition 3 is 1001 ms behind, 1 more than the 1000 asked for",
        ),
        (
            Replica(position=89),
            WITHIN_10_RECORDS,
            None,
            Reason.NOT_FRESH_ENOUGH,
            "the replica of partition 3 is 11 records behind, 1 more than the 10 asked for",
        ),
        (
            END_UNKNOWN,
            WITHIN_A_SECOND,
            None,
            Reason.NOT_FRESH_ENOUGH,
            "the replica of partition 3 may be more than 1000 ms behind: the end offset is not known yet",
        ),
        (
            END_UNKNOWN,
            WITHIN_10_RECORDS,
            None,
            Reason.NOT_FRESH_ENOUGH,
            "the replica of partition 3 may be more than 10 records behind: the end offset is not known yet",
        ),
        (
            Replica(),
            AT_LEAST,
            103,
            Reason.NOT_FRESH_ENOUGH,
            "the replica of partition 3 is 3 records short of the position 3:103",
        ),
        (
            Replica(fresh_as_of_ms=NOW_MS - 1001),
            replace(AT_LEAST, max_lag_ms=1000),
            100,
            Reason.NOT_FRESH_ENOUGH,
            "the replica of partition 3 is 1001 ms behind, 1 more than the 1000 asked for",
        ),
        (
            Replica(position=99),
            STRONG,
            100,
            Reason.NOT_FRESH_ENOUGH,
            "the replica of partition 3 is 1 records short of the position 3:100",
        ),
        (
            Replica(),
            STRONG,
            None,
            Reason.NOT_FRESH_ENOUGH,
            "the replica of partition 3 was assigned to this node after its request for end offsets",
        ),
        (
            replace(END_UNKNOWN, failed="the topic was deleted and made again"),
            STRONG,
            100,
            Reason.NOT_FRESH_ENOUGH,
            "the replica of partition 3 cannot be compared with the log; it has stopped: the topic was deleted and made again",
        ),
        (
            replace(END_UNKNOWN, failed="the topic was deleted and made again"),
            AT_LEAST,
            100,
            Reason.NOT_FRESH_ENOUGH,
            "the replica of partition 3 cannot be compared with the log; it has stopped: the topic was deleted and made again",
        ),
    ],
    ids=[
        "hydrating",
        "empty",
        "ms",
        "records",
        "ms unknown",
        "records unknown",
        "at-least",
        "at-least: beyond the bound",
        "strong",
        "strong: the end offset is not known",
        "strong: the log is another one",
        "at-least: the log is another one",
    ],
)
def test_replica_that_may_not_answer(
    replica: Replica, options: ReadOptions, needed_position: int | None, reason: Reason, detail: str
) -> None:
    """A replica that does not satisfy the read options says by how much."""
    failure = refused(replica, options, needed_position)
    assert (failure.reason, failure.detail) == (reason, detail)


def test_refusal_says_what_to_do() -> None:
    """A refusal has the partition, the position, when to retry and which option to change."""
    failure = refused(Replica(position=89), WITHIN_10_RECORDS)
    assert (failure.partition, failure.position, failure.retry_after_ms) == (3, "3:89", 500)
    assert failure.advice == "retry after 500 ms, or use consistency=any to read what it has"


def test_refusal_as_of_a_moment_names_no_consistency() -> None:
    """A read as of a moment takes no `consistency`, so its refusal does not suggest one."""
    failure = refused(
        Replica(position=89), ReadOptions(Consistency.AT_LEAST, as_of=AsOf(None, {3: 100})), 100
    )
    assert failure.advice == "retry after 500 ms, or name an earlier moment"


def test_stopped_replica_says_why() -> None:
    """A replica that failed says why, and does not suggest a retry."""
    failure = refused(Replica(position=89, failed="offset 89 cannot be decoded"), WITHIN_10_RECORDS)
    assert failure.detail.endswith("it has stopped: offset 89 cannot be decoded")
    assert "retry" not in failure.advice
    assert "consistency=any" in failure.advice
    assert failure.retry_after_ms is None


def test_stopped_hydrating_replica_says_why() -> None:
    """A replica that failed before it was complete is not available, and says why."""
    failure = refused(Replica(position=40, complete=False, failed="offset 40 cannot be decoded"), BOUNDED)
    assert failure.reason is Reason.NOT_AVAILABLE
    assert failure.detail.endswith("it has stopped: offset 40 cannot be decoded")


REPLICAS = st.builds(
    Replica,
    position=st.integers(-1, 50),
    complete=st.booleans(),
    end_offset=st.integers(-1, 50),
    fresh_as_of_ms=st.just(-1) | st.integers(NOW_MS - 50, NOW_MS),
    failed=st.none() | st.just("broken"),
)
OPTIONS = st.builds(
    ReadOptions,
    st.sampled_from(Consistency),
    st.none() | st.integers(0, 50),
    st.none() | st.integers(0, 50),
)


@given(REPLICAS, OPTIONS, st.none() | st.integers(0, 50))
def test_incomplete_replica_answers_any_only(
    replica: Replica, options: ReadOptions, needed_position: int | None
) -> None:
    """An incomplete replica answers with the consistency any, and is not available with another."""
    failure = freshness_failure(replica, options, NOW_MS, needed_position)
    if options.consistency is Consistency.ANY:
        assert failure is None
    elif not replica.complete:
        assert failure is not None
        assert failure.reason is Reason.NOT_AVAILABLE


@given(REPLICAS, OPTIONS, st.none() | st.integers(0, 50))
def test_progress_never_prevents_an_answer(
    replica: Replica, options: ReadOptions, needed_position: int | None
) -> None:
    """A replica that may answer still may after it makes progress."""
    if freshness_failure(replica, options, NOW_MS, needed_position) is None:
        fresher = Replica(
            replica.partition, replica.position + 1, True, replica.end_offset, NOW_MS, replica.failed
        )
        assert freshness_failure(fresher, options, NOW_MS, needed_position) is None


@given(REPLICAS)
def test_unknown_lag_is_minus_one(replica: Replica) -> None:
    """A lag is -1 exactly if it is unknown, and never negative otherwise."""
    assert (lag_records(replica) == -1) == (replica.end_offset == -1)
    assert (lag_ms(replica, NOW_MS) == -1) == (replica.fresh_as_of_ms == -1)
    assert min(lag_records(replica), lag_ms(replica, NOW_MS)) >= -1


def test_empty_replica_is_at_offset_zero() -> None:
    """The position of a replica without records is offset 0."""
    assert (position_text(Replica(position=-1)), lag_records(Replica(position=-1, end_offset=7))) == (
        "3:0",
        7,
    )


DEFAULTS = ReadOptions(Consistency.BOUNDED, max_lag_ms=10_000, max_lag_records=None, deadline_ms=3000)


@pytest.mark.parametrize(
    ("values", "options"),
    [
        ({}, DEFAULTS),
        ({"consistency": ["any"]}, ReadOptions(Consistency.ANY, deadline_ms=3000)),
        ({"consistency": ["strong"], "deadline-ms": ["50"]}, ReadOptions(Consistency.STRONG, deadline_ms=50)),
        ({"consistency": ["bounded"]}, DEFAULTS),
        ({"max-lag-ms": ["0"]}, ReadOptions(max_lag_ms=0, deadline_ms=3000)),
        ({"max-lag-records": ["5"]}, ReadOptions(max_lag_ms=10_000, max_lag_records=5, deadline_ms=3000)),
        (
            {"min-position": ["0:5", "3:9"]},
            ReadOptions(
                Consistency.AT_LEAST, max_lag_ms=10_000, min_positions={0: 5, 3: 9}, deadline_ms=3000
            ),
        ),
        (
            {"min-position": ["0:5, 3:9"], "consistency": ["at-least"]},
            ReadOptions(
                Consistency.AT_LEAST, max_lag_ms=10_000, min_positions={0: 5, 3: 9}, deadline_ms=3000
            ),
        ),
        (
            {"min-position": ["1:5", "1:9", "1:7"]},
            ReadOptions(Consistency.AT_LEAST, max_lag_ms=10_000, min_positions={1: 9}, deadline_ms=3000),
        ),
        (
            {"min-position": ["1:9"], "max-lag-ms": ["7"], "max-lag-records": ["5"]},
            ReadOptions(Consistency.AT_LEAST, 7, 5, {1: 9}, deadline_ms=3000),
        ),
        ({"route": ["local"]}, ReadOptions(max_lag_ms=10_000, deadline_ms=3000, route="local")),
        ({"deadline-ms": ["60000"]}, ReadOptions(max_lag_ms=10_000, deadline_ms=60_000)),
        ({"limit": ["7"]}, DEFAULTS),
    ],
    ids=[
        "nothing",
        "any drops the default bound",
        "strong",
        "bounded keeps the default bound",
        "a bound of zero",
        "a bound beside the default one",
        "positions imply at-least",
        "positions joined by a comma",
        "the highest position counts",
        "positions and bounds",
        "route",
        "the longest deadline",
        "another name",
    ],
)
def test_read_options_override_the_defaults(values: dict[str, list[str]], options: ReadOptions) -> None:
    """An option of the request is used, and an absent one comes from the defaults."""
    assert parse_read_options(values, DEFAULTS, partitions=4) == options


@pytest.mark.parametrize("default", [Consistency.ANY, Consistency.STRONG])
def test_bound_implies_bounded(default: Consistency) -> None:
    """A bound without a consistency means bounded, whatever the default is."""
    assert (
        parse_read_options({"max-lag-ms": ["5"]}, ReadOptions(default), 4).consistency is Consistency.BOUNDED
    )


@pytest.mark.parametrize(
    ("values", "field", "allowed"),
    [
        ({"consistency": ["eventual"]}, "consistency", "any, bounded, at-least, strong"),
        ({"consistency": [""]}, "consistency", "any, bounded, at-least, strong"),
        ({"consistency": ["any", "strong"]}, "consistency", "give it once"),
        ({"route": ["nearest"]}, "route", "forward, redirect, local"),
        ({"deadline-ms": ["0"]}, "deadline-ms", "from 1 to 60000"),
        ({"deadline-ms": ["60001"]}, "deadline-ms", "from 1 to 60000"),
        ({"deadline-ms": ["-1"]}, "deadline-ms", "from 1 to 60000"),
        ({"deadline-ms": ["1.5"]}, "deadline-ms", "from 1 to 60000"),
        ({"deadline-ms": ["٤"]}, "deadline-ms", "from 1 to 60000"),
        ({"deadline-ms": ["9" * 10_000]}, "deadline-ms", "from 1 to 60000"),
        ({"max-lag-ms": ["soon"]}, "max-lag-ms", "from 0 to 1000000000000"),
        ({"max-lag-ms": ["1", "2"]}, "max-lag-ms", "give it once"),
        ({"max-lag-records": ["1000000000001"]}, "max-lag-records", "from 0 to 1000000000000"),
        ({"min-position": ["4:0"]}, "min-position", "a partition from 0 to 3"),
        ({"min-position": ["-1:0"]}, "min-position", "a partition from 0 to 3"),
        ({"min-position": ["0:-1"]}, "min-position", "an offset from 0 to 9223372036854775807"),
        (
            {"min-position": ["0:9223372036854775808"]},
            "min-position",
            "an offset from 0 to 9223372036854775807",
        ),
        ({"min-position": ["5"]}, "min-position", "<partition>:<offset>"),
        ({"min-position": ["0:1:2"]}, "min-position", "<partition>:<offset>"),
        ({"min-position": [""]}, "min-position", "<partition>:<offset>"),
        ({"min-position": ["0:1,"]}, "min-position", "<partition>:<offset>"),
        ({"consistency": ["at-least"]}, "min-position", "<partition>:<offset>"),
        ({"consistency": ["any"], "max-lag-ms": ["5"]}, "max-lag-ms", "consistency=bounded"),
        ({"consistency": ["strong"], "max-lag-records": ["5"]}, "max-lag-records", "consistency=bounded"),
        ({"consistency": ["any"], "min-position": ["0:5"]}, "min-position", "consistency=at-least"),
        (
            {"consistency": ["bounded"], "min-position": ["0:5"], "max-lag-ms": ["5"]},
            "min-position",
            "consistency=at-least",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_read_option_is_named(values: dict[str, list[str]], field: str, allowed: str) -> None:
    """A wrong option is refused by its name, with the allowed values."""
    with pytest.raises(Failure) as failure:
        parse_read_options(values, DEFAULTS, partitions=4)
    assert failure.value.reason is Reason.INVALID_REQUEST
    assert failure.value.detail.startswith(f"{field}: ")
    assert allowed in f"{failure.value.detail} {failure.value.advice}"
    assert len(failure.value.detail) < 200


@given(st.dictionaries(st.sampled_from(READ_OPTION_NAMES), st.lists(st.text(max_size=30), max_size=3)))
@example({"min-position": ["0:" + "9" * 5000]})
def test_any_text_is_an_option_or_invalid(values: dict[str, list[str]]) -> None:
    """Any text is parsed or refused as invalid_request."""
    try:
        answer: ReadOptions | Reason = parse_read_options(values, DEFAULTS, partitions=4)
    except Failure as failure:
        answer = failure.reason
    assert isinstance(answer, ReadOptions) or answer is Reason.INVALID_REQUEST


def test_rekeyed_replica_lags_by_the_records_of_its_source() -> None:
    """Its lag is the sum over the source partitions, and its position names each of them."""
    replica = Replica(position=7, end_offset=30, source_offsets=(10, 12), source_ends=(10, 20))
    assert lag_records(replica) == 8
    assert position_text(replica) == "0:10,1:12"


def test_rekeyed_replica_must_reach_every_source_position() -> None:
    """A replica beyond one needed position and before another one is not fresh enough, and says by how much."""
    replica = Replica(source_offsets=(10, 12), source_ends=(10, 20))
    assert freshness_failure(replica, STRONG, NOW_MS, (10, 12)) is None
    failure = refused(replica, STRONG, (3, 20))
    assert failure.reason is Reason.NOT_FRESH_ENOUGH
    assert "is 8 records short of the position 0:3,1:20" in failure.detail


def test_positions_of_a_rekeyed_view_are_those_of_its_source() -> None:
    """`min-position` does not name partitions of the view, so it does not add them to the read."""
    options = parse_read_options({"min-position": ["1:5"]}, ReadOptions(), 4, rekeyed=True)
    assert (options.min_positions, options.min_sources) == ({}, {1: 5})
