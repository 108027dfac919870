"""Write the records that clients post to Kafka.

Strategy: one idempotent producer, which waits for all in-sync replicas, connects when it is first needed. A posted record has a
deadline. After the deadline the answer says whether the record may have been written.
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
_RECORD_BYTES_MAX: Final = 64 * 1024 * 1024  # the broker's limit decides; this one only bounds the client
_RETRY_MS: Final = 1000
_SENT_AT_ONCE: Final = 64  # in one pass of the event loop


async def turn_of(index: int) -> None:
    """Wait for the turn of a record of many that are sent together. Records of one key keep their order."""
    for _ in range(index // _SENT_AT_ONCE):
        await asyncio.sleep(0)


class Producer:
    """Send records. `arguments` are those of an aiokafka client."""

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
        """Send a record, and return its offset once all in-sync replicas have it. Raise a Failure."""
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
            await self._producer.drop()  # an idempotent producer cannot continue after some errors
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
            "Kafka has not confirmed the record in time; it may have been written",
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
