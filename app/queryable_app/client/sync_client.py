"""The client for threads: reads, writes and iterators that wait for their answers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from ssl import SSLContext
from types import TracebackType
from typing import Any, Final, Literal, Self, Unpack, overload

from queryable_app.client.changes import Change, Following
from queryable_app.client.credentials import bearer_token
from queryable_app.client.history import Moment, moment_parameters
from queryable_app.client.indexes import IndexValue, index_target
from queryable_app.client.keys import Key
from queryable_app.client.membership import Membership
from queryable_app.client.operations import Operations
from queryable_app.client.options import ReadOptions, ReadSettings, parse_options
from queryable_app.client.reads import ChangesReader, PageReader, Reads, operations_for
from queryable_app.client.rows import Group, Row, Unknown, Written
from queryable_app.client.scan import Scan
from queryable_app.client.selection import Fields, selection_parameters
from queryable_app.client.session import SessionPositions
from queryable_app.client.thread_transport import ThreadTransport, http_client
from queryable_app.client.transport import (
    FilePath,
    TlsFiles,
    VerifiedNames,
    verification,
)
from queryable_app.client.windows import Time
from queryable_app.wire.cursors import Order
from queryable_app.wire.key_filter import RATE

CONNECTIONS: Final = 64


class Rows(PageReader, Iterator[Row]):
    """An iterator over rows in key order, which keeps one page in memory. Use it from one thread at a time.

    If a page fails, call `next` again: it continues where it was.
    """

    def __init__(self, reads: _Reads, scan: Scan) -> None:
        super().__init__(scan)
        self._reads = reads

    def __next__(self) -> Row:
        while not self._scan.ready:
            if self._scan.ended:
                raise StopIteration
            self._reads._read_page(self._scan)
        return self._scan.ready.popleft()


class Changes(ChangesReader, Iterator[Change]):
    """An iterator over changes, without an end, which keeps one page in memory. Use it from one thread at a time.

    If a page fails, call `next` again: it continues where it was.
    """

    def __init__(self, reads: _Reads, following: Following) -> None:
        super().__init__(following)
        self._reads = reads

    def __next__(self) -> Change:
        while (change := self._following.take()) is None:
            self._reads._read_changes(self._following)
        return change


class _Reads(Reads[Rows, Changes, Iterator[Group]]):
    """Run each read of a client or a session."""

    def __init__(
        self,
        transport: ThreadTransport,
        operations: Operations,
        defaults: ReadSettings,
        positions: SessionPositions | None = None,
    ) -> None:
        super().__init__(operations, defaults, positions)
        self._transport = transport
        self._run = transport.run_operation

    def get(
        self,
        key: Key,
        *,
        raw: bool = False,
        fields: Fields | None = None,
        as_of: Moment | None = None,
        **options: Unpack[ReadOptions],
    ) -> Row | None:
        """Return the newest row of a key; None if a complete replica says that there is none. With `raw` its value is the
        stored bytes; with `fields` it has these alone. With `as_of` it is the row of then, in a view with history.

            row = users.get("user-1", max_lag_ms=500)
        """
        selection = selection_parameters(fields=fields)
        settings, positions = self._settings(options), self._positions
        if as_of is not None:  # a moment is all that is to be required of the replica
            settings, positions = ReadSettings(deadline_ms=settings.deadline_ms), None
            selection += moment_parameters(as_of)
        return self._run(self._operations.get(key, raw, settings, positions, selection))

    def exists(self, key: Key, **options: Unpack[ReadOptions]) -> bool:
        """Return whether a key exists, without its value. False if a complete replica says that there is none.

        users.exists("user-1")
        """
        return self._run(self._operations.exists(key, self._settings(options), self._positions))

    @overload
    def multi_get(
        self,
        keys: Sequence[Key],
        *,
        partial: Literal[False] = False,
        fields: Fields | None = None,
        **options: Unpack[ReadOptions],
    ) -> list[Row | None]: ...

    @overload
    def multi_get(
        self,
        keys: Sequence[Key],
        *,
        partial: Literal[True],
        fields: Fields | None = None,
        **options: Unpack[ReadOptions],
    ) -> list[Row | Unknown | None]: ...

    def multi_get(
        self,
        keys: Sequence[Key],
        *,
        partial: bool = False,
        fields: Fields | None = None,
        **options: Unpack[ReadOptions],
    ) -> Sequence[Row | Unknown | None]:
        """Return the rows of many keys in the order of the keys, from all nodes at once, or raise an exception. With
        `partial`, return what can be read, and UNKNOWN for keys in partitions that no node can answer for.

            first, second = users.multi_get(["user-1", "user-2"])
        """
        settings = self._settings(options)
        selection = selection_parameters(fields=fields)
        return self._run(self._operations.multi_get(keys, settings, self._positions, partial, selection))

    def window(self, key: Key, start: Time, **options: Unpack[ReadOptions]) -> Row | None:
        """Return the window of a key that starts at `start`; None if a complete replica says that there is none.

        row = views.window("/cart", "2026-11-22T10:00:00Z")
        """
        return self._run(self._operations.window(key, start, self._settings(options), self._positions))

    def top(
        self,
        by: str,
        k: int = 10,
        start: Time | None = None,
        stop: Time | None = None,
        *,
        order: Order = "desc",
        **options: Unpack[ReadOptions],
    ) -> list[Row]:
        """Return the `k` windows with the greatest results of a column, or with order "asc" the least, the best one first: of
        all keys, and of the windows that start from `start` up to, and without, `stop`. In a view with indexes: the `k` rows with
        the greatest values of the index `by`.

        rows = views.top("views", 3, "2026-11-22T10:00:00Z", "2026-11-22T10:01:00Z")
        """
        settings = self._settings(options)
        return self._run(self._operations.top(by, k, order, start, stop, settings, self._positions))

    def count(
        self, *, approximate: bool = False, where: str | None = None, **options: Unpack[ReadOptions]
    ) -> int:
        """Return the number of keys, of those whose values match `where`. The exact number reads every row.

        users.count(approximate=True)
        """
        settings, selection = self._settings(options), selection_parameters(where)
        return self._run(self._operations.count(approximate, settings, self._positions, selection))

    def index_count(
        self,
        name: str,
        eq: IndexValue | None = None,
        *,
        start: IndexValue | None = None,
        stop: IndexValue | None = None,
        where: str | None = None,
        **options: Unpack[ReadOptions],
    ) -> int:
        """Return the number of rows whose indexed value is `eq`, or from `start` up to, and without, `stop`.

        articles.index_count("by-author", "ada")
        """
        settings = self._settings(options)
        path, bounds = index_target(name, eq, start, stop, "/count")
        target = path, [*bounds, *selection_parameters(where)]
        return self._run(self._operations.index_count(target, settings, self._positions))

    def _groups(self, scan: Scan) -> Iterator[Group]:
        while not scan.ended:
            yield from self._run(self._operations.next_groups(scan, self._positions))

    def put(
        self, key: Key, value: object, *, deadline_ms: int | None = None, idempotency_key: str | None = None
    ) -> Written:
        """Write a record to the topic, if the view takes writes. Return when Kafka has acknowledged it. With an idempotency
        key, the client repeats a write whose result is unknown, and the nodes write it once.

        users.get("user-1", min_position=users.put("user-1", {"name": "Ada"}).position)
        """
        settings = self._within(deadline_ms)
        return self._run(self._operations.put(key, value, settings, self._positions, idempotency_key))

    def delete(
        self, key: Key, *, deadline_ms: int | None = None, idempotency_key: str | None = None
    ) -> tuple[Written, ...]:
        """Write a tombstone; several, if several partitions may hold the key.

        users.delete("user-1")
        """
        settings = self._within(deadline_ms)
        return self._run(self._operations.delete(key, settings, self._positions, idempotency_key))

    def _rows(self, scan: Scan) -> Rows:
        return Rows(self, scan)

    def _changes(self, following: Following) -> Changes:
        return Changes(self, following)

    def _read_changes(self, following: Following) -> None:
        self._run(self._operations.next_changes(following))

    def _read_page(self, scan: Scan) -> None:
        self._run(self._operations.next_page(scan, self._positions))


class QueryableTopic(_Reads):
    """A client of one view. It reads each key from a node that hosts it.

        with QueryableTopic("http://users.example:8080") as users:
            print(users.get("user-1"))

    Share one client between all threads of a program: it keeps connections, and what it learns about the nodes.
    `url` is the service address, or any node's; several may be given. The options are the defaults of every read.
    `headers` go with every request. `ca` is a file with the CA of the nodes' certificate, `cert` and `key` are the client's own.
    The token goes with every request too: `token`, or that of `token_file`, which is read again when it changes.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        headers: Mapping[str, str] | None = None,
        verify: SSLContext | bool = True,
        ca: FilePath | None = None,
        cert: FilePath | None = None,
        key: FilePath | None = None,
        token: str | None = None,
        token_file: str | Path | None = None,
        connections: int = CONNECTIONS,
        **options: Unpack[ReadOptions],
    ) -> None:
        operations = operations_for(url, time.monotonic)
        defaults = parse_options(options, ReadSettings())
        trust = verification(verify, TlsFiles(ca, cert, key))
        http = http_client(connections, headers, trust, bearer_token(token, token_file))
        super().__init__(
            ThreadTransport(http, connections, VerifiedNames(operations.urls)), operations, defaults
        )

    def session(self, seen: Mapping[int, int] | None = None) -> Session:
        """Return a session: its reads never go back in time, and see its own writes.

        mine = users.session(); mine.put("user-1", 2); assert mine.get("user-1").value == 2
        """
        return Session(self._transport, self._operations, self._defaults, SessionPositions(seen or {}))

    def membership(self, *, rate: float = RATE, **options: Unpack[ReadOptions]) -> Membership:
        """Return a filter of all keys, which tells absent keys without a request: about ten bits a key for a rate of false
        positives of 1 %. It reads all keys. Call it again for a newer one.

        members = users.membership(); row = users.get("user-1") if "user-1" in members else None
        """
        return self._run(self._operations.key_filter(rate, self._settings(options)))

    def status(self, *, deadline_ms: int | None = None) -> dict[str, dict[str, Any] | None]:
        """Return the status of each node by its address; None for a node that does not answer.

        users.status()
        """
        return self._run(self._operations.status(self._within(deadline_ms)))

    def close(self) -> None:
        """End all requests and connections, as the end of `with` does."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Session(_Reads):
    """A session of a client: no read is older than what the session has read or written. See `QueryableTopic.session`."""

    @property
    def seen(self) -> dict[int, int]:
        """Partition → next offset. Another client's `session(..)` continues from it.

        elsewhere.session(mine.seen)
        """
        return self._positions.seen if self._positions else {}
