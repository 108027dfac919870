"""Read and write the messages of the control socket: one JSON object a line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final

from queryable_app.contract import ObservedTopic
from queryable_app.wire.checked import OFFSET_MAX, Malformed, by_partition, field, text, whole

LINE_BYTES_MAX: Final = 1024 * 1024
_SEND_SECONDS_MAX: Final = 5.0
_TOPIC_ID_CHARS_MAX: Final = 200

count: Final = whole(0, OFFSET_MAX)


def observed_topic(message: Mapping[str, Any]) -> ObservedTopic:
    """Parse a `topic` message. Raise Malformed."""
    id = field(message, "id", text)
    if not 0 < len(id) <= _TOPIC_ID_CHARS_MAX:
        raise Malformed("id: a topic id has 1 to 200 characters")
    offsets = by_partition(count)
    return ObservedTopic(
        id,
        field(message, "partitions", count),
        field(message, "earliest", offsets),
        field(message, "latest", offsets),
        message.get("compacted") is not False,
    )


async def receive(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    """Return the next message, or None when the other side has closed. Raise Malformed."""
    try:
        received = await reader.readline()
    except ValueError:
        raise Malformed(f"a line of more than {LINE_BYTES_MAX} bytes") from None
    if not received.endswith(b"\n"):
        return None  # closed, maybe within a line
    try:
        message = json.loads(received)
    except ValueError:
        raise Malformed("a line that is no JSON") from None
    if not isinstance(message, dict):
        raise Malformed("a line that is no JSON object")
    return message


async def send(writer: asyncio.StreamWriter, message: bytes) -> None:
    writer.write(message)
    async with asyncio.timeout(_SEND_SECONDS_MAX):
        await writer.drain()


def line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"
