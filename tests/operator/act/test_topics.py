"""Read partition counts from a real Kafka, and from addresses without one."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from queryable_app.config.kafka_settings import KafkaConnection
from queryable_app.platform.kafka_clients import client_arguments
from queryable_operator.act import isolated_calls, topics
from queryable_operator.act.topics import Topics
from queryable_operator.spec.observed import (
    KafkaSettingsInvalid,
    KafkaUnreachable,
    TopicFound,
    TopicMissing,
    TopicObservation,
)
from tests.support.kafka import KafkaForTests, embedded_kafka, kafka_with_listener, silent_address, with_admin
from tests.support.socket_server import SocketServer
from tests.support.waiting import eventually

T = TypeVar("T")


def _seen(bootstrap: str, topic: str, namespace: str = "shop", **config: str) -> TopicObservation:
    async def look() -> TopicObservation:
        return await Topics().seen(
            namespace, bootstrap, {n.replace("_", "."): v for n, v in config.items()}, topic
        )

    return asyncio.run(look())


def test_topic_has_partitions(kafka: KafkaForTests) -> None:
    """The count is the one that the topic was created with."""
    kafka.create_topic("operator-found", 3)
    assert _seen(kafka.bootstrap, "operator-found") == TopicFound(3)


def test_missing_topic_is_not_created(tmp_path: Path) -> None:
    """A look-up does not create the topic, also if the broker creates topics automatically."""
    with embedded_kafka(tmp_path, lambda _: {"auto.create.topics.enable": "true"}) as eager:
        assert _seen(eager.bootstrap, "operator-missing") == TopicMissing()
        eager.create_topic("later", 1)  # topics are made in turn: one that was to be made before is there now
        assert with_admin(eager, lambda admin: admin.list_topics()) == ["later"]


def test_invalid_topic_name_is_missing(kafka: KafkaForTests) -> None:
    """The schema refuses such a name, and so does Kafka."""
    assert _seen(kafka.bootstrap, "what is/this") == TopicMissing()


def test_unreachable_kafka_is_named() -> None:
    """The reason contains the address."""
    seen = _seen("127.0.0.1:1", "users")
    assert isinstance(seen, KafkaUnreachable)
    assert "127.0.0.1:1" in seen.reason


def test_unknown_host_is_unreachable() -> None:
    """No DNS server knows the name."""
    assert isinstance(_seen("nowhere.invalid:9092", "users"), KafkaUnreachable)


def _resolve_only(monkeypatch: pytest.MonkeyPatch, known: str) -> None:
    """Replace the name servers by those of a cluster with one Service."""

    def resolve(host: str, port: int, *options: int) -> Any:
        if host != known:
            raise socket.gaierror(socket.EAI_NONAME, f"{host} is not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr("queryable_operator.act.resolver.socket.getaddrinfo", resolve)


@pytest.fixture(scope="module")
def advertised_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Return the port of a Kafka that advertises `kafka` to its clients, as one behind a Service does."""
    directory = tmp_path_factory.mktemp("service")
    with kafka_with_listener(directory, "SERVICE", "PLAINTEXT", host="kafka") as (broker, port):
        broker.create_topic("users", 2)
        yield port


def test_short_name_is_of_the_resources_namespace(
    advertised_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bootstrap address without a namespace, and the names that brokers advertise, mean Services beside the resource."""
    _resolve_only(monkeypatch, "kafka.shop.svc.cluster.local.")
    address = f"kafka:{advertised_port}"
    assert _seen(address, "users", namespace="shop") == TopicFound(2)
    assert isinstance(_seen(address, "users", namespace="queryable-topics"), KafkaUnreachable)


def test_advertised_name_is_of_the_resources_namespace(
    advertised_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A view in another namespace reaches the bootstrap address and not the advertised one, as its nodes do."""
    _resolve_only(monkeypatch, "kafka.shop.svc.cluster.local.")
    address = f"kafka.shop:{advertised_port}"
    assert isinstance(_seen(address, "users", namespace="other"), KafkaUnreachable)
    assert _seen(address, "users", namespace="shop") == TopicFound(2)


def test_blocking_settings_do_not_block_other_views(
    kafka: KafkaForTests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one resource's settings block a look-up, other look-ups succeed, and its Kafka is unreachable."""
    kafka.create_topic("operator-beside", 1)
    monkeypatch.setattr(topics, "_LOOK_SECONDS", 0.5)
    monkeypatch.setattr(isolated_calls, "_CANCEL_SECONDS", 0.1)
    blocked, goes_on, attempts = threading.Event(), threading.Event(), []

    def made(connection: KafkaConnection) -> dict[str, Any]:
        if connection.arguments["bootstrap_servers"] == ["blocks:9092"]:
            attempts.append(connection)
            blocked.set()
            goes_on.wait(60)
        return client_arguments(connection)

    monkeypatch.setattr(topics, "client_arguments", made)

    async def look() -> list[TopicObservation]:
        now = 0.0
        shared = Topics(clock=lambda: now)
        blocks = asyncio.create_task(shared.seen("shop", "blocks:9092", {}, "users"))
        await asyncio.to_thread(blocked.wait, 60)
        monkeypatch.setattr(topics, "_LOOK_SECONDS", 30.0)
        assert await shared.seen("shop", kafka.bootstrap, {}, "operator-beside") == TopicFound(1)
        seen = [await blocks]
        for now in (100.0, 1000.0):  # noqa: B007  (the clock reads it)
            seen.append(await shared.seen("shop", "blocks:9092", {}, "users"))
        return seen

    try:
        assert set(map(type, asyncio.run(look()))) == {KafkaUnreachable}
    finally:
        goes_on.set()
    assert len(attempts) == 1


def test_hanging_broker_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look-up ends at its limit and leaves no thread behind."""
    monkeypatch.setattr(topics, "_LOOK_SECONDS", 0.5)
    threads = threading.active_count()
    with silent_address() as bootstrap:
        seen = _seen(bootstrap, "users")
    assert isinstance(seen, KafkaUnreachable)
    eventually("its thread has ended", lambda: threading.active_count() <= threads)


def test_other_server_is_unreachable() -> None:
    """An address that does not speak Kafka is no defect of the operator."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer(connection: socket.socket) -> None:
        request = connection.recv(1000)
        connection.sendall(b"\0\0\0\x0a" + request[8:12] + b"\0\0\xff\xff\xff\x7f")

    with SocketServer(listener, answer):
        seen = _seen(f"127.0.0.1:{listener.getsockname()[1]}", "users")
    assert isinstance(seen, KafkaUnreachable)


def test_invalid_settings_are_named_without_values() -> None:
    """A mistyped password does not appear in status."""
    seen = _seen(
        "127.0.0.1:1",
        "users",
        security_protocol="SASL_SSL",
        sasl_mechanism="PLAIN",
        sasl_jaas_config="hunter2",
    )
    assert isinstance(seen, KafkaSettingsInvalid)
    assert "sasl.jaas.config" in seen.reason
    assert "hunter2" not in seen.reason


def test_invalid_certificate_is_an_invalid_setting() -> None:
    """An invalid certificate makes the settings invalid, not Kafka unreachable."""
    config = {"ssl_truststore_type": "PEM", "ssl_truststore_certificates": "rubbish"}
    seen = _seen("127.0.0.1:1", "users", security_protocol="SSL", **config)
    assert isinstance(seen, KafkaSettingsInvalid)
    assert "certificates" in seen.reason


def test_file_setting_is_refused(tmp_path: Path) -> None:
    """A setting that names a file is refused by name and never opened: reading a pipe would not end."""
    pipe = tmp_path / "ca.pem"
    os.mkfifo(pipe)
    config = {"ssl_truststore_type": "PEM", "ssl_truststore_location": str(pipe)}
    seen = _seen("127.0.0.1:1", "users", security_protocol="SSL", **config)
    assert isinstance(seen, KafkaSettingsInvalid)
    assert "ssl.truststore.location" in seen.reason


def test_tls_to_a_plain_broker_is_unreachable(kafka: KafkaForTests, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look-up ends at its limit."""
    monkeypatch.setattr(topics, "_LOOK_SECONDS", 2.0)
    assert isinstance(_seen(kafka.bootstrap, "users", security_protocol="SSL"), KafkaUnreachable)


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record each connection."""
    made: list[str] = []

    def counted(kafka: KafkaConnection) -> dict[str, Any]:
        made.append(kafka.arguments["security_protocol"])
        return client_arguments(kafka)

    monkeypatch.setattr("queryable_operator.act.topics.client_arguments", counted)
    return made


def test_many_resources_share_one_connection(kafka: KafkaForTests, connections: list[str]) -> None:
    """A hundred resources with the same settings cost at most two connections."""
    kafka.create_topic("operator-shared", 2)

    async def look() -> list[TopicObservation]:
        shared = Topics()
        wanted = ["operator-shared", *(f"operator-none-{n}" for n in range(99))]
        return await asyncio.gather(*(shared.seen("shop", kafka.bootstrap, {}, topic) for topic in wanted))

    first, *others = asyncio.run(look())
    assert first == TopicFound(2)
    assert set(map(type, others)) == {TopicMissing}
    assert len(connections) <= 2


@pytest.mark.parametrize(
    ("topic", "at", "looks"),
    [("operator-believed", (0.0, 9.0, 11.0, 29.0, 31.0), 2), ("operator-none", (0.0, 9.0, 11.0, 19.0), 2)],
)
def test_result_is_cached(
    kafka: KafkaForTests, connections: list[str], topic: str, at: tuple[float, ...], looks: int
) -> None:
    """A found topic is looked up again after half a minute, a missing one after ten seconds."""
    kafka.create_topic("operator-believed", 1)

    async def look() -> None:
        moment = 0.0
        cached = Topics(clock=lambda: moment)
        for now in at:
            moment = now
            await cached.seen("shop", kafka.bootstrap, {}, topic)

    asyncio.run(look())
    assert len(connections) == looks


def test_cancelled_pass_does_not_end_a_shared_look_up(kafka: KafkaForTests) -> None:
    """Another pass that waits for the look-up gets its result."""
    kafka.create_topic("operator-given-up", 1)

    async def look() -> TopicObservation:
        shared = Topics()
        first = asyncio.create_task(shared.seen("shop", kafka.bootstrap, {}, "operator-given-up"))
        await asyncio.sleep(0)
        second = asyncio.create_task(shared.seen("shop", kafka.bootstrap, {}, "operator-given-up"))
        await asyncio.sleep(0)
        first.cancel()
        return await second

    assert asyncio.run(look()) == TopicFound(1)
