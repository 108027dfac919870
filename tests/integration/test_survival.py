"""Test that no read or query fails or is wrong while a node is killed, hangs, restarts or is wiped under reads and writes."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from tests.integration import topics
from tests.integration.faults import answers, end, signal_to, wait_until_well, wipe
from tests.integration.queries import INDEXES, QUERIES, ROWS, Queries
from tests.integration.readers import PARTITIONS, Producing, Readers, Seen, quantile
from tests.integration.system import System, resource, running
from tests.support.fold import LogRecord
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(900)  # three JVMs start, and one of them three times more

TOPIC = "survivors"
NODES = 3
HANGS_SECONDS = 5


@pytest.fixture(scope="module")
def producing(kafka: Any) -> Producing:
    started = Producing(kafka.bootstrap, TOPIC)
    topics.produce(kafka.bootstrap, TOPIC, topics.json_records(ROWS))
    return started


@pytest.fixture(scope="module")
def system(kafka: Any, producing: Producing, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    document = resource(TOPIC, kafka.bootstrap, replicas=NODES, standbyReplicas=1, view={"indexes": INDEXES})
    with running(document, tmp_path_factory.mktemp("survivors"), nodes=NODES) as started:
        yield started


class Faults:
    """Cause one fault at a time, under reads and writes that must all succeed."""

    def __init__(self, system: System, producing: Producing, bootstrap: str) -> None:
        self._system, self._producing, self._bootstrap = system, producing, bootstrap
        self.log: Sequence[LogRecord] = ()
        """The records of the topic after the last fault."""

    @contextmanager
    def on_node(self, ordinal: int, outcome: str) -> Iterator[None]:
        """Read and write during the block; then check every read, once all replicas of all nodes have caught up."""
        wait_until_well(self._system, NODES)
        readers = Readers([self._system.url(node) for node in range(NODES)], self._producing)
        queries = Queries(readers)
        with self._producing.going_on(), readers.reading() as seen, queries.going_on():
            with readers.around(self._system.url(ordinal)):
                began = time.monotonic()
                yield
            wait_until_well(self._system, NODES)
            eventually("each query was asked", lambda: queries.asked.keys() == QUERIES.keys())
        report(outcome, seen, began)
        records = topics.records(self._bootstrap, TOPIC)
        self.log = [record for record in records if (record.key or b"").decode() not in ROWS]
        assert_all_right(seen, self.log)
        assert queries.failed == []


@pytest.fixture
def faults(kafka: Any, system: System, producing: Producing) -> Faults:
    return Faults(system, producing, kafka.bootstrap)


def test_no_read_fails_when_a_node_is_killed(system: System, faults: Faults) -> None:
    """After SIGKILL of serve and ingest the standby replicas answer, strong reads too, and the node returns with its rows."""
    with faults.on_node(0, "killed"):
        end(system, 0, signal.SIGKILL)


def test_no_read_fails_while_a_node_hangs(system: System, faults: Faults) -> None:
    """Other nodes answer while a node keeps its connections open and sends nothing; then the node answers again."""
    with faults.on_node(1, "hung"):
        signal_to(system, 1, signal.SIGSTOP)
        try:
            time.sleep(HANGS_SECONDS)
        finally:
            signal_to(system, 1, signal.SIGCONT)
        eventually("the node answers again", lambda: answers(system.url(1)))


def test_no_read_fails_while_a_node_restarts(system: System, faults: Faults) -> None:
    """After SIGTERM, as an update sends it, a node answers the open requests, and has all its replicas afterwards."""
    with faults.on_node(2, "restarted"):
        end(system, 2, signal.SIGTERM)


def test_wiped_node_answers_no_key_as_missing(system: System, producing: Producing, faults: Faults) -> None:
    """A node with an empty disk answers no key as missing, and rebuilds its replicas from the topic."""
    with faults.on_node(0, "wiped"):
        wipe(system, 0)

    newest = {record.key: record.value for record in faults.log}
    assigned = [replica["partition"] for replica in system.status(0)["partitions"]]
    assert len(assigned) == 2 * PARTITIONS / NODES
    for key, partition in producing.partition_of.items():
        if partition in assigned:
            answer = system.get(f"/v1/keys/{key}?route=local&consistency=strong")
            assert (answer.status_code, answer.content) == (200, newest[key.encode()])


def assert_all_right(seen: Seen, log: Sequence[LogRecord]) -> None:
    assert seen.failed == []
    assert seen.wrong(log) == []
    assert {answer.how for answer in seen.answers} == {
        "kept",
        "new",
        "client",
        "session",
        "strong",
        "at-least",
    }


def report(what: str, seen: Seen, since: float) -> None:
    """Print how long reads take; the benchmark, not this test, judges it."""
    for how in (("kept", "new"), ("client", "session"), ("strong",), ("at-least",)):
        if ms := seen.ms(*how, since=since):
            p50, p99 = quantile(ms, 0.5), quantile(ms, 0.99)
            print(
                f"{what}, {' and '.join(how)}: {len(ms)} reads, p50 {p50:.1f} p99 {p99:.0f} max {ms[-1]:.0f} ms"
            )
