"""Test a whole system in a network that has only IPv6: Kafka, nodes, clients and commands at ::1."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from queryable_app.client import QueryableTopic
from queryable_app.contract import NodeSettings
from queryable_app.placement.assignment import Placement
from queryable_app.platform.processes import free_ports
from queryable_operator.act.topics import Topics
from queryable_operator.spec.observed import TopicFound
from tests.integration import topics
from tests.integration.pods import Pod
from tests.integration.system import resource, running
from tests.support.kafka import KafkaForTests, embedded_kafka
from tests.support.waiting import eventually

TOPIC = "six"
KEYS = [f"key-{number:06d}" for number in range(150_000)]  # a replica of fewer is not copied


class KafkaOverIpv6(KafkaForTests):
    @property
    def bootstrap(self) -> str:
        return f"[::1]:{self._address.port}"


@pytest.fixture(scope="module")
def kafka6(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaForTests]:
    """Yield a broker that listens on ::1 only, and advertises it."""

    def settings(broker: KafkaForTests) -> Mapping[str, str]:
        controller = f"[::1]:{broker.controller_port}"
        return {
            "controller.quorum.voters": f"0@{controller}",
            "listeners": f"PLAINTEXT://{broker.bootstrap},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{broker.bootstrap}",
        }

    with embedded_kafka(tmp_path_factory.mktemp("kafka6"), settings, KafkaOverIpv6) as broker:
        yield broker


@contextmanager
def pod(directory: Path, bootstrap: str, placement: Placement, ordinal: int) -> Iterator[Pod]:
    """Run a node at its address of the placement."""
    directory.mkdir()
    spec = {"kafka": {"bootstrapServers": bootstrap}, "topic": TOPIC, "read": {"ingest": True}}
    (directory / "spec.json").write_text(json.dumps(spec))
    (directory / "token").write_text("between-nodes")
    (directory / "placement.json").write_text(placement.to_json())
    address = placement.addresses[ordinal]
    settings = NodeSettings(
        name=f"six-r1-{ordinal}",
        ordinal=ordinal,
        application_id="tests.six.r1",
        spec_path=str(directory / "spec.json"),
        bootstrap_servers=bootstrap,
        advertised_url=address,
        data_dir=str(directory / "data"),
        run_dir=str(directory / "run"),
        placement_path=str(directory / "placement.json"),
        internal_token_path=str(directory / "token"),
        cache_dir=os.environ.get("QT_CACHE_DIR", ""),
        http_host="::1",
        http_port=int(address.rpartition(":")[2]),
    )
    running = Pod(settings, directory)
    try:
        eventually(f"node {ordinal} is ready\n{running.logs()}", lambda: is_ready(running), 90)
        yield running
    finally:
        running.kill()


def is_ready(node: Pod) -> bool:
    return node.ingest_is("streaming") and node.http.get("/readyz").status_code == 200


def read(node: Pod, path: str) -> httpx.Response:
    """Return the answer of a read, for which a busy machine gets time."""
    answer = None

    def answered() -> bool:
        nonlocal answer
        answer = node.http.get(f"{path}?deadline-ms=10000")
        return answer.status_code == 200

    eventually(f"{path} is answered", answered)
    assert answer is not None
    return answer


def qtopic(*arguments: str) -> str:
    command = [sys.executable, "-m", "queryable_app.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_system_over_ipv6_only(kafka6: KafkaForTests, tmp_path: Path) -> None:
    """Records, reads, forwarded reads, a replica that is copied from a peer, writes, the Python client, the page and the
    commands work over ::1 alone."""
    topics.create(kafka6.bootstrap, TOPIC, 2)
    topics.produce(kafka6.bootstrap, TOPIC, [(key.encode(), b'"%b"' % key.encode()) for key in KEYS])
    addresses = tuple(f"http://[::1]:{port}" for port in free_ports(2))
    placement = Placement(1, "tests.six.r1", addresses, ((0, 1), (0,)), ((), ()))
    with (
        pod(tmp_path / "0", kafka6.bootstrap, placement, 0) as first,
        pod(tmp_path / "1", kafka6.bootstrap, placement, 1) as second,
    ):
        assert '"copied-from-peer"' in second.logs()
        for node in (first, second):
            answers = [read(node, f"/v1/keys/{key}") for key in KEYS[:20]]
            assert [answer.json() for answer in answers] == KEYS[:20]
            assert read(node, "/v1/count").json()["count"] == len(KEYS)
            assert "<html" in node.http.get("/", headers={"accept": "text/html"}).text
        assert {answer.headers["qt-hops"] for answer in answers} == {"0", "1"}

        url = addresses[1]
        with QueryableTopic(url, deadline_ms=30_000) as view:
            assert [row and row.value for row in view.multi_get(KEYS[:20])] == KEYS[:20]
            row = view.get("new", min_position=view.put("new", 1, deadline_ms=30_000).position)
            assert row is not None
            assert row.value == 1
        get_new = ("get", "new", "--url", url, "--deadline-ms", "30000")
        assert qtopic(*get_new).strip() == "1"
        assert "caught-up" in qtopic("status", "--url", url)
        qtopic("produce", "--topic", TOPIC, "--kafka", kafka6.bootstrap, "new", "2")
        eventually("the record is readable", lambda: qtopic(*get_new).strip() == "2")
        for node in (first, second):
            hosts = {
                c.laddr.ip
                for c in psutil.Process(node.serve.pid).net_connections("inet")
                if c.status == "LISTEN"
            }
            assert hosts == {"::1"}


def test_run_reads_from_a_kafka_over_ipv6(kafka6: KafkaForTests, tmp_path: Path) -> None:
    """`qtopic run` reads a topic from brokers that are at ::1 only."""
    topics.create(kafka6.bootstrap, "run-six", 2)
    topics.produce(kafka6.bootstrap, "run-six", [(b"a", b"1")])
    with running(resource("run-six", kafka6.bootstrap, read={"ingest": True}), tmp_path) as system:
        eventually("the record is readable", lambda: system.value("a") == 1)
        assert system.post("/v1/records", json={"key": "a", "value": 2}).status_code == 200
        eventually("the written record is readable", lambda: system.value("a") == 2)


def test_operator_reads_a_topic_over_ipv6(kafka6: KafkaForTests) -> None:
    """The operator finds a topic whose brokers are at ::1 only, as it does before it starts a view."""
    topics.create(kafka6.bootstrap, "seen-six", 3)
    assert asyncio.run(Topics().seen("shop", kafka6.bootstrap, {}, "seen-six")) == TopicFound(3)
