"""Say what a view will run where, from its spec, Spark's analysis, and the topic's size if it is known.

Pure. Estimates name what they assume, and what cannot be known before the view runs is listed as unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from queryable_app.aggregates.catalog import code_of
from queryable_app.aggregates.states import state_codec
from queryable_app.config.aggregate_spec import AggregateSpec, WindowSpec
from queryable_app.config.rekey import internal_topic
from queryable_app.config.topic_spec import TopicSpec
from queryable_app.contract import NodeSettings

RECORDS_PER_SECOND: Final = 100_000
"""What a rebuild is assumed to reach; docs/benchmarks.md has measured rates."""

_DEFAULTS: Final = {field.name: field.default for field in NodeSettings.__dataclass_fields__.values()}
_UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"), (1, "ms"))


_WIDTH: Final = {"long": 8, "double": 8, "boolean": 1, "timestamp": 8}
_ENTRY: Final = {"string": "the text, the key and 3 bytes"} | {
    name: f"the key and {1 + width} bytes" for name, width in _WIDTH.items()
}
"""The size of an index's entry for a row, by the type of the index."""


def explanation(
    name: str, spec: TopicSpec, analysis: Mapping[str, Any], partitions: int | None, records: int | None
) -> dict[str, Any]:
    """Return the explanation as JSON has it. `partitions` and `records` are None where the topic is not known."""
    aggregate = spec.aggregate
    known: dict[str, Any] = {
        "name": name,
        "topic": {"name": spec.topic, "partitions": partitions, "records": records},
        "kind": "aggregate" if aggregate is not None else "latest" if spec.history is None else "history",
        "stages": list(_stages(spec, analysis)),
        "columns": analysis["columns"],
        "internalTopics": [],
    }
    unknown: list[str] = []
    if aggregate is not None:
        known["group"] = {
            "by": list(aggregate.group_by) or ["the record key"],
            "keyFormat": analysis["groupKeyFormat"] or spec.key_format,
        }
        known["inputs"] = _inputs(aggregate, analysis)
        known["stored"] = [
            {"name": c.name, "op": c.op, "of": c.of, "filter": c.filter} for c in aggregate.columns
        ]
        if aggregate.window is not None:
            known["window"] = _window(aggregate.window)
    if spec.key_by:
        known["key"] = {"by": list(spec.key_by), "keyFormat": analysis["groupKeyFormat"]}
    if spec.indexes:
        known["indexes"] = [
            {"name": index.name, "field": index.field, "type": index.type, "entry": _ENTRY[index.type]}
            for index in spec.indexes
        ]
        unknown.append("the disk space of indexes: an entry for each row whose field has a value of the type")
    if spec.is_rekeyed:
        known["internalTopics"] = [{"name": internal_topic("<applicationId>"), "partitions": partitions}]
    known["placement"] = _placement(spec, partitions)
    known["estimates"] = _estimates(spec, analysis, records, unknown)
    if records is None:
        unknown.insert(0, "the topic's partitions and records: name a broker with --kafka")
    known["unknown"] = unknown
    return known


def _stages(spec: TopicSpec, analysis: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    mode = "Real-Time Mode" if spec.ingest.mode == "realtime" else "micro-batches"
    what = ["decodes and checks records"]
    if spec.sql:
        what.append("transform.sql")
    if spec.aggregate is not None:
        number = len(analysis["inputs"])
        what.append(f"{number} input{'s' if number > 1 else ''} of the aggregate")
    if analysis["readsHeaders"]:
        what.append("reads headers")
    if spec.is_rekeyed:
        key = (
            "the group's key"
            if spec.aggregate is not None
            else "the new key, and where a record has left a key"
        )
        executors = spec.ingest.executors
        yield {
            "where": f"rekey job: a driver and {executors} executors" if executors else "rekey job",
            "what": f"Spark, {mode}: {', '.join(what)}; writes under {key}",
        }
        yield {"where": "ingest of each node", "what": f"Spark, {mode}: reads the internal topic"}
    else:
        yield {
            "where": "ingest of each node",
            "what": f"Spark, {mode}: {', '.join(what)}; a projection without a shuffle",
        }
    if spec.key_by:
        what_serve = "stores the newest value of each key, and hides those of other records with the same key"
        yield {"where": "serve of each node", "what": what_serve}
    elif spec.entries is not None:
        what_serve = f"stores all values of each key, in the order of {spec.entries.time_field}"
        yield {"where": "serve of each node", "what": what_serve}
    elif spec.history is not None:
        kept = f"its versions until {_duration(spec.history.retention_ms)} after their replacement"
        yield {"where": "serve of each node", "what": f"stores the newest value of each key, and {kept}"}
    elif spec.aggregate is None:
        yield {"where": "serve of each node", "what": "stores the newest value of each key"}
    else:
        yield {"where": "serve of each node", "what": "folds the inputs of each group in offset order"}
    if spec.indexes:
        yield {"where": "serve of each node", "what": "writes the index entries of a row in the same batch"}
    if spec.changes:
        yield {"where": "serve of each node", "what": "logs the changes of the last day"}


def _inputs(aggregate: AggregateSpec, analysis: Mapping[str, Any]) -> list[dict[str, Any]]:
    users: dict[Any, list[str]] = {}
    for column in aggregate.columns:
        users.setdefault(column.input, []).append(column.name)
    found = zip(aggregate.inputs, analysis["inputs"], strict=True)
    return [{**each, "columns": users[wanted]} for wanted, each in found]


def _window(window: WindowSpec) -> dict[str, Any]:
    rule: dict[str, Any]
    if window.gap_ms:
        rule = {"kind": "session", "sessionGap": _duration(window.gap_ms)}
    elif window.slide_ms == window.size_ms:
        rule = {"kind": "tumbling", "size": _duration(window.size_ms)}
    else:
        rule = {
            "kind": "hopping",
            "size": _duration(window.size_ms),
            "slide": _duration(window.slide_ms),
            "windowsOfARecord": -(-window.size_ms // window.slide_ms),
        }
    return {
        **rule,
        "grace": _duration(window.grace_ms),
        "retention": _duration(window.retention_ms),
        "time": window.time_column or "the record's timestamp",
    }


def _placement(spec: TopicSpec, partitions: int | None) -> dict[str, Any]:
    of_each = spec.replication_factor
    replicas = None if partitions is None else partitions * of_each
    at_most = None if replicas is None else -(-replicas // spec.replicas)
    return {
        "nodes": spec.replicas,
        "replicasOfEachPartition": of_each,
        "replicas": replicas,
        "atMostOnANode": at_most,
    }


def _estimates(
    spec: TopicSpec, analysis: Mapping[str, Any], records: int | None, unknown: list[str]
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "memoryOfANode": {
            "blockCacheMiB": _DEFAULTS["block_cache_mb"],
            "writeBuffersMiB": _DEFAULTS["write_buffer_mb"],
            "sparkHeap": spec.ingest.driver_memory,
        }
    }
    if records is not None:
        # Each node reads its own replicas' partitions: all records, as often as each is replicated, over the nodes.
        read = -(-records * spec.replication_factor // spec.replicas)
        found["rebuild"] = {
            "recordsOfANode": read,
            "seconds": -(-read // RECORDS_PER_SECOND),
            "assumedRecordsPerSecond": RECORDS_PER_SECOND,
        }
    if spec.aggregate is None:
        unknown.append("the disk space: it depends on the number of keys and the size of values")
        return found
    bytes_of_a_row = _row_bytes(spec.aggregate, analysis)
    found["disk"] = {"bytesOfARow": bytes_of_a_row}
    if records is not None:
        rows = records * _windows_of_a_record(spec.aggregate.window)
        found["disk"] |= {"rowsAtMost": rows, "bytesAtMost": rows * bytes_of_a_row * spec.replication_factor}
    unknown.append("the number of groups: every record in a group of its own is the most")
    unknown.append("the length of keys, and of texts, sets and sketches in the states: they come on top")
    return found


def _row_bytes(aggregate: AggregateSpec, analysis: Mapping[str, Any]) -> int:
    """Return the size of a stored row of a group without its key and the variable parts of its state."""
    types = [each["type"] for each in analysis["inputs"]]
    inputs = aggregate.inputs
    codes = bytes(code_of(c.op, types[inputs.index(c.input)]) for c in aggregate.columns)
    codec = state_codec(aggregate.columns, codes)
    return len(codec.encode(codec.new()))


def _windows_of_a_record(window: WindowSpec | None) -> int:
    return -(-window.size_ms // window.slide_ms) if window is not None and window.slide_ms else 1


def _duration(ms: int) -> str:
    return next(f"{ms // unit}{name}" for unit, name in _UNITS if ms % unit == 0)


def as_text(known: Mapping[str, Any]) -> str:
    """Return the explanation for a person."""
    return "\n".join(_lines(known))


def _lines(known: Mapping[str, Any]) -> Iterator[str]:
    topic = known["topic"]
    size = (
        ""
        if topic["records"] is None
        else f", {topic['partitions']} partitions, {topic['records']:,} records"
    )
    yield f"{known['name']}: {known['kind']} view of the topic {topic['name']}{size}"
    yield from _section("Stages", [(s["where"], s["what"]) for s in known["stages"]])
    yield from _section("Columns of the transform", [(c["name"], c["type"]) for c in known["columns"]])
    if "key" in known:
        yield from _section("Key", [(", ".join(known["key"]["by"]), f"a {known['key']['keyFormat']} key")])
    if "inputs" in known:
        group = known["group"]
        yield from _section("Group", [(", ".join(group["by"]), f"a {group['keyFormat']} key")])
        yield from _section("Inputs", [_input_cells(each) for each in known["inputs"]])
        yield from _section("Stored columns", [_stored_cells(each) for each in known["stored"]])
    if "window" in known:
        yield from _section("Window", [(name, str(value)) for name, value in known["window"].items()])
    if "indexes" in known:
        cells = [(i["name"], i["field"], i["type"], i["entry"]) for i in known["indexes"]]
        yield from _section("Indexes (to change them makes a new revision)", cells)
    internal: list[tuple[str, ...]] = [
        (t["name"], f"{t['partitions'] or '?'} partitions") for t in known["internalTopics"]
    ]
    internal = internal or [("none",)]
    yield from _section("Internal topics", internal)
    place = known["placement"]
    placed = [
        ("nodes", str(place["nodes"])),
        ("replicas of each partition", str(place["replicasOfEachPartition"])),
    ]
    if place["atMostOnANode"] is not None:
        placed.append(("replicas on a node", f"at most {place['atMostOnANode']} of {place['replicas']}"))
    yield from _section("Placement", placed)
    yield from _section("Estimates", list(_estimate_cells(known["estimates"])))
    yield from _section("Unknown", [(each,) for each in known["unknown"]])


def _input_cells(each: Mapping[str, Any]) -> tuple[str, ...]:
    of = each["of"] or "records"
    of += f" where {each['filter']}" if each["filter"] else ""
    return of, each["sqlType"] or "-", "for " + ", ".join(each["columns"])


def _stored_cells(each: Mapping[str, Any]) -> tuple[str, ...]:
    condition = f" where {each['filter']}" if each["filter"] else ""
    return each["name"], f"{each['op']}({each['of'] or '*'}){condition}"


def _estimate_cells(estimates: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    memory = estimates["memoryOfANode"]
    yield (
        "memory of a node",
        f"{memory['blockCacheMiB']} MiB block cache, {memory['writeBuffersMiB']} MiB write buffers, "
        f"{memory['sparkHeap']} Spark heap, and both processes",
    )
    if "disk" in estimates:
        disk = estimates["disk"]
        most = (
            f"; at most {disk['rowsAtMost']:,} rows, {disk['bytesAtMost']:,} bytes"
            if "rowsAtMost" in disk
            else ""
        )
        yield "disk", f"{disk['bytesOfARow']} bytes for a group, and its key{most}"
    if "rebuild" in estimates:
        rebuild = estimates["rebuild"]
        yield (
            "rebuild",
            f"about {rebuild['seconds']:,} s: {rebuild['recordsOfANode']:,} records on a node, "
            f"if it reads {rebuild['assumedRecordsPerSecond']:,} a second",
        )


def _section(title: str, rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    if not rows:
        return
    yield ""
    yield title
    columns = max(map(len, rows))
    widths = [max(len(row[n]) for row in rows if n < len(row)) for n in range(columns)]
    for row in rows:
        yield ("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))).rstrip()
