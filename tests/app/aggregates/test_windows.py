"""Test which windows take a record, when they are final, and when they expire, against plain definitions."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from queryable_app.aggregates.clock import AHEAD_RECORDS, TIME_MAX_MS, TIME_MIN_MS, Clock
from queryable_app.aggregates.windows import Windows
from queryable_app.config.aggregate_spec import WindowSpec
from queryable_app.wire.disk_format import ROW_HEADER

I64_MAX = (1 << 63) - 1
MINUTE = 60_000

SPECS = st.builds(
    lambda slide, factor, grace, retention: WindowSpec(slide * factor, slide, 0, grace, grace + retention),
    st.integers(1, 7) | st.just(MINUTE),
    st.integers(1, 5),
    st.integers(0, 20),
    st.integers(0, 20),
)
SESSION_SPECS = st.builds(
    lambda gap, grace, retention: WindowSpec(gap_ms=gap, grace_ms=grace, retention_ms=retention),
    st.integers(1, 20),
    st.integers(0, 20),
    st.integers(0, 40),
)
TIMES = st.integers(-100, 100)


def at(time_ms: int) -> Clock:
    """Return a clock that shows a time."""
    return Clock(time_ms)


@given(SPECS, TIMES | st.sampled_from((TIME_MIN_MS, TIME_MAX_MS)), TIMES)
def test_record_belongs_to_every_open_window_over_its_time(
    spec: WindowSpec, event_ms: int, now_ms: int
) -> None:
    """A record belongs to the windows that contain its time, start at a multiple of the slide, and have not ended."""
    windows, clock = Windows(spec), at(now_ms)

    starts = windows.take(clock, event_ms)

    watermark = windows.watermark(clock.max_event_ms)
    near = range(event_ms - spec.size_ms + 1, event_ms + 1) if spec.size_ms < 100 else starts
    expected = [s for s in near if s % spec.slide_ms == 0 and s + spec.size_ms > watermark]
    assert list(starts) == expected
    assert all(s <= event_ms < s + spec.size_ms for s in starts)
    assert clock.late == (not expected)


@given(SPECS, TIMES)
def test_record_with_the_greatest_time_is_never_late(spec: WindowSpec, event_ms: int) -> None:
    """The record that moves the clock belongs to every window over its time, also with a grace of zero."""
    starts = Windows(spec).take(at(event_ms), event_ms)
    assert len(starts) == spec.size_ms // spec.slide_ms


@given(st.sampled_from((-(1 << 63), TIME_MIN_MS - 1, TIME_MAX_MS + 1, I64_MAX)))
def test_time_outside_of_the_calendar_is_late(event_ms: int) -> None:
    """A time before the year 1 or after 9999 belongs to no window, moves no clock, and is counted."""
    clock = at(0)
    for _ in range(AHEAD_RECORDS):
        assert Windows(WindowSpec(MINUTE, MINUTE)).take(clock, event_ms) == ()
    assert (clock.max_event_ms, clock.late) == (0, AHEAD_RECORDS)


@given(st.lists(st.integers(0, 10 * MINUTE), max_size=60), st.integers(0, 60))
def test_one_wrong_clock_closes_no_window(times: list[int], wrong_at: int) -> None:
    """A record from the year 9999 anywhere in the log changes nothing for the records of other times."""
    windows = Windows(WindowSpec(MINUTE, MINUTE, grace_ms=1000))

    def taken(log: list[int]) -> list[object]:
        clock = Clock()
        return [tuple(windows.take(clock, time_ms)) for time_ms in log]

    started = [0] * AHEAD_RECORDS + times
    wrong = taken([*started[:wrong_at], TIME_MAX_MS, *started[wrong_at:]])
    assert wrong.pop(min(wrong_at, len(started)))
    assert wrong == taken(started)


@given(SPECS | SESSION_SPECS, st.lists(TIMES, max_size=80))
def test_final_window_takes_no_later_record(spec: WindowSpec, times: list[int]) -> None:
    """Once a window is final, no record belongs to it any more; a session that is final touches no later record."""
    windows, clock = Windows(spec), at(-100)
    final: set[tuple[int, int]] = set()
    for event_ms in times:
        starts = windows.take(clock, event_ms)
        ends = {(start, start + (spec.size_ms or spec.gap_ms)) for start in starts}
        for start, end in ends:
            if spec.gap_ms:
                assert not any(start <= last and first <= end for first, last in final)
            else:
                assert (start, end) not in final
        watermark = windows.watermark(clock.max_event_ms)
        for event in times:
            size = spec.size_ms or spec.gap_ms
            start = event if spec.gap_ms else event - event % spec.slide_ms
            if windows.window(start, windows.expiry(start + size), watermark).final:
                final.add((start, start + size))


@given(SPECS | SESSION_SPECS, TIMES, st.integers(-1, 50))
@example(WindowSpec(gap_ms=10, grace_ms=0, retention_ms=1), 0, 5)
def test_expired_window_is_final(spec: WindowSpec, end_ms: int, later_ms: int) -> None:
    """A row is not removed while its window may still change, whatever the retention."""
    windows, watermark = Windows(spec), end_ms + later_ms
    expiry = windows.expiry(end_ms)
    assert not windows.expired(expiry, watermark) or windows.window(0, expiry, watermark).final
    assert windows.expired(expiry, watermark) == (expiry < windows.live_from(watermark))


@given(SPECS, st.integers(TIME_MIN_MS, TIME_MAX_MS))
@example(WindowSpec(86_400_000 * 999_999_999, 86_400_000, 0, 0, 86_400_000 * 999_999_999), TIME_MAX_MS)
@example(WindowSpec(MINUTE, MINUTE, 0, 0, 0), TIME_MIN_MS)
def test_row_gives_back_the_end_of_its_window(spec: WindowSpec, end_ms: int) -> None:
    """The header of a row has room for every expiry, and gives back the end; the machine's clock expires no such row."""
    windows = Windows(spec)
    *_, expiry = ROW_HEADER.unpack(ROW_HEADER.pack(0, 0, 0, windows.expiry(end_ms)))

    assert windows.end(expiry) == end_ms
    assert expiry > 1 << 62


def test_window_is_readable_until_the_watermark_passes_its_retention() -> None:
    """A window expires when the watermark is past its end by more than the retention."""
    windows = Windows(WindowSpec(10, 10, grace_ms=0, retention_ms=100))
    assert not windows.expired(windows.expiry(10), 110)
    assert windows.expired(windows.expiry(10), 111)


def test_no_window_is_final_before_the_clock_shows_a_time() -> None:
    """Without a watermark no window is final and none has expired."""
    windows = Windows(WindowSpec(10, 10))
    watermark = windows.watermark(Clock().max_event_ms)
    assert not windows.window(TIME_MIN_MS, windows.expiry(TIME_MIN_MS), watermark).final
    assert windows.live_from(watermark) == 0
