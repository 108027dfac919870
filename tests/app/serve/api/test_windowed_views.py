"""Test windows of views with other settings: none at all, a short retention, sessions, and late records."""

from __future__ import annotations

from pathlib import Path

from queryable_app.wire.times import to_iso
from tests.app.serve.api.test_windows import MINUTE, NOON, VIEW, fill, walk
from tests.support.served import served
from tests.support.windows import Record, row_of, view


def test_view_without_windows_names_its_reads(tmp_path: Path) -> None:
    """A read of windows where there are none is no_such_resource, and names the paths of keys."""
    with served(tmp_path) as running, running.client() as http:
        for path in ("/v1/windows", "/v1/windows/a", f"/v1/windows/a/{NOON}"):
            answer = http.get(path)
            assert (answer.status_code, answer.json()["reason"]) == (404, "no_such_resource")
            assert "/v1/keys/{key}" in answer.json()["advice"]


def test_expired_window_is_not_readable(tmp_path: Path) -> None:
    """A window is gone once the watermark passes its end by the retention, whatever the machine's clock says."""
    with served(tmp_path, partitions=1, view=view(size="1m", grace="0s", retention="2m")) as running:
        fill([running], running.node.placement, [Record(b"a", n * MINUTE, n) for n in range(9)] * 2)
        times = [*[0] * 10, *[4 * MINUTE, 4 * MINUTE + 1]]
        rows = [row_of(18 + n, Record(b"b", time_ms, 1)) for n, time_ms in enumerate(times)]
        with running.client() as http:
            before = walk(http, "/v1/windows/a", 100)
            running.put_slice(*rows)
            after = walk(http, "/v1/windows/a", 100)

    # The least of the first ten times, then the greatest, is the clock: 8 minutes.
    assert before == after == [("a", n * MINUTE) for n in range(5, 9)]


def test_sessions_are_read_like_other_windows(tmp_path: Path) -> None:
    """A session has the time of its records, and is final once no record can extend it."""
    of_view = view(sessionGap="30s", grace="10s", retention="1h")
    times = [0, 20_000, 45_000, 300_000, 310_000, *[400_000] * 10]
    with served(tmp_path, partitions=1, view=of_view) as running:
        running.put_slice(*(row_of(n, Record(b"a", time_ms, n)) for n, time_ms in enumerate(times)))
        with running.client() as http:
            items = http.get("/v1/windows/a").json()["items"]
            one = http.get("/v1/windows/a/300000").json()

    found = [
        (item["window"], item["value"]["n"], item["value"]["first"], item["value"]["last"]) for item in items
    ]
    assert found == [
        ({"start": to_iso(0), "end": to_iso(75_000), "final": True}, 3, 0, 2),
        ({"start": to_iso(300_000), "end": to_iso(340_000), "final": True}, 2, 3, 4),
        ({"start": to_iso(400_000), "end": to_iso(430_000), "final": False}, 10, 5, 14),
    ]
    assert one == items[1]


def test_status_and_metrics_have_late_records(tmp_path: Path) -> None:
    """Status, metrics and the node page show the watermark and how many records came too late."""
    with served(tmp_path, partitions=1, view=VIEW) as running:
        times = [*[NOON] * 10, NOON + 10 * MINUTE, NOON, NOON + 1]
        running.put_slice(*(row_of(n, Record(b"a", time_ms, n)) for n, time_ms in enumerate(times)))
        with running.client() as http:
            (partition,) = http.get("/v1/status").json()["partitions"]
            metrics = http.get("/metrics").text

    assert (partition["lateRecords"], partition["watermark"]) == (2, "2026-11-22T12:09:50.000Z")
    assert 'qt_late_records_total{partition="0"} 2.0' in metrics
    assert 'qt_watermark_seconds{partition="0"} 1.79534939e+09' in metrics
