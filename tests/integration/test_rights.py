"""Test a Kafka that grants rights: what a node says when it lacks one, and that it continues when the right is granted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka.admin
import pytest

from queryable_app.wire.partitioners import partition_for
from tests.integration import topics
from tests.integration.system import System, resource, running
from tests.support.kafka import KafkaForTests, kafka_with_listener
from tests.support.waiting import eventually

acl: Any = confluent_kafka.admin  # which is not typed

USER, PASSWORD = "reader", "correct-horse-battery"
TOPIC = "orders"


@dataclass(frozen=True)
class Guarded:
    """A broker that refuses `reader` what it has no right to. The plain listener may do everything."""

    broker: KafkaForTests
    bootstrap: str

    def grant(self, topic: str, *operations: Any) -> None:
        name = (acl.ResourceType.TOPIC, topic, acl.ResourcePatternType.LITERAL)
        to, allow = (f"User:{USER}", "*"), acl.AclPermissionType.ALLOW
        acls = [acl.AclBinding(*name, *to, operation, allow) for operation in operations]
        admin = topics.admin(self.broker.bootstrap)
        for made in admin.create_acls(acls).values():
            made.result(20)

    def connection(self) -> dict[str, Any]:
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        return {
            "bootstrapServers": self.bootstrap,
            "config": {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": f'{module} required username="{USER}" password="{PASSWORD}";',
            },
        }


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    settings = {
        "listener.name.secure.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.secure.plain.sasl.jaas.config": f'{module} required user_{USER}="{PASSWORD}";',
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with kafka_with_listener(tmp_path / "kafka", "SECURE", "SASL_PLAINTEXT", settings=settings) as (
        broker,
        port,
    ):
        topics.create(broker.bootstrap, TOPIC, 2)
        yield Guarded(broker, f"127.0.0.1:{port}")


def test_dead_letters_wait_for_the_right_to_write_them(guarded: Guarded, tmp_path: Path) -> None:
    """Without a right on the dead letter topic its partition waits and status names the right; the other partition continues.
    Once it is granted, the partition continues by itself."""
    guarded.grant(TOPIC, acl.AclOperation.READ, acl.AclOperation.DESCRIBE)
    first, second = keys_of_partitions()
    kafka = guarded.broker.bootstrap
    topics.produce(kafka, TOPIC, [(first, b"1"), (second, b"1")])
    document = resource(TOPIC, "", kafka=guarded.connection(), onBadRecord="DeadLetter")
    with running(document, tmp_path / "run") as system:
        topics.produce(kafka, TOPIC, [(first, b"no json"), (first, b"2"), (second, b"2")])
        dead = str(system.status()["deadLetters"]["topic"])
        waits_for(system, f"Write on the topic {dead}")
        eventually("the other partition continues", lambda: system.value(second.decode()) == 2)
        assert system.value(first.decode()) == 1
        assert "dead-letter-waits" in system.node_logs()
        assert "qt_dead_letters_waiting 1.0" in system.get("/metrics").text

        guarded.grant(dead, acl.AclOperation.WRITE)
        waits_for(system, "the right Create")
        guarded.grant(dead, acl.AclOperation.CREATE)
        eventually("the partition continues", lambda: system.value(first.decode()) == 2, 60)
        assert system.status()["deadLetters"] == {"topic": dead, "written": {"whole": 1}, "waiting": {}}
    assert topics.ends(kafka, dead) == {0: 1}


def keys_of_partitions() -> tuple[bytes, bytes]:
    """Return a key of each of the two partitions."""
    keys = [b"k-%d" % number for number in range(20)]
    of_first = [key for key in keys if partition_for(key, "murmur2", 2) == 0]
    return of_first[0], next(key for key in keys if key not in of_first)


def waits_for(system: System, reason: str) -> None:
    def waits() -> bool:
        waiting = system.status()["deadLetters"]["waiting"]
        return waiting.keys() == {"0"} and reason in waiting["0"]["reason"]

    eventually(f"status names {reason!r}\n{system.status()['deadLetters']}\n{system.tail()}", waits, 60)
