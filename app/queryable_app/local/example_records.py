"""Produce page views of invented users: `python -m queryable_app.local.example_records BOOTSTRAP TOPIC RATE`."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from typing import Any, Final

from queryable_app.config.kafka_settings import kafka_connection
from queryable_app.local.topics import Send, producing

_USERS: Final = 1000
_PAGES: Final = ("/", "/pricing", "/docs", "/docs/start", "/blog", "/about")
_BOT_SHARE: Final = 0.05


def example_view(dice: random.Random) -> tuple[str, dict[str, Any]]:
    """Return a user, and the page that this user views."""
    user = f"user-{dice.randrange(_USERS)}"
    return user, {"user": user, "page": dice.choice(_PAGES), "bot": dice.random() < _BOT_SHARE}


async def _produce(bootstrap: str, topic: str, rate: int) -> None:
    dice = random.Random()  # noqa: S311  (invented records)
    async with (
        producing(kafka_connection(bootstrap, {}), topic, "murmur2") as send,
        asyncio.TaskGroup() as sending,
    ):
        due = time.monotonic()
        while True:
            user, view = example_view(dice)
            sending.create_task(_send(send, user.encode(), json.dumps(view).encode()))
            due += 1 / rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))


async def _send(send: Send, key: bytes, value: bytes) -> None:
    await send(key, value)


if __name__ == "__main__":
    asyncio.run(_produce(sys.argv[1], sys.argv[2], int(sys.argv[3])))
