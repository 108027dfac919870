"""Test the deletion of what a view left in Kafka."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from queryable_operator.act import topics
from queryable_operator.act.topics import CleanupResult, Topics
from queryable_operator.spec import names
from queryable_operator.spec.resource import Identity
from tests.support.kafka import KafkaForTests, silent_address, with_admin


def _leave_behind(kafka: KafkaForTests, *applications: str) -> None:
    """Create what a revision leaves: a group with offsets, a dead-letter topic, and an internal topic."""

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
        kafka.create_topic(names.internal_topic(application), 1)
    asyncio.run(commit())


def _left(kafka: KafkaForTests, *applications: str) -> set[str]:
    async def left(admin: AIOKafkaAdminClient) -> set[str]:
        groups = [group for group, *_ in await admin.list_consumer_groups()]
        return {name for name in [*groups, *await admin.list_topics()] if name.startswith(applications)}

    return with_admin(kafka, left)


def _names_of(application: str) -> set[str]:
    return {application, application + names.DEAD_LETTER_SUFFIX, names.internal_topic(application)}


def _identity(namespace: str, view: str, uid: str = "0b8a3f3e-6a7e-4a43-8f0a-6f1d9a6f3c51") -> Identity:
    return Identity(namespace, view, uid, 1, deleting=True)


def _clean(bootstrap: str, identity: Identity, **config: str) -> CleanupResult:
    return asyncio.run(Topics().clean(identity, bootstrap, config))


def test_cleanup_deletes_everything_of_every_revision(kafka: KafkaForTests) -> None:
    """Groups and topics of a view with a similar name stay."""
    kafka.create_topic("operator-cleaned", 1)
    ours = [names.application_id("clean", "users", revision, "0b8a3f3e-6a7e-4a43") for revision in (1, 27)]
    others = ["clean.users-r1.r1-0b8a3f3e6a7e", "clean.users2.r1-0b8a3f3e6a7e", "other.users.r1-0b8a3f3e6a7e"]
    _leave_behind(kafka, *ours, *others, "clean.users.rubbish-0b8a3f3e6a7e")
    before = _left(kafka, "clean.users", "other.users")

    assert [_clean(kafka.bootstrap, _identity("clean", "users")) for _ in range(2)] == [CleanupResult()] * 2
    assert _left(kafka, *ours) == set()
    remaining = _left(kafka, "clean.users", "other.users")
    assert before - remaining == {name for one in ours for name in _names_of(one)}
    assert len(remaining) == 12


def test_internal_topic_of_one_revision_is_deleted(kafka: KafkaForTests) -> None:
    """The deletion of a retired revision's internal topic leaves everything else, and may be repeated."""
    one, other = (names.application_id("one", "users", revision, "0b8a3f3e-6a7e-4a43") for revision in (1, 2))
    kafka.create_topic("operator-cleaned", 1)
    _leave_behind(kafka, one, other)
    topic = names.internal_topic(one)

    for _ in range(2):
        assert asyncio.run(Topics().delete("one", kafka.bootstrap, {}, topic)) == CleanupResult()
    assert _left(kafka, "one.users") == (_names_of(one) | _names_of(other)) - {topic}


def test_cleanup_keeps_the_view_of_another_cluster(kafka: KafkaForTests) -> None:
    """Two clusters share a Kafka and have views with one name: deleting one keeps the other's groups and topics."""
    kafka.create_topic("operator-cleaned", 1)
    here, there = (
        _identity("twice", "users"),
        _identity("twice", "users", "9d2c4c51-0000-4000-8000-000000000000"),
    )
    _leave_behind(kafka, *(names.application_id("twice", "users", 1, one.uid) for one in (here, there)))

    assert _clean(kafka.bootstrap, here) == CleanupResult()
    theirs = names.application_id("twice", "users", 1, there.uid)
    assert _left(kafka, "twice.users") == _names_of(theirs)


def test_cleanup_names_and_keeps_what_an_earlier_release_left(kafka: KafkaForTests) -> None:
    """The cleanup keeps and names groups and topics of an earlier release, since their names show no cluster."""
    kafka.create_topic("operator-cleaned", 1)
    _leave_behind(kafka, "early.users.r1")
    left = ("early.users.r1", "early.users.r1.dead-letter", "early.users.r1.rekey")

    assert _clean(kafka.bootstrap, _identity("early", "users")) == CleanupResult(unproven=left)
    assert _left(kafka, "early.users") == set(left)


def test_group_in_use_is_reported(kafka: KafkaForTests) -> None:
    """A group with a member cannot be deleted; the error names it."""
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


def test_cleanup_without_kafka_ends_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cleanup ends with a reason if Kafka is unreachable, or accepts connections and does not answer."""
    monkeypatch.setattr(topics, "_CLEAN_SECONDS", 0.5)

    def refused(bootstrap: str, **config: str) -> str:
        config = {name.replace("_", "."): value for name, value in config.items()}
        return str(_clean(bootstrap, _identity("a", "v"), **config).refused)

    assert "127.0.0.1:1" in refused("127.0.0.1:1")
    with silent_address() as bootstrap:
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
def test_application_id_is_matched_as_a_whole(text: str, ours: bool) -> None:
    """Nothing with another name is ever deleted in Kafka."""
    assert names.is_application_of(text, "a", "v", "0b8a3f3e-6a7e-4a43-8f0a-6f1d9a6f3c51") is ours
