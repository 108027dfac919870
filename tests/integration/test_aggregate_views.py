"""Test aggregate views as a whole: a real broker, Spark and RocksDB, read over HTTP."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.integration import topics
from tests.integration.system import System, resource, running
from tests.support.waiting import eventually

SCHEMA = "product STRING, amount DECIMAL(10,2), items INT, weight DOUBLE, status STRING"
SQL = "SELECT key, value.*, value.amount * value.items AS total FROM records WHERE value.status <> 'test'"
COLUMNS: list[dict[str, Any]] = [
    {"name": "orders", "op": "count"},
    {"name": "weighed", "op": "count", "of": "weight"},
    {"name": "items", "op": "sum", "of": "items"},
    {"name": "paid", "op": "sum", "of": "total", "filter": "status = 'paid'"},
    {"name": "largest", "op": "max", "of": "amount"},
    {"name": "lightest", "op": "min", "of": "weight"},
    {"name": "mean", "op": "avg", "of": "items"},
    {"name": "first", "op": "first", "of": "product"},
    {"name": "last", "op": "last", "of": "product"},
]
Order = dict[str, Any]


def orders(seed: int, number: int) -> list[tuple[str, Order | None]]:
    """Return records of few customers: orders with nulls, tombstones, and orders that the SQL drops."""
    dice = random.Random(seed)
    made: list[tuple[str, Order | None]] = []
    for n in range(number):
        order = {
            "product": dice.choice(["cup", "héron", None, f"p{n}"]),
            "amount": dice.choice([None, round(dice.uniform(-5, 1000), 2)]),
            "items": dice.choice([None, dice.randrange(1, 9)]),
            "weight": dice.choice([None, dice.randrange(1000) / 8]),
            "status": dice.choice(["paid", "open", "test"]),
        }
        made.append((f"c{dice.randrange(12)}", None if dice.random() < 0.1 else order))
    return made


def produce(bootstrap: str, topic: str, records: Sequence[tuple[str, Order | None]]) -> None:
    topics.produce(
        bootstrap,
        topic,
        [(key.encode(), None if value is None else json.dumps(value).encode()) for key, value in records],
    )


def folded(records: Sequence[tuple[str, Order | None]]) -> dict[str, Any]:
    """Return what the view holds of these records, by customer."""
    groups: dict[str, list[Order]] = {}
    for key, value in records:
        if value is not None and value["status"] != "test":
            groups.setdefault(key, []).append(value)
    return {key: _answer(group) for key, group in groups.items()}


def _answer(group: list[Order]) -> Any:
    def known(name: str) -> list[Any]:
        return [order[name] for order in group if order[name] is not None]

    paid = [o for o in group if o["status"] == "paid" and o["amount"] is not None and o["items"] is not None]
    amounts, items, weights = [_cents(a) for a in known("amount")], known("items"), known("weight")
    return {
        "orders": len(group),
        "weighed": len(weights),
        "items": sum(items) if items else None,
        "paid": sum((_cents(o["amount"]) * o["items"] for o in paid), Decimal()) if paid else None,
        "largest": max(amounts, default=None),
        "lightest": min(weights, default=None),
        "mean": sum(items) / len(items) if items else None,
        "first": group[0]["product"],
        "last": group[-1]["product"],
    }


def _cents(amount: float) -> Decimal:
    return Decimal(str(amount)).quantize(Decimal("0.01"))


def served(system: System) -> dict[str, Any]:
    """Return every row, with decimals as they are written."""
    text = system.get("/v1/scan?limit=1000").text
    decimals = ("paid", "largest")
    rows = {item["key"]: item["value"] for item in json.loads(text, parse_float=Decimal)["items"]}
    return {
        key: {
            name: float(value) if isinstance(value, Decimal) and name not in decimals else value
            for name, value in row.items()
        }
        for key, row in rows.items()
    }


@pytest.mark.parametrize("mode", ["realtime", "microbatch"])
def test_aggregates_equal_the_fold_of_the_topic(kafka: Any, tmp_path: Path, mode: str) -> None:
    """Every column equals the fold of the records in order, also after ingest and serve were killed."""
    topic = f"orders-{mode}"
    topics.create(kafka.bootstrap, topic, 3)
    records = orders(1, 2000)
    produce(kafka.bootstrap, topic, records)
    topics.produce(kafka.bootstrap, topic, [(b"c1", b"{no json"), (None, b"{}")])
    document = resource(
        topic,
        kafka.bootstrap,
        value={"format": "json", "schema": SCHEMA},
        transform={"sql": SQL},
        view={"kind": "aggregate", "aggregate": {"columns": COLUMNS}},
        ingest={"mode": mode},
    )
    with running(document, tmp_path) as system:
        system.at_end(topics.ends(kafka.bootstrap, topic))
        assert served(system) == folded(records)
        assert system.value("c3") == next(i["value"] for i in system.items() if i["key"] == "c3")
        status = system.status()
        assert status["ingest"]["mode"] == mode
        assert [sum(p[name] for p in status["partitions"]) for name in ("bad", "nullKeys")] == [1, 1]

        for role, seed in (("ingest", 2), ("serve", 3)):
            system.kill(role)
            more = orders(seed, 500)
            produce(kafka.bootstrap, topic, more)
            records += more
            system.at_end(topics.ends(kafka.bootstrap, topic))
            assert served(system) == folded(records)


def test_count_without_a_transform(kafka: Any, tmp_path: Path) -> None:
    """A count of records by key needs no schema and no SQL, whatever the values are."""
    topics.create(kafka.bootstrap, "clicks", 2)
    topics.produce(
        kafka.bootstrap, "clicks", [(b"a", b"x"), (b"b", b"\xff"), (b"a", b""), (b"a", None), (b"b", b"1")]
    )
    columns = [{"name": "n", "op": "count"}, {"name": "latest", "op": "max", "of": "offset"}]
    document = resource(
        "clicks",
        kafka.bootstrap,
        value={"format": "bytes"},
        view={"kind": "aggregate", "aggregate": {"columns": columns}},
    )
    with running(document, tmp_path) as system:
        system.at_end(topics.ends(kafka.bootstrap, "clicks"))
        assert {item["key"]: item["value"]["n"] for item in system.items()} == {"a": 2, "b": 2}
        topics.produce(kafka.bootstrap, "clicks", [(b"a", b"more")])
        eventually("the next record counts", lambda: system.value("a")["n"] == 3)


def test_invalid_aggregate_is_refused_before_the_start(kafka: Any, tmp_path: Path) -> None:
    """The run ends with the column's name and advice, and starts no node."""
    columns = [{"name": "total", "op": "sum", "of": "value.product"}]
    document = resource(
        "whatever",
        kafka.bootstrap,
        value={"format": "json", "schema": SCHEMA},
        view={"kind": "aggregate", "aggregate": {"columns": columns}},
    )
    with running(document, tmp_path, wait=False) as system:
        assert system.process.wait(120) == 2
        assert "spec.view.aggregate.columns[total].of: sum of value.product" in system.log.read_text()
        assert not (system.data / "run.json").exists()
