"""Read a view for a command, through the client: each address is tried once, since a command's caller decides on retries."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import click

from queryable_app.client.attempts import Operation, Response
from queryable_app.client.changes import Following
from queryable_app.client.entries import entries_target
from queryable_app.client.exceptions import DeadlineExceeded, InvalidRequest, Unreachable
from queryable_app.client.history import history_target
from queryable_app.client.operations import Operations
from queryable_app.client.options import ReadSettings, parse_options
from queryable_app.client.rows import item_texts, parsed
from queryable_app.client.scan import PAGE_ROWS, Scan, new_scan
from queryable_app.client.thread_transport import ThreadTransport, http_client
from queryable_app.client.transport import TlsFiles, VerifiedNames, verification
from queryable_app.client.windows import Target
from queryable_app.commands.common import described_run
from queryable_app.commands.node_options import credentials, tls_files
from queryable_app.wire.cursors import Order

T = TypeVar("T")

SILENCE_MS: Final = 30_000
"""How long a command waits for a node that has accepted its request."""

_CONNECTIONS_MAX: Final = 64


class View:
    """The nodes at some addresses, and the view that they serve."""

    def __init__(self, urls: Sequence[str], files: TlsFiles) -> None:
        connections = min(len(urls) + 3, _CONNECTIONS_MAX)  # a key has a few replicas besides
        self._operations = Operations([url.rstrip("/") for url in urls], time.monotonic, retries=False)
        http = http_client(connections, verify=verification(True, files), auth=credentials())
        self._transport = ThreadTransport(http, connections, VerifiedNames(urls))

    def get(self, key: str, settings: ReadSettings, selection: Sequence[str] = ()) -> Response:
        """Return a node's own response to the read of a key. Raises QueryableTopicError.

        Only a read that waits for freshness has a short deadline by default. Another one fails when no node says anything.
        """
        silence_is_failure = settings.deadline_ms is None and not settings.waits
        if silence_is_failure:
            settings = replace(settings, deadline_ms=SILENCE_MS)
        try:
            return self._run(self._operations.get_response(typed_key(key), settings, selection))
        except DeadlineExceeded as error:
            if silence_is_failure and error.address is None:
                raise Unreachable(error.detail, error.advice) from error
            raise

    def scan(self, order: Order, limit: int | None, selection: Sequence[str], settings: ReadSettings) -> Scan:
        """Return a scan of all rows. `items` reads it."""
        return self._operations.scan(settings, order, limit, PAGE_ROWS, selection=selection)

    def range(
        self,
        start: str | None,
        stop: str | None,
        order: Order,
        limit: int | None,
        selection: Sequence[str],
        settings: ReadSettings,
    ) -> Scan:
        """Return a scan of the rows from `start` up to, and without, `stop`."""
        first, after = (None if key is None else typed_key(key) for key in (start, stop))
        return self._operations.range(first, after, settings, order, limit, PAGE_ROWS, selection=selection)

    def prefix(
        self, prefix: str, order: Order, limit: int | None, selection: Sequence[str], settings: ReadSettings
    ) -> Scan:
        """Return a scan of the rows whose key begins with `prefix`."""
        typed = typed_key(prefix)
        return self._operations.prefix(typed, settings, order, limit, PAGE_ROWS, selection=selection)

    def index(
        self,
        target: Target,
        order: Order,
        limit: int | None,
        selection: Sequence[str],
        settings: ReadSettings,
    ) -> Scan:
        """Return a scan of the rows of an index that the target names."""
        return new_scan(lambda _: target, settings, order, limit, PAGE_ROWS, False, selection)

    def entries(
        self,
        key: str | None,
        start: str | None,
        stop: str | None,
        order: Order,
        limit: int | None,
        selection: Sequence[str],
        settings: ReadSettings,
    ) -> Scan:
        """Return a scan of the entries of a key from `start` up to, and without, `stop`; or of all keys."""
        target = entries_target(None if key is None else typed_key(key), start, stop)
        return new_scan(target, settings, order, limit, PAGE_ROWS, False, selection)

    def history(
        self,
        key: str,
        start: str | None,
        stop: str | None,
        order: Order,
        limit: int,
        settings: ReadSettings,
    ) -> Scan:
        """Return a scan of the versions of a key."""
        target = history_target(typed_key(key), start, stop)
        return new_scan(target, settings, order, limit, PAGE_ROWS, False, ())

    def items(self, scan: Scan) -> Iterator[str]:
        """Yield each row of a scan as the node writes it, a page at a time. Raises QueryableTopicError."""
        while not scan.ended:
            page = parsed(self._run(self._operations.page_response(scan)), item_texts)
            scan.go_on(page.cursor, len(page.items))
            yield from page.items

    def windows(
        self,
        key: str | None,
        start: str | None,
        stop: str | None,
        more: Sequence[str],
        settings: ReadSettings,
    ) -> Response:
        """Return a node's own response to a read of windows, one on each line. Raises QueryableTopicError."""
        typed = None if key is None else typed_key(key)
        return self._run(self._operations.windows_response(typed, start, stop, settings, more))

    def top(
        self, by: str, k: int, order: Order, start: str | None, stop: str | None, settings: ReadSettings
    ) -> Response:
        """Return a node's own response to a read of the best windows. Raises QueryableTopicError."""
        return self._run(self._operations.top_response(by, k, order, start, stop, settings))

    def next_changes(self, following: Following) -> None:
        """Read the next page of changes. Raises QueryableTopicError."""
        self._run(self._operations.next_changes(following))

    def statuses(self, timeout_ms: int = SILENCE_MS) -> Mapping[str, dict[str, Any] | None]:
        """Return the status of the node at each address, None if it does not answer."""
        settings = parse_options({"deadline_ms": timeout_ms}, ReadSettings())
        return self._run(self._operations.status_of_urls(settings))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._transport.close()

    def _run(self, operation: Operation[T]) -> T:
        return self._transport.run_operation(operation)


def view_at(urls: Sequence[str], data: Path | None) -> View:
    """Return the view at these addresses, or that of the run over `data`."""
    for url in urls:
        if not url.startswith(("http://", "https://")):
            raise click.UsageError(f"{url} is not an address; it begins with http:// or https://")
    files = tls_files()
    if not urls:
        run = described_run(data)
        urls, files = [node["url"] for node in run["nodes"]], replace(files, ca=files.ca or run.get("ca"))
    try:
        return View(urls, files)
    except InvalidRequest as error:
        raise click.UsageError(f"{error.detail}; {error.advice}") from None


def typed_key(typed: str) -> str | bytes:
    """Return a key as it was typed. Bytes of the terminal that are no UTF-8 are the record key itself."""
    try:
        typed.encode()
    except UnicodeEncodeError:
        return typed.encode(errors="surrogateescape")
    return typed
