"""Test that no read fails or is wrong while a node is killed, hangs, restarts or is wiped under reads and writes."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.integration import topics
from tests.integration.faults import answers, end, signal_to, wait_until_well, wipe
from tests.integration.readers import PARTITIONS, Producing, Readers, Seen, quantile
from tests.integration.system import System, resource, running
from tests.support.fold import LogRecord
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(400)  # three JVMs start, and one of them three times more

TOPIC = "survivors"
NODES = 3
HANGS_SECONDS = 5


@pytest.fixture(scope="module")
def producing(kafka: Any) -> Producing:
    return Producing(kafka.bootstrap, TOPIC)


@pytest.fixture(scope="module")
def system(kafka: Any, producing: Producing, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    document = resource(TOPIC, kafka.bootstrap, replicas=NODES, standbyReplicas=1)
    with running(document, tmp_path_factory.mktemp("survivors"), nodes=NODES) as started:
        yield started


@pytest.fixture
def readers(system: System, producing: Producing) -> Readers:
    """Wait until all replicas of all nodes have caught up, so that a fault affects one node alone."""
    wait_until_well(system, NODES)
    return Readers([system.url(node) for node in range(NODES)], producing)


def test_no_read_fails_when_a_node_is_killed(
    kafka: Any, system: System, producing: Producing, readers: Readers
) -> None:
    """After SIGKILL of serve and ingest the standby replicas answer, strong reads too, and the node returns with its rows."""
    with producing.going_on(), readers.reading() as seen:
        with readers.around(system.url(0)):
            began = time.monotonic()
            end(system, 0, signal.SIGKILL)
        wait_until_well(system, NODES)
    report("killed", seen, began)
    assert_all_right(seen, topics.records(kafka.bootstrap, TOPIC))


def test_no_read_fails_while_a_node_hangs(
    kafka: Any, system: System, producing: Producing, readers: Readers
) -> None:
    """Other nodes answer while a node keeps its connections open and sends nothing; then the node answers again."""
    with producing.going_on(), readers.reading() as seen:
        with readers.around(system.url(1)):
            began = time.monotonic()
            signal_to(system, 1, signal.SIGSTOP)
            try:
                time.sleep(HANGS_SECONDS)
            finally:
                signal_to(system, 1, signal.SIGCONT)
            eventually("the node answers again", lambda: answers(system.url(1)))
        wait_until_well(system, NODES)
    report("hung", seen, began)
    assert_all_right(seen, topics.records(kafka.bootstrap, TOPIC))


def test_no_read_fails_while_a_node_restarts(
    kafka: Any, system: System, producing: Producing, readers: Readers
) -> None:
    """After SIGTERM, as an update sends it, a node answers the open requests, and has all its replicas afterwards."""
    with producing.going_on(), readers.reading() as seen:
        with readers.around(system.url(2)):
            began = time.monotonic()
            end(system, 2, signal.SIGTERM)
        wait_until_well(system, NODES)
    report("restarted", seen, began)
    assert_all_right(seen, topics.records(kafka.bootstrap, TOPIC))


def test_wiped_node_answers_no_key_as_missing(
    kafka: Any, system: System, producing: Producing, readers: Readers
) -> None:
    """A node with an empty disk answers no key as missing, and rebuilds its replicas from the topic."""
    with producing.going_on(), readers.reading() as seen:
        with readers.around(system.url(0)):
            began = time.monotonic()
            wipe(system, 0)
        wait_until_well(system, NODES)
    report("wiped", seen, began)
    log = topics.records(kafka.bootstrap, TOPIC)
    assert_all_right(seen, log)

    newest = {record.key: record.value for record in log}
    held = [replica["partition"] for replica in system.status(0)["partitions"]]
    assert len(held) == 2 * PARTITIONS / NODES
    for key, partition in producing.partition_of.items():
        if partition in held:
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
