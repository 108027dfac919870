"""What one machine asks Kafka: does a topic exist, make one."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any, Final

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code

_REQUEST_MS: Final = 10_000
_LEADERS_SECONDS: Final = 30
_ASK_AGAIN_SECONDS: Final = 0.1


class KafkaUnreachable(Exception):
    """Nothing at the address speaks Kafka; the message names the address."""


class TopicRefused(Exception):
    """The broker does not make such a topic; the message says why."""


def partitions_of(bootstrap: str, topic: str) -> int:
    """How many partitions the topic has; 0 while it does not exist or one of them has no leader."""
    return asyncio.run(_partitions_of(bootstrap, topic))


def create_topic(
    bootstrap: str, topic: str, partitions: int, config: Mapping[str, str] | None = None
) -> None:
    """Returns when every partition has a leader. A topic that exists already is left as it is."""
    asyncio.run(_create_topic(bootstrap, topic, partitions, dict(config or {})))


async def _partitions_of(bootstrap: str, topic: str) -> int:
    async with _Admin(bootstrap) as admin:
        return await _ready_partitions(admin, topic)


async def _create_topic(bootstrap: str, topic: str, partitions: int, config: dict[str, str]) -> None:
    async with _Admin(bootstrap) as admin:
        wanted = NewTopic(topic, partitions, replication_factor=1, topic_configs=config)
        answer = await admin.create_topics([wanted])
        for _, code, *message in answer.topic_errors:
            error = for_code(code)
            if code and error is not TopicAlreadyExistsError:
                raise TopicRefused(
                    f"the topic {topic!r} cannot be made: {(message or [None])[0] or error.__name__}"
                )
        deadline = time.monotonic() + _LEADERS_SECONDS
        while not await _ready_partitions(admin, topic):
            if time.monotonic() > deadline:
                raise TopicRefused(f"the topic {topic!r} was made but its partitions got no leader")
            await asyncio.sleep(_ASK_AGAIN_SECONDS)


async def _ready_partitions(admin: Any, topic: str) -> int:
    # All topics are listed, because asking for one by name makes it where the broker makes topics by itself.
    found = [t for t in await admin.describe_topics() if t["topic"] == topic and not t["error_code"]]
    partitions = found[0]["partitions"] if found else []
    return len(partitions) if all(p["leader"] >= 0 and not p["error_code"] for p in partitions) else 0


class _Admin:
    """A connected admin client that says in one sentence when nothing is there."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    async def __aenter__(self) -> Any:
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # what it would say is in our own sentence
        self._admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap, request_timeout_ms=_REQUEST_MS)
        try:
            await self._admin.start()
        except (KafkaError, OSError, ValueError) as e:
            await self._admin.close()
            raise KafkaUnreachable(f"Kafka cannot be reached at {self._bootstrap}: {e}") from e
        return self._admin

    async def __aexit__(self, *_: object) -> None:
        await self._admin.close()
