"""Run the clients of a view and of its Kafka in a pod of their own: `python clients.py COMMAND ...`. See `platform_on_cluster`.

`read` writes increasing numbers to keys and reads them meanwhile, on persistent connections and on new ones, until its
standard input ends. `read-with-client` does so with the Python client, which tries the next replica, and `read-and-follow`
follows the changes too. They print JSON objects, one a line: each failure, and once a second the number of reads.

`CA` names the file with the CA of views with TLS; nodes are then verified by the name of their Service. `CERTIFICATE` names the
file with the clients' own certificate and its key, and `TOKEN_FILE` that with the token of each request.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from aiokafka.admin import AIOKafkaAdminClient

from queryable_app.client import AsyncQueryableTopic, QueryableTopicError
from queryable_app.config.kafka_settings import kafka_connection
from queryable_app.local import topics
from queryable_app.platform.kafka_clients import client_arguments

KAFKA = kafka_connection("kafka:9092", {})
KEYS = [f"key-{number}" for number in range(100)]
_READS_PER_SECOND = 25.0
_WRITES_PER_SECOND = 20.0
# Loaded once: to load the certificates for each read would take most of its time.
_CA = os.environ.get("CA")
_TRUST: ssl.SSLContext | bool = False if _CA is None else ssl.create_default_context(cafile=_CA)
_CERTIFICATE = os.environ.get("CERTIFICATE")
if isinstance(_TRUST, ssl.SSLContext) and _CERTIFICATE is not None:
    _TRUST.load_cert_chain(_CERTIFICATE)
_TOKEN_FILE = os.environ.get("TOKEN_FILE")
_PATIENT = {"deadline-ms": "30000"}  # a busy machine is no failure
_TIMEOUT_SECONDS = 40.0
_NEWEST_SECONDS = 200.0  # the limit for the newest value of a key on a busy machine


def say(**words: Any) -> None:
    print(json.dumps(words), flush=True)


async def produce(topic: str) -> None:
    """Produce lines of key, tab and value from the standard input; an empty value deletes."""
    lines = sys.stdin.read().splitlines()
    async with topics.producing(KAFKA, topic, "murmur2") as send:
        for line in lines:
            key, _, value = line.partition("\t")
            await send(key.encode(), value.encode() or None)


async def left(prefix: str) -> None:
    """Print the groups and topics in Kafka with this prefix."""
    admin = AIOKafkaAdminClient(**client_arguments(KAFKA))
    await admin.start()
    try:
        groups = [group for group, *_ in await admin.list_consumer_groups()]
        there = sorted(name for name in [*groups, *await admin.list_topics()] if name.startswith(prefix))
        say(there=there)
    finally:
        await admin.close()


async def get(url: str, *keys: str) -> None:
    """Print the present values of these keys, or the reason why there is none."""
    async with _http() as http:
        for key in keys:
            request = (http, f"{url}/v1/keys/{key}", {**_PATIENT, "consistency": "strong"})
            deadline = time.monotonic() + _NEWEST_SECONDS
            while (answer := await _answer(*request))[0] not in (200, 404) and time.monotonic() < deadline:
                await asyncio.sleep(0.5)
            say(key=key, status=answer[0], value=answer[1])


async def ask(*urls: str) -> None:
    """Print what each URL answers."""
    async with _http() as http:
        for url in urls:
            status, answer = await _answer(http, url, {})
            say(status=status, answer=answer)


async def shown(name: str, *addresses: str) -> None:
    """Print the serial number of the certificate that each address shows for this name, once it is verified."""
    assert isinstance(_TRUST, ssl.SSLContext)
    for address in addresses:
        parts = urlsplit(address)
        opened = asyncio.open_connection(parts.hostname, parts.port, ssl=_TRUST, server_hostname=name)
        try:
            _, writer = await asyncio.wait_for(opened, _TIMEOUT_SECONDS)
        except (OSError, TimeoutError) as error:
            say(serial=None, why=repr(error))
            continue
        say(serial=int(writer.get_extra_info("peercert")["serialNumber"], 16))
        writer.close()


class Reading:
    def __init__(self, url: str, topic: str) -> None:
        self._url, self._topic = url, topic
        self._written: dict[str, int] = {}
        self._begun: dict[str, int] = {}
        self._reads = self._failed = 0
        self._over = asyncio.Event()

    async def run(self) -> None:
        async with topics.producing(KAFKA, self._topic, "murmur2") as send:
            number = int(time.time() * 1000)  # larger than those of earlier writers
            for key in KEYS:
                await self._write(send, key, number)
            async with _http() as http:
                await self._every_copy_has_all(http)
            self._begun = dict(self._written)
            tasks = [asyncio.create_task(each) for each in (self._writes(send, number), self._heartbeat())]
            async with _http() as persistent:
                tasks += [
                    asyncio.create_task(self._reads_on(persistent, "kept", reader, 5)) for reader in range(4)
                ]
                tasks.append(asyncio.create_task(self._reads_on(None, "new", 4, 5)))
                await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
                self._over.set()
                await asyncio.gather(*tasks)
                wrong = await self._all_are_read(persistent)
        say(over=True, reads=self._reads, failed=self._failed, wrong=wrong)

    async def _write(self, send: topics.Send, key: str, number: int) -> None:
        while True:
            try:
                await send(key.encode(), json.dumps({"n": number}).encode())
                break
            except topics.TopicRefused:  # a broker on a busy machine does not answer in time
                await asyncio.sleep(0.5)
        self._written[key] = number

    async def _writes(self, send: topics.Send, number: int) -> None:
        while not self._over.is_set():
            number += 1
            await self._write(send, KEYS[number % len(KEYS)], number)
            await asyncio.sleep(1 / _WRITES_PER_SECOND)

    async def _reads_on(self, http: httpx.AsyncClient | None, how: str, reader: int, readers: int) -> None:
        turn = reader
        while not self._over.is_set():
            turn += readers
            key = KEYS[turn * 7 % len(KEYS)]
            began = time.time()
            status, value = await self._read(http, key)
            self._reads += 1
            if status != 200 or not self._begun[key] <= value["n"]:
                self._failed += 1
                moment = time.strftime("%H:%M:%S", time.gmtime())
                seconds = round(time.time() - began, 3)
                say(at=moment, how=how, key=key, status=status, value=value, seconds=seconds)
            await asyncio.sleep(readers / _READS_PER_SECOND)

    async def _read(self, http: httpx.AsyncClient | None, key: str) -> tuple[int, Any]:
        """Read a key on a persistent connection, or on a new one."""
        if http is not None:
            return await _answer(http, f"{self._url}/v1/keys/{key}", _PATIENT)
        async with _http() as own:
            return await _answer(own, f"{self._url}/v1/keys/{key}", _PATIENT)

    async def _every_copy_has_all(self, http: httpx.AsyncClient) -> None:
        """Wait until every replica has all keys, so that later answers with a missing key or an older number are wrong."""
        while (placement := await _answer(http, f"{self._url}/v1/placement", {}))[0] != 200:
            await asyncio.sleep(0.5)
        nodes = {address for partition in placement[1]["partitions"] for address in partition["addresses"]}
        for node in nodes:
            for key in KEYS:
                while True:
                    status, value = await _answer(
                        http, f"{node}/v1/keys/{key}", {"route": "local"}, urlsplit(self._url).hostname
                    )
                    if status == 421 or (status == 200 and value["n"] >= self._written[key]):
                        break
                    await asyncio.sleep(0.2)

    async def _all_are_read(self, http: httpx.AsyncClient) -> list[str]:
        """Wait until every key has the newest number, or report the keys that do not."""
        deadline = time.monotonic() + _NEWEST_SECONDS
        while True:
            wrong = []
            for key in KEYS:
                status, value = await _answer(http, f"{self._url}/v1/keys/{key}", _PATIENT)
                if status == 404:
                    self._failed += 1
                    say(how="in the end", key=key, status=status, value=value)
                if status != 200 or value["n"] != self._written[key]:
                    wrong.append(f"{key}: {status} {value}, not {self._written[key]}")
                    break
            if not wrong or time.monotonic() > deadline:
                return wrong
            await asyncio.sleep(0.5)

    async def _heartbeat(self) -> None:
        while not self._over.is_set():
            say(reads=self._reads, failed=self._failed)
            await asyncio.sleep(1)


def _http() -> httpx.AsyncClient:
    return httpx.AsyncClient(
        timeout=_TIMEOUT_SECONDS, verify=_TRUST, auth=_with_token if _TOKEN_FILE else None
    )


def _with_token(request: httpx.Request) -> httpx.Request:
    request.headers["authorization"] = f"Bearer {Path(str(_TOKEN_FILE)).read_text()}"
    return request


async def _answer(
    http: httpx.AsyncClient, url: str, how: dict[str, str], name: str | None = None
) -> tuple[int, Any]:
    """Return the status and value of a key, or 0 and the reason if there is none. `name` is the name to verify with TLS, if it
    is not the host.
    """
    named = {"sni_hostname": name} if name else None
    try:
        # No parameters would replace those of the URL.
        answer = await http.get(url, params=how or None, extensions=named)
        return answer.status_code, answer.json()
    # httpx passes on TLS's refusal of a certificate.
    except (httpx.HTTPError, ssl.SSLError, ValueError) as error:
        return 0, repr(error)


class ClientReading(Reading):
    """Read with the Python client: one for all readers, or a new one for each read."""

    async def run(self) -> None:
        async with self._new_client() as self._client:
            await super().run()

    def _new_client(self) -> AsyncQueryableTopic:
        # One file has both, so it is the key's too.
        return AsyncQueryableTopic(
            self._url, ca=_CA, cert=_CERTIFICATE, key=_CERTIFICATE, token_file=_TOKEN_FILE
        )

    async def _read(self, http: httpx.AsyncClient | None, key: str) -> tuple[int, Any]:
        try:
            if http is not None:
                row = await self._client.get(key, deadline_ms=30_000)
            else:
                async with self._new_client() as own:
                    row = await own.get(key, deadline_ms=30_000)
        except QueryableTopicError as error:
            return 0, repr(error)
        return (404, None) if row is None else (200, row.value)


class FollowingReading(Reading):
    """Follow the changes too. In the end their last ones must have the newest numbers."""

    async def run(self) -> None:
        self._followed: dict[Any, int] = {}
        async with AsyncQueryableTopic(self._url) as client:
            following = asyncio.create_task(self._follow(client))
            try:
                await super().run()
            finally:
                following.cancel()

    async def _follow(self, client: AsyncQueryableTopic) -> None:
        async for change in client.changes():
            if not change.deleted:
                self._followed[change.key] = change.value["n"]

    async def _all_are_read(self, http: httpx.AsyncClient) -> list[str]:
        if wrong := await super()._all_are_read(http):
            return wrong
        deadline = time.monotonic() + _NEWEST_SECONDS
        while (missing := self._not_followed()) and time.monotonic() < deadline:
            await asyncio.sleep(0.5)
        return missing

    def _not_followed(self) -> list[str]:
        return [
            f"{key}: the changes end with {self._followed.get(key)}, not {number}"
            for key, number in self._written.items()
            if self._followed.get(key) != number
        ]


async def read(url: str, topic: str) -> None:
    await Reading(url, topic).run()


async def read_with_client(url: str, topic: str) -> None:
    await ClientReading(url, topic).run()


async def read_and_follow(url: str, topic: str) -> None:
    await FollowingReading(url, topic).run()


async def make_topic(name: str, partitions: str) -> None:
    await topics.create_topic(KAFKA, name, int(partitions))


COMMANDS: dict[str, Callable[..., Any]] = {
    "topic": make_topic,
    "produce": produce,
    "get": get,
    "ask": ask,
    "shown": shown,
    "read": read,
    "read-with-client": read_with_client,
    "read-and-follow": read_and_follow,
    "left": left,
}

if __name__ == "__main__":
    asyncio.run(COMMANDS[sys.argv[1]](*sys.argv[2:]))
