"""Writes to Kafka: records that clients post, and dead letters.

Strategy: an idempotent producer that waits for all replicas, connected when it is first needed. A posted record has a
deadline, and the answer says whether it may have been written all the same. A dead letter has none: the slice that it
came in waits for it, and Spark waits for the slice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import (
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    RequestTimedOutError,
    TopicAlreadyExistsError,
    for_code,
)

from queryable_app.errors import Failure, Reason
from queryable_app.log import event
from queryable_app.serve.background import KeptClient
from queryable_app.serve.slices import DeadLetter

DEADLINE_SECONDS: Final = 10.0
_RECORD_BYTES_MAX: Final = 64 * 1024 * 1024  # the broker has the last word; this only bounds what is tried
_RETRY_SECONDS: Final = 1.0
_RETRY_MS: Final = 1000


class Producer:
    """Needs no start. `arguments` are those of an aiokafka client."""

    def __init__(self, arguments: dict[str, Any], topic: str, application_id: str) -> None:
        self._arguments = arguments
        self._topic = topic
        self._dead_letter_topic = f"{application_id}.dead-letter"
        self._dead_letter_topic_exists = False
        self._producer = KeptClient(
            lambda: AIOKafkaProducer(
                **arguments, acks="all", enable_idempotence=True, max_request_size=_RECORD_BYTES_MAX
            )
        )

    async def send(
        self, key: bytes, value: bytes | None, partition: int, deadline_seconds: float = DEADLINE_SECONDS
    ) -> int:
        """The record's offset, once every replica that must have it has it. Raises Failure."""
        handed_over = False
        try:
            async with asyncio.timeout(deadline_seconds):
                producer = await self._producer.connected()
                acknowledged = await producer.send(self._topic, value=value, key=key, partition=partition)
                handed_over = True
                return int((await asyncio.shield(acknowledged)).offset)
        except (TimeoutError, KafkaTimeoutError, RequestTimedOutError):
            raise _late(partition, handed_over) from None
        except MessageSizeTooLargeError as error:
            raise Failure(
                Reason.TOO_LARGE,
                f"the record is larger than Kafka takes: {error}",
                "send a smaller value, or raise the topic's max.message.bytes",
                partition=partition,
            ) from None
        except (KafkaError, OSError) as error:
            await self._producer.drop()  # an idempotent producer may not go on after some of its errors
            raise Failure(
                Reason.NOT_AVAILABLE,
                f"Kafka did not take the record: {error}",
                "retry; the same record written twice is one row",
                partition=partition,
                retry_after_ms=_RETRY_MS,
            ) from None

    async def send_dead_letters(self, letters: Sequence[DeadLetter]) -> None:
        """Tries until each one is acknowledged. After a crash the same ones are sent again."""
        said = False
        while True:
            try:
                await self._ensure_dead_letter_topic()
                producer = await self._producer.connected()
                sent = [
                    await producer.send(
                        self._dead_letter_topic,
                        value=letter.bad.value,
                        key=letter.key,
                        headers=_headers(self._topic, letter),
                    )
                    for letter in letters
                ]
                await asyncio.gather(*sent)
                return
            except (KafkaError, OSError) as error:
                if not said:
                    event("dead-letter-waits", topic=self._dead_letter_topic, reason=str(error))
                    said = True
                await self._producer.drop()
                await asyncio.sleep(_RETRY_SECONDS)

    async def stop(self) -> None:
        await self._producer.drop()

    async def _ensure_dead_letter_topic(self) -> None:
        if self._dead_letter_topic_exists:
            return
        admin = AIOKafkaAdminClient(**self._arguments)
        await admin.start()
        # No replica assignments, and not None either: that is how this class is told to leave replication to the broker.
        topic = NewTopic(self._dead_letter_topic, 1, -1, replica_assignments={})
        try:
            response = await admin.create_topics([topic])
        finally:
            await admin.close()
        for name, code, *_ in response.topic_errors:
            error = for_code(code)
            if code and error is not TopicAlreadyExistsError:
                raise error(name)
        self._dead_letter_topic_exists = True


def _headers(topic: str, letter: DeadLetter) -> list[tuple[str, bytes]]:
    """Where the record came from, and what is wrong with it."""
    return [
        ("topic", topic.encode()),
        ("partition", str(letter.partition).encode()),
        ("offset", str(letter.offset).encode()),
        ("reason", letter.bad.reason.encode()),
    ]


def _late(partition: int, handed_over: bool) -> Failure:
    if handed_over:
        return Failure(
            Reason.DEADLINE_EXCEEDED,
            "Kafka has not confirmed the record in time; it may be written all the same",
            "read the key, or send the record again: written twice it is one row",
            partition=partition,
        )
    return Failure(
        Reason.NOT_AVAILABLE,
        "Kafka cannot be reached; the record was not written",
        "retry",
        partition=partition,
        retry_after_ms=_RETRY_MS,
    )
