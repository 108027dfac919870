"""Say which requests to try first at a view that has just started, with a key that exists."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from shlex import quote as shell_quoted
from typing import Final
from urllib.parse import quote

import httpx

from queryable_app.config.topic_spec import TopicSpec

FIRST_ROWS: Final = 5
"""Rows of the scan that is printed."""


class FirstRequests:
    def __init__(
        self, urls: Sequence[str], spec: TopicSpec, http: httpx.Client, ca: str | None = None
    ) -> None:
        self._urls = urls
        self._http = http
        has_windows = spec.aggregate is not None and spec.aggregate.window is not None
        self._of_key, self._of_all = ("windows", "windows") if has_windows else ("keys", "scan")
        if spec.entries is not None:
            self._of_key = self._of_all = "entries"
        trust = "" if ca is None else f" --cacert {shell_quoted(ca)}"
        token = "" if spec.auth is None else ' -H "Authorization: Bearer $TOKEN"'
        self._curl = f"curl{trust}{token}"

    def commands(self, key: str | None) -> Iterator[str]:
        """Yield commands to copy: a read of the key, if there is one, and reads of many keys."""
        url = self._urls[0]
        if key is not None:
            yield f"{self._curl} {url}/v1/{self._of_key}/{quote(key, safe='')}"
        yield f"{self._curl} '{url}{self._scan}'"
        if self._of_all == "scan":
            yield f"{self._curl} {url}/v1/count"

    def key_and_rows(self) -> tuple[str | None, int]:
        """Return the first key that a URL can name as text, and how many rows the printed scan has now."""
        for url in self._urls:
            with contextlib.suppress(httpx.HTTPError, ValueError, KeyError):
                items = self._http.get(f"{url}{self._scan}").json()["items"]
                keys = [str(item["key"]) for item in items if "keyEncoding" not in item]
                if keys:
                    return keys[0], len(items)
        return None, 0

    @property
    def _scan(self) -> str:
        return f"/v1/{self._of_all}?limit={FIRST_ROWS}"
