"""Describe the topic before ingest reads it, with Kafka's own client in Spark's JVM.

Every request has a deadline, so that an unreachable broker delays ingest for no longer than that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from py4j.protocol import Py4JJavaError

from queryable_app.contract import ObservedTopic
from queryable_app.ingest.java_classes import java_class, java_list, java_map
from queryable_app.platform.kafka_clients import KafkaUnavailable

_REQUEST_MS: Final = 3_000
WITHOUT_METRICS: Final = {"auto.include.jmx.reporter": "false", "enable.metrics.push": "false"}
"""Settings of every Kafka client: its metrics have no reader, and registering them costs CPU at every start."""

_MISSING: Final = "UnknownTopicOrPartitionException"
_EXISTS: Final = "TopicExistsException"
_UNSAID: Final = ("TopicAuthorizationException", _MISSING)
_CLEANUP_POLICY: Final = "cleanup.policy"


class KafkaAdmin:
    def __init__(self, jvm: Any, bootstrap_servers: str, config: Mapping[str, str]) -> None:
        self._jvm = jvm
        settings = {
            **WITHOUT_METRICS,
            **config,
            "bootstrap.servers": bootstrap_servers,
            "default.api.timeout.ms": str(_REQUEST_MS),
            "request.timeout.ms": str(_REQUEST_MS),
        }
        factory = java_class(jvm, "org.apache.kafka.clients.admin.AdminClient")
        try:
            self._client = factory.create(java_map(jvm, settings.items()))
        except Py4JJavaError as error:
            raise KafkaUnavailable(_reason(_root(error.java_exception))) from error

    def close(self) -> None:
        self._client.close()

    def identity(self, topic: str) -> tuple[str, int] | None:
        """Return the topic's id and number of partitions, or None if it does not exist. Cheap enough for polling."""
        names = java_list(self._jvm, [topic])
        try:
            described = self._get(self._client.describeTopics(names).allTopicNames()).get(topic)
            return described.topicId().toString(), described.partitions().size()
        except Py4JJavaError as error:
            if _cause(error).getClass().getSimpleName() == _MISSING:
                return None
            raise KafkaUnavailable(_reason(_cause(error))) from error

    def describe(self, topic: str, partitions: Collection[int]) -> ObservedTopic | None:
        """Return the topic with the offsets of those of `partitions` that it has, or None if it does not exist."""
        found = self.identity(topic)
        if found is None:
            return None
        id, count = found
        known = [partition for partition in partitions if partition < count]
        try:
            earliest = self._offsets(topic, known, self._spec("earliest"))
            latest = self._offsets(topic, known, self._spec("latest"))
        except Py4JJavaError as error:
            raise KafkaUnavailable(_reason(_cause(error))) from error
        return ObservedTopic(id, count, earliest, latest)

    def is_compacted(self, topic: str) -> bool:
        """Return whether the brokers compact the topic; also True if they do not say."""
        kind = java_class(self._jvm, "org.apache.kafka.common.config.ConfigResource")
        resource = kind(kind.Type.TOPIC, topic)
        resources = java_list(self._jvm, [resource])
        try:
            described = self._get(self._client.describeConfigs(resources).all()).get(resource)
        except Py4JJavaError as error:
            if _cause(error).getClass().getSimpleName() in _UNSAID:
                return True
            raise KafkaUnavailable(_reason(_cause(error))) from error
        policy = described.get(_CLEANUP_POLICY)
        return policy is None or policy.value() is None or "compact" in policy.value().split(",")

    def create(self, topic: str, partitions: int, config: Mapping[str, str]) -> None:
        """Create a topic with the brokers' default replication. An existing topic stays as it is."""
        optional = java_class(self._jvm, "java.util.Optional")
        wanted = java_class(self._jvm, "org.apache.kafka.clients.admin.NewTopic")(
            topic,
            optional.of(java_class(self._jvm, "java.lang.Integer").valueOf(partitions)),
            optional.empty(),
        )
        topics = java_list(self._jvm, [wanted.configs(java_map(self._jvm, config.items()))])
        try:
            self._get(self._client.createTopics(topics).all())
        except Py4JJavaError as error:
            if _cause(error).getClass().getSimpleName() != _EXISTS:
                raise KafkaUnavailable(_reason(_cause(error))) from error

    def delete(self, topic: str) -> None:
        """Delete a topic, if it exists."""
        try:
            self._get(self._client.deleteTopics(java_list(self._jvm, [topic])).all())
        except Py4JJavaError as error:
            if _cause(error).getClass().getSimpleName() != _MISSING:
                raise KafkaUnavailable(_reason(_cause(error))) from error

    def commit(self, group: str, topic: str, offsets: Sequence[int]) -> None:
        """Commit the next offset of each partition under a group without members."""
        place = java_class(self._jvm, "org.apache.kafka.clients.consumer.OffsetAndMetadata")
        places = (
            (topic_partition(self._jvm, topic, partition), place(offset))
            for partition, offset in enumerate(offsets)
        )
        positions = java_map(self._jvm, places)
        try:
            self._get(self._client.alterConsumerGroupOffsets(group, positions).all())
        except Py4JJavaError as error:
            raise KafkaUnavailable(_reason(_cause(error))) from error

    def _spec(self, which: str) -> Any:
        return getattr(java_class(self._jvm, "org.apache.kafka.clients.admin.OffsetSpec"), which)()

    def _offsets(self, topic: str, partitions: Collection[int], spec: Any) -> dict[int, int]:
        requested = java_map(
            self._jvm, ((topic_partition(self._jvm, topic, partition), spec) for partition in partitions)
        )
        options = java_class(self._jvm, "org.apache.kafka.clients.admin.ListOffsetsOptions")
        committed = options(java_class(self._jvm, "org.apache.kafka.common.IsolationLevel").READ_COMMITTED)
        found = self._get(self._client.listOffsets(requested, committed).all())
        return {entry.getKey().partition(): entry.getValue().offset() for entry in found.entrySet()}

    def _get(self, future: Any) -> Any:
        return future.get(
            2 * _REQUEST_MS, java_class(self._jvm, "java.util.concurrent.TimeUnit").MILLISECONDS
        )


def topic_partition(jvm: Any, topic: str, partition: int) -> Any:
    """Return Kafka's own object for a partition of a topic."""
    return java_class(jvm, "org.apache.kafka.common.TopicPartition")(topic, partition)


def _cause(error: Py4JJavaError) -> Any:
    return error.java_exception.getCause() or error.java_exception


def _root(cause: Any) -> Any:
    """Return the innermost cause; the causes around it only say that there is no client."""
    while (inner := cause.getCause()) is not None:
        cause = inner
    return cause


def _reason(cause: Any) -> str:
    return f"{cause.getClass().getSimpleName()}: {cause.getMessage()}"
