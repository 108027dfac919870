"""Run a producer that counts, and readers at a steady rate, and check every answer against the topic.

Strategy: each key gets increasing numbers. Each read is due at its moment, whether or not earlier ones were answered, and its
latency counts from there. An answer is right if it is the newest record of its key below the position that it states,
and if that position is not below the requested one.
"""

from __future__ import annotations

import itertools
import threading
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from queryable_app.client import QueryableTopic, QueryableTopicError, ReadOptions, Session
from queryable_app.wire.http_text import parse_positions
from tests.integration import topics
from tests.integration.system import ANSWERS_MS_MAX
from tests.support.fold import LogRecord
from tests.support.threads import running_thread
from tests.support.waiting import eventually

PARTITIONS = 6
WAITS_MS_MAX = 30_000  # for reads that wait for freshness: on a busy machine Spark determines it
_TICK_SECONDS = 0.02


class Producing:
    """Write ever larger numbers to the keys in turn, and track the end offsets."""

    def __init__(self, bootstrap: str, topic: str, keys: int = 240, per_second: int = 200) -> None:
        self.topic = topic
        self.partition_of: dict[str, int] = {}
        self.ends: dict[int, int] = defaultdict(int)
        """The offset behind the last acknowledged record, by partition."""
        self._client = topics.producer(bootstrap)
        self._numbers = itertools.count()
        self._per_tick = round(per_second * _TICK_SECONDS)
        topics.create(bootstrap, topic, PARTITIONS)
        self._keys = itertools.cycle([f"key-{n}" for n in range(keys)])
        self._produce(keys)
        assert self._client.flush(30) == 0

    @contextmanager
    def going_on(self) -> Iterator[None]:
        def produce(stop: threading.Event) -> None:
            while not stop.wait(_TICK_SECONDS):
                self._produce(self._per_tick)
                self._client.poll(0)

        with running_thread(produce):
            yield
        assert self._client.flush(30) == 0

    def _produce(self, records: int) -> None:
        for key in itertools.islice(self._keys, records):
            value = str(next(self._numbers)).encode()
            self._client.produce(self.topic, key=key.encode(), value=value, on_delivery=self._acknowledged)

    def _acknowledged(self, error: Any, message: Any) -> None:
        assert error is None, error
        partition, end = message.partition(), message.offset() + 1
        self.partition_of[message.key().decode()] = partition
        self.ends[partition] = max(self.ends[partition], end)


@dataclass(frozen=True, slots=True)
class Answer:
    how: str
    key: str
    due: float  # monotonic
    ms: float  # since it was due
    number: int
    offset: int
    partition: int
    position: int  # the position that the answer states
    needed: int  # the position may not be below it


@dataclass
class Seen:
    """Contain what the readers saw in a period."""

    answers: list[Answer] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def wrong(self, log: Sequence[LogRecord]) -> list[str]:
        """Return the wrong answers, by the records of the topic."""
        history: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for record in log:
            assert record.key is not None
            assert record.value is not None
            history[record.key.decode()].append((record.offset, int(record.value)))
        return [str(answer) for answer in self.answers if not _right(answer, history[answer.key])]

    def ms(self, *how: str, since: float = 0.0) -> list[float]:
        """Return the latencies of the reads due from that moment on, in order."""
        return sorted(a.ms for a in self.answers if (not how or a.how in how) and a.due >= since)


def _right(answer: Answer, records: Sequence[tuple[int, int]]) -> bool:
    below = bisect_left(records, (answer.position, -1))
    newest = records[below - 1] if below else None
    return newest == (answer.offset, answer.number) and answer.position >= answer.needed


Read = Callable[[str, float], Answer]
"""Of a key, due at a moment."""


class ReadFailed(Exception):
    pass


class Readers:
    """Send some reads to each node in turn, as a load balancer does, and others through the smart client."""

    def __init__(self, urls: Sequence[str], producing: Producing, per_second: int = 200) -> None:
        self.keys = sorted(producing.partition_of)
        self._urls = tuple(urls)
        self._producing = producing
        self._per_second = per_second
        self._lock = threading.Lock()
        self._through = self._urls
        self._turn = itertools.count()
        self._in_flight: Counter[str] = Counter()

    @contextmanager
    def through(self) -> Iterator[str]:
        """Yield the node whose turn it is, for one read."""
        with self._lock:
            url = self._through[next(self._turn) % len(self._through)]
            self._in_flight[url] += 1
        try:
            yield url
        finally:
            with self._lock:
                self._in_flight[url] -= 1

    @contextmanager
    def around(self, url: str) -> Iterator[None]:
        """Route no reads through this node, and wait until its open reads have ended; the smart client gets no hint."""
        with self._lock:
            self._through = tuple(each for each in self._through if each != url)
        eventually("reads through the node have ended", lambda: not self._in_flight[url], 20)
        try:
            yield
        finally:
            with self._lock:
                self._through = (*self._through, url)

    @contextmanager
    def reading(self) -> Iterator[Seen]:
        seen, stop, begin = Seen(), threading.Event(), time.monotonic()
        with (
            QueryableTopic(self._urls) as client,
            httpx.Client(timeout=40) as persistent,
            httpx.Client(timeout=40, headers={"connection": "close"}) as new,
        ):
            session = client.session()
            reads: list[Read] = [
                *[self._over_http("kept", persistent)] * 8,
                *[self._over_http("new", new)] * 3,
                *[self._with_client("client", client)] * 5,
                self._with_client("session", session),
                self._over_http("strong", persistent),
                self._with_client("strong", client),
                self._over_http("at-least", persistent),
            ]
            threads = [
                threading.Thread(target=self._read, args=(read, seen, stop, begin, n, len(reads)))
                for n, read in enumerate(reads)
            ]
            for thread in threads:
                thread.start()
            try:
                yield seen
            finally:
                stop.set()
                for thread in threads:
                    thread.join()

    def _read(
        self, read: Read, seen: Seen, stop: threading.Event, begin: float, reader: int, readers: int
    ) -> None:
        for number in itertools.count(reader, readers):
            due = begin + number / self._per_second
            if stop.wait(max(0.0, due - time.monotonic())):
                return
            key = self.keys[number * 7919 % len(self.keys)]
            try:
                seen.answers.append(read(key, due))
            except ReadFailed as failed:
                seen.failed.append(f"{failed}, {1000 * (time.monotonic() - due):.0f} ms after it was due")

    def _over_http(self, how: str, http: httpx.Client) -> Read:
        def read(key: str, due: float) -> Answer:
            partition = self._producing.partition_of[key]
            needed = self._producing.ends[partition] if how in ("strong", "at-least") else 0
            options = {
                "strong": f"consistency=strong&deadline-ms={WAITS_MS_MAX}",
                "at-least": f"min-position={partition}:{needed}&deadline-ms={WAITS_MS_MAX}",
            }.get(how, f"deadline-ms={ANSWERS_MS_MAX}")
            with self.through() as url:
                try:
                    answer = http.get(f"{url}/v1/keys/{key}?{options}")
                except httpx.HTTPError as error:
                    raise ReadFailed(f"{how} {key} through {url}: {error!r}") from None
            if answer.status_code != 200:
                raise ReadFailed(f"{how} {key} through {url}: {answer.status_code} {answer.text}")
            position, headers = answer.headers["qt-position"], answer.headers
            return _answer(how, key, due, answer.json(), int(headers["qt-offset"]), position, needed)

        return read

    def _with_client(self, how: str, client: QueryableTopic | Session) -> Read:
        def read(key: str, due: float) -> Answer:
            partition = self._producing.partition_of[key]
            needed = self._producing.ends[partition] if how == "strong" else 0
            options: ReadOptions = {"deadline_ms": ANSWERS_MS_MAX}
            if how == "strong":
                options = {"consistency": "strong", "deadline_ms": WAITS_MS_MAX}
            if isinstance(client, Session):
                needed = client.seen.get(partition, 0)
            try:
                row = client.get(key, **options)
            except QueryableTopicError as error:
                raise ReadFailed(f"{how} {key} with the client: {error!r}") from None
            if row is None:
                raise ReadFailed(f"{how} {key} with the client: the answer is key_not_found")
            return _answer(how, key, due, row.value, row.offset, row.position, needed)

        return read


def _answer(how: str, key: str, due: float, value: Any, offset: int, position: str, needed: int) -> Answer:
    ((partition, reached),) = (parse_positions(position) or {}).items()
    ms = 1000 * (time.monotonic() - due)
    return Answer(how, key, due, ms, int(value), offset, partition, reached, needed)


def quantile(ordered: Sequence[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]
