"""Read partition counts from Kafka, and delete what a view left there.

Resources with the same connection settings share one metadata request. A hundred of them cost one connection every half minute,
and an unreachable broker costs one wait. Names resolve as in the resource's namespace. Whatever a resource's settings can block
(certificates, name servers, an endless handshake) runs beside the operator's event loop, with a time limit.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaConnectionError, for_code
from aiokafka.protocol.admin import DeleteGroupsRequest
from aiokafka.protocol.metadata import MetadataRequest

from queryable_app.config.kafka_settings import KafkaConnection, KafkaSettingsError, kafka_connection
from queryable_app.platform.kafka_clients import client_arguments
from queryable_operator.act.isolated_calls import IsolatedCalls
from queryable_operator.act.resolver import NamespaceLoop, own_search_path, search_path
from queryable_operator.spec import names
from queryable_operator.spec.observed import (
    KafkaSettingsInvalid,
    KafkaUnreachable,
    TopicFound,
    TopicMissing,
    TopicObservation,
)
from queryable_operator.spec.resource import Identity

_LOOK_SECONDS: Final = 5.0
_CLEAN_SECONDS: Final = 15.0
_FOUND_SECONDS: Final = 30.0  # how long a result is reused
_NOT_FOUND_SECONDS: Final = 10.0
_UNUSED_SECONDS: Final = 300.0  # a topic that no resource asks for is dropped after this time

# error codes of the Kafka protocol
_UNKNOWN_TOPIC: Final = 3
_INVALID_TOPIC: Final = 17
_NOT_AUTHORIZED: Final = 29
_GROUP_UNKNOWN: Final = 69


@dataclass(slots=True)
class _Kafka:
    """Hold what is known through one set of connection settings."""

    connection: KafkaConnection
    calls: IsolatedCalls
    last_requested: dict[str, float] = field(default_factory=dict)  # by topic
    observations: dict[str, TopicObservation] = field(default_factory=dict)
    failure: KafkaUnreachable | KafkaSettingsInvalid | None = None
    at: float = float("-inf")
    look_task: asyncio.Task[None] | None = None

    def known(self, topic: str, now: float) -> TopicObservation | None:
        """Return the cached result, or None if a request is due."""
        age = now - self.at
        if self.failure is not None:
            return self.failure if age < _NOT_FOUND_SECONDS else None
        seen = self.observations.get(topic)
        return (
            seen if age < (_FOUND_SECONDS if isinstance(seen, TopicFound) else _NOT_FOUND_SECONDS) else None
        )


@dataclass(frozen=True, slots=True)
class CleanupResult:
    """Report the result of a Kafka cleanup."""

    refused: str | None = None
    """None: nothing is left that provably belongs to the resource."""

    unproven: tuple[str, ...] = ()
    """Groups and topics with names of earlier releases. They stay, since a view in another cluster may own them."""


class Topics:
    def __init__(
        self, cluster_domain: str = "cluster.local", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cluster_domain = cluster_domain
        self._clock = clock
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # our own sentence says what it would log
        self._kafkas: dict[str, _Kafka] = {}

    async def seen(
        self, namespace: str, bootstrap_servers: str, config: Mapping[str, str], topic: str
    ) -> TopicObservation:
        try:
            kafka = self._kafka(namespace, bootstrap_servers, config)
        except KafkaSettingsError as error:
            return KafkaSettingsInvalid(str(error))
        kafka.last_requested[topic] = self._clock()
        for _ in range(2):  # a request in progress may not include this topic
            if (seen := kafka.known(topic, self._clock())) is not None:
                return seen
            await self._look(kafka)
        return kafka.known(topic, self._clock()) or KafkaUnreachable("Kafka has not answered yet")

    async def clean(
        self, identity: Identity, bootstrap_servers: str, config: Mapping[str, str]
    ) -> CleanupResult:
        """Delete the groups, dead-letter topics and internal topics of all revisions of the resource, and nothing else."""

        async def clean(admin: Any) -> CleanupResult:
            return await _clean(admin, identity)

        return await self._clean_up(identity.namespace, bootstrap_servers, config, clean, _CLEAN_SECONDS)

    async def delete(
        self, namespace: str, bootstrap_servers: str, config: Mapping[str, str], topic: str
    ) -> CleanupResult:
        """Delete a topic. One that does not exist counts as deleted."""

        async def delete(admin: Any) -> CleanupResult:
            request = MetadataRequest([topic], allow_auto_topic_creation=False)
            (found,) = (await admin._send_request(request)).to_object()["topics"]
            if isinstance(_seen(found), TopicMissing):  # then the right to delete it is not needed
                return CleanupResult()
            return CleanupResult(await _delete_topics(admin, [topic]))

        return await self._clean_up(namespace, bootstrap_servers, config, delete, _LOOK_SECONDS)

    async def _clean_up(
        self,
        namespace: str,
        bootstrap_servers: str,
        config: Mapping[str, str],
        action: Callable[[Any], Awaitable[CleanupResult]],
        seconds: float,
    ) -> CleanupResult:
        try:
            kafka = self._kafka(namespace, bootstrap_servers, config)

            async def run() -> CleanupResult:
                async with _admin(kafka.connection) as admin:
                    return await action(admin)

            return await kafka.calls.run(run, seconds)
        except Exception as error:  # anything may answer at this address
            return CleanupResult(_reason(error, bootstrap_servers))

    def _kafka(self, namespace: str, bootstrap_servers: str, config: Mapping[str, str]) -> _Kafka:
        now = self._clock()
        for key, kafka in list(self._kafkas.items()):
            kafka.last_requested = {
                t: at for t, at in kafka.last_requested.items() if now - at < _UNUSED_SECONDS
            }
            if not kafka.last_requested and kafka.look_task is None and not kafka.calls.is_blocked:
                del self._kafkas[key]
        # A broker's advertised name means another broker in another namespace.
        key = hashlib.sha256(
            json.dumps([namespace, bootstrap_servers, dict(config)], sort_keys=True).encode()
        ).hexdigest()
        if key not in self._kafkas:
            connection = kafka_connection(bootstrap_servers, config)
            path = search_path(namespace, self._cluster_domain, own_search_path())
            self._kafkas[key] = _Kafka(connection, IsolatedCalls(lambda: NamespaceLoop(path)))
        return self._kafkas[key]

    async def _look(self, kafka: _Kafka) -> None:
        if kafka.look_task is None:
            kafka.look_task = asyncio.create_task(_look(kafka, self._clock))
        await asyncio.shield(kafka.look_task)


async def _look(kafka: _Kafka, clock: Callable[[], float]) -> None:
    """Request the metadata and store the result. Never raises."""
    topics = sorted(kafka.last_requested)

    async def look() -> dict[str, TopicObservation]:
        async with _admin(kafka.connection) as admin:
            # a metadata request must not create the topic
            answer = await admin._send_request(MetadataRequest(topics, allow_auto_topic_creation=False))
        return {observations["topic"]: _seen(observations) for observations in answer.to_object()["topics"]}

    try:
        kafka.observations = await kafka.calls.run(look, _LOOK_SECONDS)
        kafka.failure = None
    except KafkaSettingsError as error:
        kafka.failure = KafkaSettingsInvalid(str(error))
    except Exception as error:  # anything may answer at this address
        kafka.failure = KafkaUnreachable(
            _reason(error, ",".join(kafka.connection.arguments["bootstrap_servers"]))
        )
    finally:
        kafka.at, kafka.look_task = clock(), None


def _seen(observations: Mapping[str, Any]) -> TopicObservation:
    code = observations["error_code"]
    if code in (_UNKNOWN_TOPIC, _INVALID_TOPIC):
        return TopicMissing()
    if code == _NOT_AUTHORIZED:
        return KafkaSettingsInvalid("these credentials may not describe the topic")
    partitions = len(observations["partitions"])
    return (
        TopicFound(partitions)
        if partitions
        else KafkaUnreachable(f"the topic is not ready: {for_code(code).__name__}")
    )


async def _clean(admin: Any, identity: Identity) -> CleanupResult:
    def is_ours(application_id: str) -> bool:
        return names.is_application_of(application_id, identity.namespace, identity.name, identity.uid)

    def may_be_ours(application_id: str) -> bool:
        return names.is_shared_application_of(application_id, identity.namespace, identity.name)

    await _delete_groups(admin, await _groups(admin, is_ours))
    if (topics := await _own_topics(admin, is_ours)) and (refused := await _delete_topics(admin, topics)):
        return CleanupResult(refused)
    if left := await _groups(admin, is_ours) + await _own_topics(admin, is_ours):
        return CleanupResult(f"not deleted: {', '.join(sorted(left)[:5])}")
    unproven = await _groups(admin, may_be_ours) + await _own_topics(admin, may_be_ours)
    return CleanupResult(unproven=tuple(sorted(unproven)))


async def _delete_topics(admin: Any, topics: list[str]) -> str | None:
    """Delete topics. Return why one cannot be deleted."""
    answer = await admin.delete_topics(topics)
    for topic, code, *_ in answer.topic_error_codes:
        if code not in (0, _UNKNOWN_TOPIC):
            return f"the topic {topic} cannot be deleted: {for_code(code).__name__}"
    return None


async def _delete_groups(admin: Any, groups: list[str]) -> None:
    for group in groups:
        coordinator = await admin.find_coordinator(group)
        answer = await admin._send_request(DeleteGroupsRequest([group]), coordinator)
        for name, code in answer.results:
            if code not in (0, _GROUP_UNKNOWN):
                raise for_code(code)(f"the group {name} cannot be deleted")


async def _groups(admin: Any, wanted: Callable[[str], bool]) -> list[str]:
    return [group for group, *_ in await admin.list_consumer_groups() if wanted(group)]


async def _own_topics(admin: Any, wanted: Callable[[str], bool]) -> list[str]:
    """Return the dead-letter topics and internal topics of the wanted application ids."""
    return [
        topic
        for topic in await admin.list_topics()
        for suffix in (names.DEAD_LETTER_SUFFIX, names.REKEY_SUFFIX)
        if topic.endswith(suffix) and wanted(topic.removesuffix(suffix))
    ]


@asynccontextmanager
async def _admin(kafka: KafkaConnection) -> AsyncIterator[Any]:
    try:
        admin = AIOKafkaAdminClient(**client_arguments(kafka))
    except (OSError, ValueError) as error:  # includes OpenSSL's errors
        raise KafkaSettingsError(f"the certificates in the Kafka settings are invalid: {error}") from error
    try:
        await admin.start()
        yield admin
    finally:
        await admin.close()


def _reason(error: Exception, bootstrap_servers: str) -> str:
    """Describe an error without values of settings."""
    if isinstance(error, KafkaSettingsError):
        return str(error)
    if isinstance(error, TimeoutError):
        return f"Kafka at {bootstrap_servers} does not answer in time"
    if isinstance(error, KafkaConnectionError):
        return f"Kafka at {bootstrap_servers} is unreachable or rejects the connection settings"
    return f"Kafka at {bootstrap_servers}: {type(error).__name__}: {error}"[:300]
