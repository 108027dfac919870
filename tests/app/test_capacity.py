"""Compare docs/capacity.md with the code and with itself: its examples and its figures follow from its constants."""

from __future__ import annotations

import re

import pytest

from queryable_app.policy.failure_detector import HEARTBEAT_SECONDS, HEARTBEATS_PER_TICK_MAX, heartbeat_ticks
from queryable_app.serve.reads.peer_reads import ROWS_MAX
from queryable_operator.spec.quantity import quantity
from queryable_operator.spec.requirements import requirements
from tests.support.capacity_page import (
    EXAMPLES,
    PAGE,
    Topic,
    constants,
    disk_gb,
    heartbeat_cores,
    heartbeat_kb,
    ingest_cores,
    memory_mib,
    read_cores,
    record_cores,
    with_examples,
)

TEXT = " ".join(PAGE.read_text().split())
LARGE = EXAMPLES[-1]


def test_examples_follow_from_the_constants() -> None:
    """The table is what `make docs` writes."""
    assert PAGE.read_text() == with_examples(PAGE.read_text())


def test_formulas_name_the_constants() -> None:
    """Every constant of a formula is in the table, and every one in the table is in a formula or in the model."""
    named = set(re.findall(r"`([a-z]+(?:_[a-z]+)*_(?:us|factor|bytes))`", PAGE.read_text()))
    assert named == set(constants())


def test_example_by_hand() -> None:
    """100 nodes with a standby replica each of 1 000 partitions, calculated with other words than the model's."""
    c = constants()
    assert (LARGE.nodes, LARGE.partitions, LARGE.replicas) == (100, 1000, 2)
    assert read_cores(LARGE, c) == pytest.approx(
        10_000 * (0.02 * c["read_us"] + 0.98 * c["forwarded_read_us"]) / 1e6
    )
    assert record_cores(LARGE, c) == pytest.approx(4_000 * c["serve_record_us"] / 1e6)
    assert ingest_cores(LARGE, c) == pytest.approx(4_000 * c["ingest_record_us"] / 1e6)
    assert heartbeat_cores(LARGE, c) == pytest.approx((198 * c["heartbeat_us"] + 990 * c["tick_us"]) / 1e6)
    assert disk_gb(LARGE, c) == pytest.approx(4e9 * 115 * 2 / 100 * c["disk_factor"] / 1e9)


def measured(row: str) -> list[float]:
    """Return the figures of one row of the table of measurements."""
    (found,) = re.findall(rf"^\| {row} \|(.*)\|", PAGE.read_text(), re.MULTILINE)
    return [float(figure.replace(" ", "")) for figure in re.findall(r"(?<!≤ )\d[\d .]*\d|(?<!≤ )\d", found)]


def test_model_gives_what_was_measured() -> None:
    """The formulas give the heartbeats, the CPU and the traffic of the measured nodes, within a third."""
    c = constants()
    idle = measured("CPU when idle, % of a core")
    rates = measured("heartbeats sent, and answered, each second")
    traffic = measured("KB/s of heartbeats, sent and received")
    for number, topic in enumerate(EXAMPLES):
        assert topic.heartbeats_per_second == rates[number]
        assert heartbeat_kb(topic, c) == pytest.approx(traffic[number], rel=0.05)
    assert 100 * heartbeat_cores(LARGE, c) + idle[0] == pytest.approx(idle[2], rel=0.05)
    assert 100 * heartbeat_cores(EXAMPLES[1], c) + idle[0] == pytest.approx(idle[1], rel=0.33)


def test_sentences_say_what_the_code_does() -> None:
    """Figures in the text are those of the code, and of the table of measurements."""
    per_second = round(HEARTBEATS_PER_TICK_MAX / HEARTBEAT_SECONDS)
    turn = heartbeat_ticks(99) * HEARTBEAT_SECONDS
    serve = requirements({}, "serve")
    more_mib = int(quantity(serve["limits"]["memory"]) / 2**20) - memory_mib("serve")
    suspected = [Topic(n, n, 1, 1, 1, 1, 1).suspected_after_seconds for n in (100, 1000)]
    placement_kb = LARGE.placement_bytes() / 1000
    status = measured("`/v1/status`: bytes, CPU ms")
    public = measured("`/v1/placement`: bytes, CPU ms")
    clients_per_second = 1000 / 30
    for sentence in (
        f"at most {per_second} \u00d7 N a second, and not {1 / HEARTBEAT_SECONDS:.0f} \u00d7 N²",
        f"sends at most {HEARTBEATS_PER_TICK_MAX} heartbeats in a tick of {1000 * HEARTBEAT_SECONDS:.0f} ms",
        f"Above {HEARTBEATS_PER_TICK_MAX + 1} nodes the others take turns",
        f"{suspected[0]:.1f} s with 100 nodes, {suspected[1]:.1f} s with 1 000",
        "within its turn: half a second with 100 nodes" if turn == 0.5 else "?",
        f"150 MiB + 256 block cache + 64 write buffers, and up to {more_mib} more",
        f"({placement_kb:.0f} KB with the addresses of a cluster)",
        f"At 100 nodes that is {100 * status[4] / 1e6:.1f} MB, and {100 * status[5]:.0f} ms of CPU",
        f"{clients_per_second * public[5] / 10:.0f} % of a core and {clients_per_second * 141 / 1000:.1f} MB/s",
        "W of them, 2 or more, requests 150 \u00d7 W + 360 MiB",
        f"up to {ROWS_MAX:,} rows or 1 MiB".replace(",", " "),
    ):
        assert sentence in TEXT
    for workers in (2, 4):
        requested = requirements({"serve": {"workers": workers}}, "serve")["requests"]["memory"]
        assert requested == f"{150 * workers + 360}Mi"
    assert memory_mib("serve") == 150 + 256 + 64
    assert memory_mib("ingest") == 512 + 640
