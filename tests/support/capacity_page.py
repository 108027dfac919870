"""Compute the worked examples of docs/capacity.md from the constants on that page: `python -m tests.support.capacity_page`.

Everything that the code decides comes from the code: placement, heartbeats, memory.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from queryable_app.placement.assignment import initial_placement
from queryable_app.policy.failure_detector import HEARTBEAT_SECONDS, MISSED_MAX, heartbeat_ticks
from queryable_app.policy.routing import ReportedReplica
from queryable_app.serve.base.peer_frames import encode_heartbeat
from queryable_operator.spec.quantity import quantity
from queryable_operator.spec.requirements import requirements

PAGE: Final = Path(__file__).parents[2] / "docs" / "capacity.md"
HEAP: Final = "512m"
"""`ingest.driverMemory` unless the resource says otherwise."""

Constants = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Topic:
    """Describe a topic and its view, as the examples do."""

    nodes: int
    partitions: int
    replicas: int
    keys_millions: int
    bytes_each: int
    records_per_second: int
    reads_per_second: int

    @property
    def replicas_per_node(self) -> float:
        return self.partitions * self.replicas / self.nodes

    @property
    def forwarded_share(self) -> float:
        """Return the forwarded share of reads that go to any node. The Python client calls a node that has the key."""
        return 1 - self.replicas / self.nodes

    @property
    def node_reads_per_second(self) -> float:
        return self.reads_per_second / self.nodes

    @property
    def node_records_per_second(self) -> float:
        """Each replica applies all records of its partition."""
        return self.records_per_second * self.replicas / self.nodes

    @property
    def heartbeats_per_second(self) -> float:
        """Sent by one node, which answers as many."""
        others = self.nodes - 1
        return others / (heartbeat_ticks(others) * HEARTBEAT_SECONDS)

    @property
    def suspected_after_seconds(self) -> float:
        """Until a node that hangs is suspected by one that sends it no reads: its turn, and the missed heartbeats."""
        return (heartbeat_ticks(self.nodes - 1) + MISSED_MAX) * HEARTBEAT_SECONDS

    def placement_bytes(self) -> int:
        addresses = [f"http://users-r1-{n}.users-r1.default.svc:8080" for n in range(self.nodes)]
        placement = initial_placement("default.users.r1", self.partitions, addresses, self.replicas)
        return len(placement.to_json())


EXAMPLES: Final = (
    Topic(1, 10, 1, 10, 115, 500, 5_000),
    Topic(10, 100, 2, 200, 115, 20_000, 100_000),
    Topic(100, 1000, 2, 4_000, 115, 200_000, 1_000_000),
)


def read_cores(topic: Topic, c: Constants) -> float:
    """Return the cores that serve needs on one node for reads."""
    share = topic.forwarded_share
    each_us = (1 - share) * c["read_us"] + share * c["forwarded_read_us"]
    return topic.node_reads_per_second * each_us / 1e6


def record_cores(topic: Topic, c: Constants) -> float:
    return topic.node_records_per_second * c["serve_record_us"] / 1e6


def ingest_cores(topic: Topic, c: Constants) -> float:
    return topic.node_records_per_second * c["ingest_record_us"] / 1e6


def heartbeat_cores(topic: Topic, c: Constants) -> float:
    ticks = (topic.nodes - 1) * c["tick_us"] / HEARTBEAT_SECONDS
    return (topic.heartbeats_per_second * c["heartbeat_us"] + ticks) / 1e6


def heartbeat_kb(topic: Topic, c: Constants) -> float:
    """Return the KB a second of one node for the heartbeats that it sends and those that it answers."""
    hosted = range(topic.partitions - round(topic.replicas_per_node), topic.partitions)
    body = encode_heartbeat(1, (0, 1, 1), {p: ReportedReplica(1_000_000, 12, True) for p in hosted})
    return 2 * topic.heartbeats_per_second * (c["heartbeat_overhead_bytes"] + len(body)) / 1000


def disk_gb(topic: Topic, c: Constants) -> float:
    """Return the GB of one node."""
    whole = topic.keys_millions * 1e6 * topic.bytes_each * topic.replicas / topic.nodes
    return whole * c["disk_factor"] / 1e9


def volume_gb(topic: Topic, c: Constants) -> float:
    """Return the GB of a node's volume: below the high-water mark although compactions need room."""
    return disk_gb(topic, c) * c["disk_peak_factor"] / 0.85


def memory_mib(container: str) -> int:
    """Return the MiB that the operator requests for a container."""
    spec = {"ingest": {"driverMemory": HEAP}}
    return int(quantity(requirements(spec, container)["requests"]["memory"]) / 2**20)


def constants() -> dict[str, float]:
    """Return the constants in the page's table."""
    rows = re.findall(r"^\| `(\w+)` \| ([0-9.]+) \|", PAGE.read_text(), re.MULTILINE)
    return {name: float(value) for name, value in rows}


def _number(value: float) -> str:
    if value >= 100 or value == int(value):
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.2g}" if value < 1 else f"{value:.1f}"


def _cores(value: float) -> str:
    return f"{100 * value:.1f} %"


def examples(c: Constants) -> str:
    """Return the table of the worked examples."""
    rows: list[tuple[str, Callable[[Topic], str]]] = [
        ("partitions x replicas", lambda t: f"{_number(t.partitions)} x {t.replicas}"),
        ("keys, bytes of each with its value", lambda t: f"{_number(t.keys_millions)} M, {t.bytes_each}"),
        ("records/s", lambda t: _number(t.records_per_second)),
        ("reads/s, through a Service", lambda t: _number(t.reads_per_second)),
        ("**each node**", lambda t: ""),
        ("replicas", lambda t: _number(t.replicas_per_node)),
        ("reads/s", lambda t: _number(t.node_reads_per_second)),
        ("forwarded share of the reads", lambda t: f"{100 * t.forwarded_share:.0f} %"),
        ("records/s", lambda t: _number(t.node_records_per_second)),
        ("serve, for reads", lambda t: _cores(read_cores(t, c))),
        ("serve, for records", lambda t: _cores(record_cores(t, c))),
        ("serve, for heartbeats", lambda t: _cores(heartbeat_cores(t, c))),
        ("ingest", lambda t: _cores(ingest_cores(t, c))),
        ("memory requested, MiB", lambda t: _number(memory_mib("serve") + memory_mib("ingest"))),
        ("files, GB", lambda t: _number(disk_gb(t, c))),
        ("volume, GB", lambda t: _number(volume_gb(t, c))),
        ("heartbeats sent/s", lambda t: _number(t.heartbeats_per_second)),
        ("heartbeats, KB/s", lambda t: _number(heartbeat_kb(t, c))),
        ("**all nodes**", lambda t: ""),
        (
            "cores",
            lambda t: _number(t.nodes * sum(f(t, c) for f in (read_cores, record_cores, heartbeat_cores, ingest_cores))),
        ),
        ("memory, GiB", lambda t: _number(t.nodes * (memory_mib("serve") + memory_mib("ingest")) / 1024)),
        ("volumes, GB", lambda t: _number(t.nodes * volume_gb(t, c))),
        ("heartbeats/s", lambda t: _number(t.nodes * t.heartbeats_per_second)),
        ("heartbeats, MB/s", lambda t: _number(t.nodes * heartbeat_kb(t, c) / 2000)),
        ("placement, KB", lambda t: _number(t.placement_bytes() / 1000)),
        ("a hung node without reads is suspected after, s", lambda t: _number(t.suspected_after_seconds) if t.nodes > 1 else ""),
    ]  # fmt: skip
    head = ["", *(f"{_number(t.nodes)} node" + "s" * (t.nodes > 1) for t in EXAMPLES)]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    lines += [f"| {name} | {' | '.join(value(t) for t in EXAMPLES)} |" for name, value in rows]
    return "\n".join(line.replace("|  |", "| |").replace("|  |", "| |") for line in lines)


def with_examples(text: str) -> str:
    """Return the page with the table of the examples computed again."""
    begin, end = "<!-- examples -->\n", "\n<!-- end of examples -->"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{examples(constants())}\n{end}{after}"


if __name__ == "__main__":
    sys.stdout.write(examples(constants()) + "\n")
    PAGE.write_text(with_examples(PAGE.read_text()))
