"""Send every kind of query about rows that no producer writes any more, so that each has one right answer.

Each page of a query goes through another node, with the cursor of the page before.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import quote

import httpx

from tests.integration.readers import Readers
from tests.integration.system import with_deadline
from tests.support.threads import running_thread

ROWS: Final[Mapping[str, Mapping[str, Any]]] = {
    f"still-{n:03}": {"n": n, "group": f"group-{n % 7}"} for n in range(200)
}
INDEXES: Final = [
    {"name": "by-n", "field": "n", "type": "long"},
    {"name": "by-group", "field": "group", "type": "string"},
]


def _keys(matches: Callable[[int, str], bool], last_first: bool = False) -> list[str]:
    found = [key for key, row in ROWS.items() if matches(row["n"], row["group"])]
    return found[::-1] if last_first else found


QUERIES: Final[Mapping[str, Any]] = {
    "/v1/index/by-group?eq=group-3&limit=10": _keys(lambda _, group: group == "group-3"),
    "/v1/index/by-n?from=50&to=90&order=desc&limit=15": _keys(lambda n, _: 50 <= n < 90, last_first=True),
    "/v1/index/by-n?from=100&where=group = 'group-2'&limit=4": _keys(
        lambda n, group: n >= 100 and group == "group-2"
    ),
    "/v1/index/by-group/count?from=group-5": len(_keys(lambda _, group: group >= "group-5")),
    "/v1/index/by-group/groups?limit=3": [
        [group, count] for group, count in sorted(Counter(row["group"] for row in ROWS.values()).items())
    ],
    "/v1/top?by=by-n&k=20": _keys(lambda n, _: n >= 180, last_first=True),
    "/v1/scan?where=n >= 150&limit=20": _keys(lambda n, _: n >= 150),
    "/v1/range?from=still-020&to=still-060&order=desc&limit=15": _keys(
        lambda n, _: 20 <= n < 60, last_first=True
    ),
    "/v1/prefix/still-1?limit=40": _keys(lambda n, _: 100 <= n < 200),
    "/v1/count?where=group = 'group-4'": len(_keys(lambda _, group: group == "group-4")),
}


class Queries:
    """Send the queries in turn; `asked` counts them, and `failed` has those that failed or had another answer."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self.asked: Counter[str] = Counter()
        self.failed: list[str] = []

    @contextmanager
    def going_on(self) -> Iterator[None]:
        with running_thread(self._ask_in_turn):
            yield

    def _ask_in_turn(self, stop: threading.Event) -> None:
        with httpx.Client(timeout=40) as http:
            for path, expected in itertools.cycle(QUERIES.items()):
                if stop.wait(0.01):
                    return
                try:
                    found = self._all_pages(http, path)
                except (httpx.HTTPError, ValueError) as error:
                    self.failed.append(f"{path}: {error!r}")
                else:
                    if found != expected:
                        self.failed.append(f"{path}: {found}")
                self.asked[path] += 1

    def _all_pages(self, http: httpx.Client, path: str) -> Any:
        found: list[Any] = []
        cursor = ""
        while True:
            with self._readers.through() as url:
                answer = http.get(url + with_deadline(path + cursor))
            if answer.status_code != 200:
                raise ValueError(f"{url}: {answer.status_code} {answer.text}")
            body = json.loads(answer.content)
            if "items" not in body:
                return body["count"]
            found += [
                item["key"] if "key" in item else [item["value"], item["count"]] for item in body["items"]
            ]
            if not body.get("cursor"):
                return found
            cursor = f"&cursor={quote(body['cursor'])}"
