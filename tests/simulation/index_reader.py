"""Find rows by the indexes of a view over all nodes, and compare what is found with every row that could be there.

A strong read has every record from before it began, and may have any later one. So of each key it may show one of a few rows. If
all of them match and have one place in the index, the key must be found, and if none matches, it must not. A row whose place
changes during a read may be found twice, or not at all. Each page of a read may come from other nodes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from tests.simulation.checks import GuaranteeBroken, KeyAnswer, may_be_newest, possible_records
from tests.simulation.readers import Reader
from tests.simulation.views import CITIES
from tests.simulation.writer_keys import ALL_KEYS
from tests.support.fold import LogRecord

Match = Callable[[Any], bool]
Rows = Mapping[bytes, Sequence[LogRecord | None]]


class IndexReader(Reader):
    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.random.expovariate(3))
            reads = (self._rows, self._rows, self._count, self._groups, self._top)
            await self.random.choice(reads)()

    async def _rows(self) -> None:
        """Read all pages of one value of an index, or of a range."""
        index, bounds, match = self._any_range()
        order = self.random.choice(("asc", "desc"))
        if self.random.random() < 0.3:
            city, of_range = self.random.choice(CITIES), match
            bounds += "&where=" + quote(f"city = '{city}'")
            match = lambda value: of_range(value) and value.get("city") == city  # noqa: E731
        path = f"/v1/index/{index}?{bounds}&order={order}&limit={self.random.choice((2, 5, 50))}"
        began, items = self._now(), await self._pages(path)
        if items is None:
            return
        places = [(item["value"][_FIELDS[index]], item["key"].encode()) for item in items]
        if places != sorted(set(places), reverse=order == "desc"):
            raise GuaranteeBroken(f"{path} gives {places}, which is not once each, in order")
        self._check_items(path, items, self._possible(began), index, match)

    async def _count(self) -> None:
        index, bounds, match = self._any_range()
        began, path = self._now(), f"/v1/index/{index}/count?{bounds}"
        answer = await self.ask_strong(path, "index")
        if answer is not None:
            self._check_count(path, answer["count"], self._possible(began), index, match)

    async def _groups(self) -> None:
        """Read all pages of the distinct values of an index with their numbers of rows."""
        began, path = self._now(), f"/v1/index/by-city/groups?limit={self.random.choice((1, 2, 50))}"
        items = await self._pages(path)
        if items is None:
            return
        counts = {item["value"]: item["count"] for item in items}
        if [item["value"] for item in items] != sorted(counts):
            raise GuaranteeBroken(f"{path} gives {items}, which is not each value once, in order")
        possible = self._possible(began)
        for city in CITIES:
            self._check_count(f"{path} {city}", counts.pop(city, 0), possible, "by-city", _city_is(city))
        if counts:
            raise GuaranteeBroken(f"{path} has the values {counts}, which no row has")

    async def _top(self) -> None:
        """Read the rows with the greatest numbers."""
        began, count = self._now(), self.random.randint(1, 25)
        path = f"/v1/top?by=by-number&k={count}"
        answer = await self.ask_strong(path, "index")
        if answer is None:
            return
        items = answer["items"]
        numbers = [item["value"]["n"] for item in items]
        if numbers != sorted(set(numbers), reverse=True) or len(items) > count:
            raise GuaranteeBroken(f"{path} gives {numbers}")
        least = numbers[-1] if len(items) == count else 0
        self._check_items(path, items, self._possible(began), "by-number", lambda value: value["n"] >= least)

    def _any_range(self) -> tuple[str, str, Match]:
        if self.random.random() < 0.5:
            city = self.random.choice(CITIES)
            return "by-city", f"eq={quote(city)}", _city_is(city)
        last = sum(map(len, self.world.topic.written))
        first = self.random.randint(0, last)
        end = self.random.choice((last + 1000, first + 20))
        return "by-number", f"from={first}&to={end}", lambda value: first <= value["n"] < end

    async def _pages(self, path: str) -> list[dict[str, Any]] | None:
        """Return the items of all pages, or None if a page failed."""
        items: list[dict[str, Any]] = []
        cursor = ""
        while True:
            page = await self.ask_strong(path + cursor, "index")
            if page is None:
                return None
            items += page["items"]
            if page["cursor"] is None:
                return items
            cursor = f"&cursor={page['cursor']}"

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _possible(self, began: float) -> Rows:
        """Return the rows of each key that a strong read may show that began then and ends now; None: no row."""
        topic, found = self.world.topic, dict[bytes, Sequence[LogRecord | None]]()
        positions = {p: topic.end_at(p, began) for p in range(topic.partitions)}
        for key in ALL_KEYS:
            answer = KeyAnswer(key, positions, None, None, False)
            choices = {p: possible_records(topic, p, answer) for p in positions}
            records = [r for each in choices.values() for r in each if r is not None]
            rows: list[LogRecord | None] = [r for r in records if may_be_newest(r, choices)]
            found[key] = [*rows, *([None] if all(None in each for each in choices.values()) else [])]
        return found

    def _check_items(
        self, path: str, items: list[dict[str, Any]], possible: Rows, index: str, match: Match
    ) -> None:
        for item in items:
            value = json.dumps(item["value"]).encode()
            where = item["partition"], item["offset"], value
            rows = [(r.partition, r.offset, r.value) for r in possible.get(item["key"].encode(), ()) if r]
            if where not in rows or not match(item["value"]):
                raise GuaranteeBroken(f"{path} finds {item}, and its key can have only {rows}")
        keys = {item["key"].encode() for item in items}
        missing = {key for key, rows in possible.items() if _must_be_found(rows, index, match)} - keys
        if missing:
            raise GuaranteeBroken(f"{path} finds {sorted(keys)}, and not {sorted(missing)}")

    def _check_count(self, path: str, count: int, possible: Rows, index: str, match: Match) -> None:
        least = sum(_must_be_found(rows, index, match) for rows in possible.values())
        most = sum(any(_matches(row, match) for row in rows) for rows in possible.values())
        if not least <= count <= most:
            raise GuaranteeBroken(f"{path} counts {count}, and there are {least} to {most}")


_FIELDS: Final = {"by-city": "city", "by-number": "n"}


def _city_is(city: str) -> Match:
    return lambda value: value.get("city") == city


def _must_be_found(rows: Sequence[LogRecord | None], index: str, match: Match) -> bool:
    """Tell whether all rows that a key may have match, and have the same place in the index."""
    places = {
        json.loads(row.value)[_FIELDS[index]] for row in rows if row and _matches(row, match) and row.value
    }
    return len(places) == 1 and all(_matches(row, match) for row in rows)


def _matches(row: LogRecord | None, match: Match) -> bool:
    return row is not None and row.value is not None and match(json.loads(row.value))
