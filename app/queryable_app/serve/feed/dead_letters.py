"""Write bad records to the dead letter topic before their slices are applied.

Strategy: the slice waits for its dead letters, and Spark waits for the slice, so every failure ends or shows what it waits for.
If Kafka refuses a dead letter as too large, it is truncated in steps, and headers have the original sizes. If even the smallest
one is refused, it is skipped and counted. All other failures (Kafka unavailable, a missing right, a policy) are retried with
back-off, because the topic's owner can repair them: status names the partition and the reason, and other partitions continue.
Each retry also tries again to create the topic, because the missing right may be the one to create it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from random import random
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    KafkaError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    for_code,
)

from queryable_app.platform.log import event
from queryable_app.policy.retries import Retry, next_retry
from queryable_app.serve.base.kafka_client import LazyKafkaClient, start_client
from queryable_app.serve.feed.slices import DeadLetter

_RECORD_BYTES_MAX: Final = 64 * 1024 * 1024  # the broker's limit decides; this one only bounds the client
_TRUNCATED_BYTES: Final = (512 * 1024, 16 * 1024, 512, 0)
"""The sizes to which key and value are truncated, in the order of the attempts."""
_SMALL_REASON_BYTES: Final = 200
_TOO_LARGE: Final = (MessageSizeTooLargeError, RecordListTooLargeError)
# Kafka gives an idempotent producer an id if the user may write to some topic; without one it refuses in the cluster's name.
_NO_WRITE: Final = (TopicAuthorizationFailedError, ClusterAuthorizationFailedError)

Headers = list[tuple[str, bytes]]


class DeadLetterTopic:
    """Write dead letters of one application. `arguments` are those of an aiokafka client."""

    def __init__(self, arguments: dict[str, Any], topic: str, application_id: str) -> None:
        self._arguments = arguments
        self._topic = topic
        self.name = f"{application_id}.dead-letter"
        self.written: Counter[str] = Counter()
        """Counts since the start: `whole`, `truncated`, and `skipped`, which are lost."""
        self.waiting: dict[int, Retry] = {}
        """The partitions whose slices wait for their dead letters, and why."""
        self._topic_ensured = False
        self._creation_refused = ""  # why
        self._producer = LazyKafkaClient(
            lambda: AIOKafkaProducer(
                **arguments, acks="all", enable_idempotence=True, max_request_size=_RECORD_BYTES_MAX
            )
        )

    async def send_dead_letters(self, letters: Sequence[DeadLetter]) -> None:
        """Return once each dead letter is acknowledged or skipped. After a crash the same ones are written again."""
        partition, left, together = letters[0].partition, list(letters), True
        try:
            while left:
                try:
                    await self._ensure_topic()
                    if together:
                        await self._send_together(left)
                        left.clear()
                    else:
                        await self._send_first(left)
                except _TOO_LARGE:  # one of them, or the whole batch
                    together = False
                except (KafkaError, OSError, TimeoutError) as error:
                    await self._wait(partition, error)
        finally:
            self.waiting.pop(partition, None)

    async def stop(self) -> None:
        await self._producer.drop()

    async def _send_together(self, letters: Sequence[DeadLetter]) -> None:
        producer = await self._producer.connected()
        all_headers = [_headers(self._topic, letter) for letter in letters]
        sent: list[asyncio.Future[Any]] = []
        try:
            for letter, headers in zip(letters, all_headers, strict=True):
                sent.append(
                    await producer.send(self.name, value=letter.bad.value, key=letter.key, headers=headers)
                )
        finally:
            outcomes = await asyncio.gather(*sent, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        self.written["whole"] += len(letters)

    async def _send_first(self, left: list[DeadLetter]) -> None:
        """Write or skip the first dead letter, truncated if needed, and remove it. Raise errors that are not about size."""
        letter = left[0]
        producer = await self._producer.connected()
        for key, value, headers, how in _attempts(self._topic, letter):
            try:
                await producer.send_and_wait(self.name, value=value, key=key, headers=headers)
            except _TOO_LARGE as error:
                reason = str(error)
            else:
                self.written[how] += 1
                break
        else:
            self.written["skipped"] += 1
            event(
                "dead-letter-skipped",
                topic=self.name,
                partition=letter.partition,
                offset=letter.offset,
                reason=reason,
            )
        del left[0]

    async def _wait(self, partition: int, error: BaseException) -> None:
        now, why = time.monotonic(), self._explained(error)
        self._topic_ensured = False
        before = self.waiting.get(partition)
        retry = self.waiting[partition] = next_retry(before, why, now, random())  # noqa: S311
        if before is None or before.reason != why:
            event("dead-letter-waits", topic=self.name, partition=partition, reason=why)
        await self._producer.drop()
        await asyncio.sleep(retry.next_at - now)

    def _explained(self, error: BaseException) -> str:
        """Return why a dead letter waits, and which right the Kafka user lacks."""
        why = str(error) or type(error).__name__
        if isinstance(error, _NO_WRITE):
            why = f"the Kafka user needs the right Write on the topic {self.name} ({why})"
        if self._creation_refused == TopicAuthorizationFailedError.__name__:
            why += f"; to create the topic, it needs the right Create on it ({self._creation_refused})"
        elif self._creation_refused:
            why += f"; Kafka does not create the topic ({self._creation_refused})"
        return why

    async def _ensure_topic(self) -> None:
        """Create the topic if permitted. If Kafka refuses, the topic may still exist, which the next write shows."""
        if self._topic_ensured:
            return
        admin = AIOKafkaAdminClient(**self._arguments)
        # An empty `replica_assignments` makes this class leave replication to the broker; None does not.
        topic = NewTopic(self.name, 1, -1, replica_assignments={})
        try:
            await start_client(admin)
            response = await admin.create_topics([topic])
        finally:
            await admin.close()
        refused = ""
        for name, code, *_ in response.topic_errors:
            error = for_code(code)
            if code and error is not TopicAlreadyExistsError:
                if error.retriable:
                    raise error(name)
                refused = error.__name__
                if refused != self._creation_refused:
                    event("dead-letter-topic-refused", topic=name, reason=refused)
        self._creation_refused = refused
        self._topic_ensured = True


def _attempts(topic: str, letter: DeadLetter) -> Iterator[tuple[bytes, bytes, Headers, str]]:
    """Yield key, value, headers and outcome: first whole, then truncated further and further."""
    key, value, headers = letter.key, letter.bad.value, _headers(topic, letter)
    yield key, value, headers, "whole"
    sizes = [
        ("truncated", b"true"),
        ("original-key-bytes", str(len(key)).encode()),
        ("original-value-bytes", str(len(value)).encode()),
    ]
    short = [(name, text[:_SMALL_REASON_BYTES]) for name, text in headers]
    for size in _TRUNCATED_BYTES:
        if size < max(len(key), len(value)) or size == _TRUNCATED_BYTES[-1]:
            yield key[:size], value[:size], short + sizes, "truncated"


def _headers(topic: str, letter: DeadLetter) -> Headers:
    """Return headers that name the record's origin and the reason."""
    return [
        ("topic", topic.encode()),
        ("partition", str(letter.partition).encode()),
        ("offset", str(letter.offset).encode()),
        ("reason", letter.bad.reason.encode()),
    ]
