"""Compare an aggregate view with Spark SQL's own batch answer over the same records, for random schemas and columns.

Spark computes the inputs as ingest does, the JVM's encoder writes them, and the fold of serve turns them into JSON.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
import random
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import pytest
from pyspark.sql import DataFrame, SparkSession

from queryable_app.aggregates.catalog import takes
from queryable_app.aggregates.folding import Folding
from queryable_app.aggregates.rendering import state_renderer
from queryable_app.aggregates.states import Group
from queryable_app.config.aggregate_spec import AggregateColumn, AggregateOp, AggregateSpec
from queryable_app.ingest.decoded_records import View
from queryable_app.ingest.stream import contribution_of
from queryable_app.ingest.transform import project
from queryable_app.wire import contributions
from queryable_app.wire.disk_format import ROW_HEADER, ROW_HEADER_SIZE
from tests.support.spark_rows import spark_rows

SEEDS: Final = range(1, 17)
RECORDS: Final = 60
GROUPS: Final = 4
EPOCH: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001
EXACT_OPS: Final[tuple[AggregateOp, ...]] = (
    "count",
    "sum",
    "min",
    "max",
    "avg",
    "first",
    "last",
    "collect_set",
)
SOURCE: Final = "partition int, offset bigint, timestamp timestamp, key binary, value binary"


def _text(dice: random.Random) -> str:
    return dice.choice(["", "a", "A", "ab", "é", "€", "😀", "\x00", "\U0010ffff", '"\\', "z" * 40])


def _double(dice: random.Random) -> float:
    return dice.choice([0.0, -0.0, 5e-324, 0.1, 1e16, dice.uniform(-1e6, 1e6)])


def _any_double(dice: random.Random) -> float | str:
    """Return NaN and the infinities, too, which few sums survive."""
    special: list[float | str] = ["NaN", "Infinity", "-Infinity", 1.7976931348623157e308]
    return dice.choice([*special, _double(dice), _double(dice)])


def _date(dice: random.Random) -> str:
    day = EPOCH + dt.timedelta(days=dice.randrange(-700_000, 2_900_000))
    return day.strftime("%Y-%m-%d").rjust(10, "0")


def _timestamp(dice: random.Random) -> str:
    seconds, milliseconds = dice.randrange(-(10**9), 10**10), dice.randrange(1000)
    time = EPOCH + dt.timedelta(seconds=seconds, milliseconds=milliseconds)
    return time.isoformat(timespec="milliseconds") + "Z"


def _float(dice: random.Random) -> float:
    return float(struct.unpack(">f", struct.pack(">f", dice.uniform(-1e3, 1e3)))[0])


def _integer(bits: int) -> Callable[[random.Random], int]:
    ends = [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, 0, -1]
    return lambda dice: dice.choice(ends) if dice.random() < 0.15 else dice.randrange(-100, 100)


def _decimal(precision: int, scale: int) -> Callable[[random.Random], Decimal]:
    def value(dice: random.Random) -> Decimal:
        digits = precision if dice.random() < 0.2 else dice.randrange(1, precision + 1)
        unscaled = dice.randrange(-(10**digits) + 1, 10**digits)
        return Decimal(unscaled).scaleb(-scale)

    return value


# By SQL type, a value as JSON has it, and the type's character in a contribution.
TYPES: Final[dict[str, tuple[Callable[[random.Random], Any], str]]] = {
    "TINYINT": (_integer(8), "l"),
    "SMALLINT": (_integer(16), "l"),
    "INT": (_integer(32), "l"),
    "BIGINT": (_integer(64), "l"),
    "FLOAT": (_float, "f"),
    "DOUBLE": (_double, "d"),
    "double": (_any_double, "d"),
    "BOOLEAN": (lambda dice: dice.random() < 0.5, "b"),
    "STRING": (_text, "s"),
    "BINARY": (lambda dice: base64.b64encode(dice.randbytes(dice.randrange(4))).decode(), "x"),
    "DATE": (_date, "D"),
    "TIMESTAMP": (_timestamp, "t"),
    "DECIMAL(10,2)": (_decimal(10, 2), "n"),
    "DECIMAL(20,0)": (_decimal(20, 0), "n"),
    "DECIMAL(38,18)": (_decimal(38, 18), "n"),
    "DECIMAL(38,0)": (_decimal(38, 0), "n"),
}


@dataclass(frozen=True)
class Case:
    schema: str
    sql: str | None
    columns: tuple[AggregateColumn, ...]
    types: tuple[str, ...]
    """The type of each column's values."""

    records: list[tuple[bytes, bytes | None]]


def case(seed: int) -> Case:
    dice = random.Random(seed)
    fields = {f"f{n}": dice.choice(list(TYPES)) for n in range(5)} | {"flag": "BOOLEAN", "small": "INT"}
    names = {name: f"value.{name}" for name in fields}
    sql = None
    if dice.random() < 0.7:
        where = dice.choice(["", " WHERE value.flag", " WHERE value.small > 0 OR value.f0 IS NULL"])
        sql = f"SELECT key, {', '.join(f'value.{name} AS {name}' for name in fields)}, offset FROM records{where}"
        names = {name: name for name in fields}
    columns, types = [AggregateColumn("records", "count")], ["l"]
    while len(columns) < 9:
        field = dice.choice(list(fields))
        column = _column(dice, f"c{len(columns)}", field, TYPES[fields[field]][1], names)
        if column is not None:
            columns.append(column)
            types.append(TYPES[fields[field]][1])
    return Case(
        ", ".join(f"{name} {type_}" for name, type_ in fields.items()),
        sql,
        tuple(columns),
        tuple(types),
        [(f"k{dice.randrange(GROUPS)}".encode(), _value(dice, fields)) for _ in range(RECORDS)],
    )


def _column(
    dice: random.Random, name: str, field: str, type_: str, names: dict[str, str]
) -> AggregateColumn | None:
    op, of = dice.choice(EXACT_OPS), names[field]
    if not takes(op, type_):
        return None
    if type_ == "l" and dice.random() < 0.3:
        of = f"{of} + {names['small']}"
    elif dice.random() < 0.2:
        of = f"CASE WHEN {names['flag']} THEN {of} END"
    conditions = [None, None, names["flag"], f"{names['small']} % 2 = 0", f"{of} IS NULL"]
    return AggregateColumn(name, op, of, dice.choice(conditions), limit=RECORDS)


def _value(dice: random.Random, fields: dict[str, str]) -> bytes | None:
    if dice.random() < 0.05:
        return None  # a tombstone
    given = {name: TYPES[type_][0](dice) for name, type_ in fields.items() if dice.random() > 0.15}
    members = [
        f"{json.dumps(name)}: {_json(None if dice.random() < 0.1 else v)}" for name, v in given.items()
    ]
    return f"{{{', '.join(members)}}}".encode()


def _json(value: Any) -> str:
    return f"{value:f}" if isinstance(value, Decimal) else json.dumps(value)


def folded(spark: SparkSession, source: DataFrame, of: Case) -> dict[str, dict[str, Any]]:
    """Return what the view holds: inputs by Spark, encoded in the JVM, folded and rendered as serve does."""
    spec = AggregateSpec(of.columns)
    projection = project(spark, source, View("string", "json", of.schema, of.sql, spec))
    types = "".join(each.type for each in projection.inputs)
    encoder = contribution_of(spark, projection)
    folding = Folding(spec, types.encode())
    groups: dict[str, Group] = {}
    for row in spark_rows(projection.frame):
        assert row.isNullAt(6), row.getUTF8String(6).toString()
        if not row.getBoolean(5):
            stored = ROW_HEADER.pack(0, row.getLong(1), 0, 0) + bytes(encoder.encoded(row))
            offset, timestamp_ms, _, inputs = contributions.decode(stored)
            group = groups.setdefault(bytes(row.getBinary(3)).decode(), folding.codec.new())
            folding.fold(group, offset, timestamp_ms, inputs)
    render = state_renderer(spec)
    return {
        key: parsed(render(folding.codec.encode(group)[ROW_HEADER_SIZE:]).decode())
        for key, group in groups.items()
    }


def batch(spark: SparkSession, source: DataFrame, of: Case) -> dict[str, dict[str, Any]]:
    """Return the answer of GROUP BY, in one partition, so that first, last and sums of doubles go by offset."""
    source.createOrReplaceTempView("source")
    spark.sql(
        f"SELECT CAST(key AS STRING) AS key, from_json(CAST(value AS STRING), '{of.schema}') AS value, "
        "partition, offset, timestamp FROM source WHERE value IS NOT NULL"
    ).coalesce(1).createOrReplaceTempView("records")
    columns = zip(of.columns, of.types, strict=True)
    members = ", ".join(f"{_sql(column, type_)} AS {column.name}" for column, type_ in columns)
    query = f"SELECT key, to_json(struct({members}), map('ignoreNullFields', 'false')) AS answer "
    query += f"FROM ({of.sql or 'SELECT * FROM records'}) GROUP BY key"
    return {row.key: parsed(row.answer) for row in spark.sql(query).collect()}


def _sql(column: AggregateColumn, type_: str) -> str:
    condition = "" if column.filter is None else f" FILTER (WHERE {column.filter})"
    if column.op == "avg" and type_ == "l":  # Spark's own adds integers as doubles, which rounds
        total = f"sum(CAST({column.of} AS DECIMAL(38,0))){condition}"
        return f"CAST({total} AS DOUBLE) / count({column.of}){condition}"
    return f"{column.op}({column.of or '*'}){condition}"


def parsed(text: str) -> dict[str, Any]:
    return dict(json.loads(text, parse_float=Decimal, parse_int=Decimal))


@contextmanager
def interpreted(spark: SparkSession) -> Iterator[None]:
    """Compile no plan to Java: each runs once, and over few records."""
    settings = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield
    for name in settings:
        spark.conf.unset(name)


def assert_equal(column: AggregateColumn, type_: str, got: Any, error: str | None, expected: Any) -> None:
    if error is not None:  # the sum does not fit: Spark wraps an integer, and has no decimal
        assert got is None
        assert type_ == "l" or expected is None
        return
    if type_ == "n" and column.op in ("sum", "avg") and expected is None and got is not None:
        return  # Spark gives up when a partial sum needs more than 38 digits; the view's sum is exact
    if column.op == "collect_set":
        got, expected = sorted(map(str, got)), sorted(map(str, expected))
    elif type_ in "dfl" and isinstance(got, Decimal) and isinstance(expected, Decimal):
        got, expected = float(got), float(expected)
        if type_ == "f" and column.op not in ("sum", "avg"):
            got, expected = struct.pack("f", got), struct.pack("f", expected)
        elif type_ == "l" and column.op == "avg":  # one rounding here, two there
            assert math.isclose(got, expected, rel_tol=1e-15), (column, got, expected)
            return
    assert got == expected, column


@pytest.mark.parametrize("seed", SEEDS)
def test_view_equals_the_batch_answer(spark: SparkSession, seed: int) -> None:
    """Every group and every column equals Spark SQL's answer over the same records: nulls, filters, extremes, all types."""
    of = case(seed)
    rows = [(0, offset, EPOCH, key, value) for offset, (key, value) in enumerate(of.records)]
    source = spark.createDataFrame(rows, SOURCE).coalesce(1)
    with interpreted(spark):
        got, expected = folded(spark, source, of), batch(spark, source, of)

    assert got.keys() == expected.keys()
    for key, answer in expected.items():
        errors = got[key].pop("_errors", {})
        assert list(got[key]) == [column.name for column in of.columns]
        for column, type_ in zip(of.columns, of.types, strict=True):
            name = column.name
            assert_equal(column, type_, got[key][name], errors.get(name), answer[name])


def test_sum_beyond_64_bits_is_an_error(spark: SparkSession) -> None:
    """Where Spark's sum wraps around, the view has null and says why."""
    columns = (AggregateColumn("total", "sum", "value.n"), AggregateColumn("mean", "avg", "value.n"))
    of = Case("n BIGINT", None, columns, ("l", "l"), [(b"k", f'{{"n": {2**63 - 1}}}'.encode())] * 3)
    source = spark.createDataFrame([(0, n, EPOCH, k, v) for n, (k, v) in enumerate(of.records)], SOURCE)

    assert folded(spark, source, of) == {
        "k": {
            "total": None,
            "mean": Decimal(repr(float(2**63 - 1))),
            "_errors": {"total": "sum beyond 64 bits"},
        }
    }
