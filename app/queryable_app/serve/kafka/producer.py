"""Writes to Kafka the records that clients post.

Strategy: an idempotent producer that waits for all replicas, connected when it is first needed. A posted record has a
deadline, and the answer says whether it may have been written all the same.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    RequestTimedOutError,
)

from queryable_app.errors import Failure, Reason
from queryable_app.serve.base.kafka_client import LazyKafkaClient

DEADLINE_SECONDS: Final = 10.0
_RECORD_BYTES_MAX: Final = 64 * 1024 * 1024  # the broker has the last word; this only bounds what is tried
_RETRY_MS: Final = 1000


class Producer:
    """Needs no start. `arguments` are those of an aiokafka client."""

    def __init__(self, arguments: dict[str, Any], topic: str) -> None:
        self._topic = topic
        self._producer = LazyKafkaClient(
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

    async def stop(self) -> None:
        await self._producer.drop()


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
