"""Test sessions against a plain definition: records whose times are no more than a gap apart."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from queryable_app.aggregates.sessions import merged, touching


@dataclass
class Session:
    start_ms: int
    end_ms: int
    times: list[int]


def fold(sessions: list[Session], event_ms: int, gap_ms: int) -> slice:
    """Add a record to the sessions of its group, and return which of them it merged."""
    found = touching(sessions, event_ms, gap_ms)
    merging = sessions[found]
    times = [time for session in merging for time in session.times] + [event_ms]
    sessions[found] = [Session(*merged(merging, event_ms, gap_ms), times)]
    return found


def expected(times: list[int], gap_ms: int) -> list[tuple[int, int, list[int]]]:
    """Return the sessions of some records: each ends where no record follows within the gap."""
    sessions: list[list[int]] = []
    for time in sorted(times):
        if sessions and time - sessions[-1][-1] <= gap_ms:
            sessions[-1].append(time)
        else:
            sessions.append([time])
    return [(session[0], session[-1] + gap_ms, session) for session in sessions]


@given(st.lists(st.integers(-60, 60), max_size=40), st.integers(1, 12))
def test_sessions_are_runs_of_near_records(times: list[int], gap_ms: int) -> None:
    """In whatever order records come, their sessions are those of the sorted records."""
    sessions: list[Session] = []
    for time in times:
        fold(sessions, time, gap_ms)

    found = [(session.start_ms, session.end_ms, sorted(session.times)) for session in sessions]
    assert found == expected(times, gap_ms)


def test_record_bridges_two_sessions() -> None:
    """A record between two sessions that touches both makes them one."""
    sessions = [Session(0, 10, [0]), Session(18, 28, [18]), Session(50, 60, [50])]

    assert fold(sessions, 9, 10) == slice(0, 2)
    assert [(session.start_ms, session.end_ms) for session in sessions] == [(0, 28), (50, 60)]


def test_sessions_that_touch_are_one() -> None:
    """A record exactly one gap after another is in its session; a millisecond later it is not."""
    assert touching([Session(0, 10, [0])], 10, 10) == slice(0, 1)
    assert touching([Session(0, 10, [0])], 11, 10) == slice(1, 1)
