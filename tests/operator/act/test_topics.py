"""Topics against a real Kafka, and against what is none."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from queryable_app.config.kafka_settings import KafkaConnection
from queryable_app.local.processes import free_ports
from queryable_app.platform.kafka_clients import client_arguments
from queryable_operator.act import isolated_calls, topics
from queryable_operator.act.topics import CleanupResult, Topics
from queryable_operator.spec import names
from queryable_operator.spec.observed import (
    KafkaSettingsInvalid,
    KafkaUnreachable,
    TopicFound,
    TopicMissing,
    TopicObservation,
)
from queryable_operator.spec.resource import Identity
from tests.support.kafka import KafkaForTests, embedded_kafka

T = TypeVar("T")


def _seen(bootstrap: str, topic: str, namespace: str = "shop", **config: str) -> TopicObservation:
    async def look() -> TopicObservation:
        return await Topics().seen(
            namespace, bootstrap, {n.replace("_", "."): v for n, v in config.items()}, topic
        )

    return asyncio.run(look())


def _admin(kafka: KafkaForTests, use: Callable[[AIOKafkaAdminClient], Coroutine[Any, Any, T]]) -> T:
    async def used() -> T:
        admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
        await admin.start()
        try:
            return await use(admin)
        finally:
            await admin.close()

    return asyncio.run(used())


@contextmanager
def _silent() -> Iterator[str]:
    """An address that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_a_topic_has_partitions(kafka: KafkaForTests) -> None:
    """As many as it was made with."""
    kafka.create_topic("operator-found", 3)
    assert _seen(kafka.bootstrap, "operator-found") == TopicFound(3)


def test_a_topic_that_is_missing_stays_so(tmp_path: Path) -> None:
    """Looking for it does not make it, also where the broker makes topics that are asked for."""
    with embedded_kafka(tmp_path, lambda _: {"auto.create.topics.enable": "true"}) as eager:
        assert _seen(eager.bootstrap, "operator-missing") == TopicMissing()
        eager.create_topic("later", 1)  # topics are made in turn: one that was to be made before is there now
        assert _admin(eager, lambda admin: admin.list_topics()) == ["later"]


def test_a_name_that_is_none_is_missing(kafka: KafkaForTests) -> None:
    """The schema refuses it; Kafka does too."""
    assert _seen(kafka.bootstrap, "what is/this") == TopicMissing()


def test_nobody_there_is_away() -> None:
    """The reason names the address."""
    seen = _seen("127.0.0.1:1", "users")
    assert isinstance(seen, KafkaUnreachable)
    assert "127.0.0.1:1" in seen.reason


def test_a_name_that_is_not_known_is_away() -> None:
    """No DNS server knows it."""
    assert isinstance(_seen("nowhere.invalid:9092", "users"), KafkaUnreachable)


def _resolve_only(monkeypatch: pytest.MonkeyPatch, known: str) -> None:
    """The name servers of a cluster in which there is one Service."""

    def resolve(host: str, port: int, *options: int) -> Any:
        if host != known:
            raise socket.gaierror(socket.EAI_NONAME, f"{host} is not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr("queryable_operator.act.resolver.socket.getaddrinfo", resolve)


@pytest.fixture(scope="module")
def advertised_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Return the port of a Kafka that advertises `kafka` to its clients, as one behind a Service does."""
    (port,) = free_ports(1)

    def settings(broker: KafkaForTests) -> Mapping[str, str]:
        own = f"PLAINTEXT://{broker.bootstrap}"
        controller = f"CONTROLLER://127.0.0.1:{broker.controller_port}"
        return {
            "listeners": f"{own},SERVICE://127.0.0.1:{port},{controller}",
            "advertised.listeners": f"{own},SERVICE://kafka:{port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SERVICE:PLAINTEXT,CONTROLLER:PLAINTEXT",
        }

    with embedded_kafka(tmp_path_factory.mktemp("service"), settings) as broker:
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
    """A view of another namespace reaches the bootstrap address and not what the broker advertises, as its nodes do."""
    _resolve_only(monkeypatch, "kafka.shop.svc.cluster.local.")
    address = f"kafka.shop:{advertised_port}"
    assert isinstance(_seen(address, "users", namespace="other"), KafkaUnreachable)
    assert _seen(address, "users", namespace="shop") == TopicFound(2)


def test_view_that_blocks_its_look_holds_up_no_other(
    kafka: KafkaForTests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever does not end in the settings of one resource, others are looked at meanwhile, and it is away."""
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


def test_a_broker_that_hangs_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for longer than was said, and no thread is left behind."""
    monkeypatch.setattr(topics, "_LOOK_SECONDS", 0.5)
    threads = threading.active_count()
    with _silent() as bootstrap:
        seen = _seen(bootstrap, "users")
    assert isinstance(seen, KafkaUnreachable)
    assert threading.active_count() <= threads


def test_address_that_answers_nonsense_is_away() -> None:
    """A resource may name anything that listens; what does not speak Kafka is no defect of the operator."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        request = connection.recv(1000)
                        connection.sendall(b"\0\0\0\x0a" + request[8:12] + b"\0\0\xff\xff\xff\x7f")

        threading.Thread(target=answer, daemon=True).start()
        seen = _seen(f"127.0.0.1:{server.getsockname()[1]}", "users")
        server.shutdown(socket.SHUT_RDWR)
    assert isinstance(seen, KafkaUnreachable)


def test_settings_that_cannot_be_followed_are_named_without_their_values() -> None:
    """A password that was mistyped does not stand in status."""
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


def test_a_certificate_that_is_none_is_a_wrong_setting() -> None:
    """Not a Kafka that is away."""
    config = {"ssl_truststore_type": "PEM", "ssl_truststore_certificates": "rubbish"}
    seen = _seen("127.0.0.1:1", "users", security_protocol="SSL", **config)
    assert isinstance(seen, KafkaSettingsInvalid)
    assert "certificates" in seen.reason


def test_pipe_in_the_place_of_a_certificate_is_a_wrong_setting(tmp_path: Path) -> None:
    """It is refused by its name and never opened: reading it would not end. That holds for settings of the Secret, too."""
    pipe = tmp_path / "ca.pem"
    os.mkfifo(pipe)
    config = {"ssl_truststore_type": "PEM", "ssl_truststore_location": str(pipe)}
    seen = _seen("127.0.0.1:1", "users", security_protocol="SSL", **config)
    assert isinstance(seen, KafkaSettingsInvalid)
    assert "ssl.truststore.location" in seen.reason


def test_plain_text_to_a_broker_that_speaks_tls_ends(
    kafka: KafkaForTests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other way round: TLS to a broker without it is away, in time."""
    monkeypatch.setattr(topics, "_LOOK_SECONDS", 2.0)
    assert isinstance(_seen(kafka.bootstrap, "users", security_protocol="SSL"), KafkaUnreachable)


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each that was made."""
    made: list[str] = []

    def counted(kafka: KafkaConnection) -> dict[str, Any]:
        made.append(kafka.arguments["security_protocol"])
        return client_arguments(kafka)

    monkeypatch.setattr("queryable_operator.act.topics.client_arguments", counted)
    return made


def test_many_resources_share_one_look(kafka: KafkaForTests, connections: list[str]) -> None:
    """A hundred that reach Kafka in the same way cost a connection or two."""
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
def test_an_answer_is_believed_for_a_while(
    kafka: KafkaForTests, connections: list[str], topic: str, at: tuple[float, ...], looks: int
) -> None:
    """A topic that was found is asked for again after half a minute, one that was missing after ten seconds."""
    kafka.create_topic("operator-believed", 1)

    async def look() -> None:
        moment = 0.0
        believed = Topics(clock=lambda: moment)
        for now in at:
            moment = now
            await believed.seen("shop", kafka.bootstrap, {}, topic)

    asyncio.run(look())
    assert len(connections) == looks


def test_one_who_gives_up_ends_nobody_elses_look(kafka: KafkaForTests) -> None:
    """A round that is cancelled leaves the look that others wait for."""
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


def _leave_behind(kafka: KafkaForTests, *applications: str) -> None:
    """What nodes leave: a group's positions, and a dead-letter topic."""

    async def commit() -> None:
        for application in applications:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=kafka.bootstrap, group_id=application, enable_auto_commit=False
            )
            await consumer.start()
            where = TopicPartition("operator-cleaned", 0)
            consumer.assign([where])
            await consumer.commit({where: 0})
            await consumer.stop()

    for application in applications:
        kafka.create_topic(application + names.DEAD_LETTER_SUFFIX, 1)
    asyncio.run(commit())


def _left(kafka: KafkaForTests, *applications: str) -> set[str]:
    async def left(admin: AIOKafkaAdminClient) -> set[str]:
        groups = [group for group, *_ in await admin.list_consumer_groups()]
        return {name for name in [*groups, *await admin.list_topics()] if name.startswith(applications)}

    return _admin(kafka, left)


def _identity(namespace: str, view: str, uid: str = "0b8a3f3e-6a7e-4a43-8f0a-6f1d9a6f3c51") -> Identity:
    return Identity(namespace, view, uid, 1, deleting=True)


def _clean(bootstrap: str, identity: Identity, **config: str) -> CleanupResult:
    return asyncio.run(Topics().clean(identity, bootstrap, config))


def test_everything_of_every_revision_is_cleaned(kafka: KafkaForTests) -> None:
    """And nothing of another view, whose name may begin as this one's does."""
    kafka.create_topic("operator-cleaned", 1)
    ours = [names.application_id("clean", "users", revision, "0b8a3f3e-6a7e-4a43") for revision in (1, 27)]
    others = ["clean.users-r1.r1-0b8a3f3e6a7e", "clean.users2.r1-0b8a3f3e6a7e", "other.users.r1-0b8a3f3e6a7e"]
    _leave_behind(kafka, *ours, *others, "clean.users.rubbish-0b8a3f3e6a7e")
    before = _left(kafka, "clean.users", "other.users")

    assert [_clean(kafka.bootstrap, _identity("clean", "users")) for _ in range(2)] == [CleanupResult()] * 2
    assert _left(kafka, *ours) == set()
    kept = _left(kafka, "clean.users", "other.users")
    assert before - kept == {name for one in ours for name in (one, one + names.DEAD_LETTER_SUFFIX)}
    assert len(kept) == 8


def test_view_of_another_cluster_keeps_what_it_has(kafka: KafkaForTests) -> None:
    """Two clusters on one Kafka with a view of one name: deleting one takes nothing of the other's."""
    kafka.create_topic("operator-cleaned", 1)
    here, there = (
        _identity("twice", "users"),
        _identity("twice", "users", "9d2c4c51-0000-4000-8000-000000000000"),
    )
    _leave_behind(kafka, *(names.application_id("twice", "users", 1, one.uid) for one in (here, there)))

    assert _clean(kafka.bootstrap, here) == CleanupResult()
    theirs = names.application_id("twice", "users", 1, there.uid)
    assert _left(kafka, "twice.users") == {theirs, theirs + names.DEAD_LETTER_SUFFIX}


def test_what_an_earlier_release_left_is_named_and_stays(kafka: KafkaForTests) -> None:
    """Its name does not say in which cluster its view is."""
    kafka.create_topic("operator-cleaned", 1)
    _leave_behind(kafka, "early.users.r1")
    left = ("early.users.r1", "early.users.r1.dead-letter")

    assert _clean(kafka.bootstrap, _identity("early", "users")) == CleanupResult(unproven=left)
    assert _left(kafka, "early.users") == set(left)


def test_a_group_that_is_in_use_says_why_it_stays(kafka: KafkaForTests) -> None:
    """Somebody reads under the application's name: it is told, and tried again."""
    kafka.create_topic("operator-in-use", 1)

    identity = _identity("use", "users")
    group = names.application_id("use", "users", 1, identity.uid)

    async def clean() -> CleanupResult:
        consumer = AIOKafkaConsumer("operator-in-use", bootstrap_servers=kafka.bootstrap, group_id=group)
        await consumer.start()
        try:
            return await Topics().clean(identity, kafka.bootstrap, {})
        finally:
            await consumer.stop()

    assert group in str(asyncio.run(clean()).refused)


def test_cleaning_where_nobody_is_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """And ends, also where somebody hangs."""
    monkeypatch.setattr(topics, "_CLEAN_SECONDS", 0.5)

    def refused(bootstrap: str, **config: str) -> str:
        config = {name.replace("_", "."): value for name, value in config.items()}
        return str(_clean(bootstrap, _identity("a", "v"), **config).refused)

    assert "127.0.0.1:1" in refused("127.0.0.1:1")
    with _silent() as bootstrap:
        assert "does not answer in time" in refused(bootstrap)
    assert "security.protocol" in refused("127.0.0.1:1", security_protocol="hunter2")


@pytest.mark.parametrize(
    ("text", "ours"),
    [
        ("a.v.r1-0b8a3f3e6a7e", True),
        ("a.v.r1", False),
        ("a.v.r1-", False),
        ("a.v.r1-0b8a3f3e6a7f", False),
        ("a.v.r0-0b8a3f3e6a7e", False),
        ("a.v.r-0b8a3f3e6a7e", False),
        ("a.v.1-0b8a3f3e6a7e", False),
        ("a.v-0b8a3f3e6a7e", False),
        ("b.a.v.r1-0b8a3f3e6a7e", False),
        ("", False),
    ],
)
def test_an_application_is_known_by_its_whole_name(text: str, ours: bool) -> None:
    """Nothing else is ever deleted in Kafka."""
    assert names.is_application_of(text, "a", "v", "0b8a3f3e-6a7e-4a43-8f0a-6f1d9a6f3c51") is ours
