"""The resource's `spec` as frozen values, or an error that names the field.

Strategy: the schema in `crds/queryabletopic.yaml` decides what a field may be; here the fields become typed
values with their defaults, and what crosses fields is checked. A field that this version does not carry out
yet is refused by name rather than silently ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast, get_args

KeyFormat = Literal["string", "int", "long", "double", "uuid", "bytes", "json"]
ValueFormat = Literal["json", "string", "int", "long", "double", "uuid", "bytes"]
OnBadRecord = Literal["Skip", "Fail", "DeadLetter"]
OnDataLoss = Literal["Fail", "Rebuild"]
PartitionerName = Literal["auto", "murmur2", "crc32", "fnv1a", "scatter"]
ConsistencyName = Literal["any", "bounded", "at-least", "strong"]
IngestMode = Literal["realtime", "microbatch"]

_DURATION: Final = re.compile(r"([0-9]{1,9})(ms|s|m|h|d)")
_LAG_MS_MAX: Final = 86_400_000  # as in the schema, and the next one too
_CONCURRENT_MAX: Final = 65_536
_DURATION_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

# In the contract, not carried out yet: named here so that nobody believes otherwise.
_LATER: Final = {
    ("view", "keyBy"): "re-keying",
    ("view", "aggregate"): "aggregates",
    ("view", "history"): "history",
    ("view", "indexes"): "secondary indexes",
    ("view", "changes"): "the change feed",
    ("value", "schemaFrom"): "schemas from a registry",
    ("ingest", "executors"): "Spark on several machines",
    ("auth",): "authentication",
    ("tls",): "TLS",
}


READ_FIELDS: Final = ("consistency", "ingest", "maxConcurrent")
"""The fields of `spec.read` that a resource always has, since the schema fills them in."""


class SpecError(Exception):
    """A field is wrong: the message starts with its path."""


@dataclass(frozen=True, slots=True)
class Read:
    consistency: ConsistencyName = "bounded"
    max_lag_ms: int | None = None
    ingest: bool = False
    concurrent_max: int = 512


@dataclass(frozen=True, slots=True)
class Ingest:
    mode: IngestMode = "realtime"
    batch_ms: int = 300_000
    trigger_ms: int = 0
    offsets_per_trigger_max: int = 100_000
    driver_memory: str = "512m"


@dataclass(frozen=True, slots=True)
class TopicSpec:
    bootstrap_servers: str
    topic: str
    kafka_config: Mapping[str, str] = field(default_factory=dict, repr=False)  # it may hold a password
    key_format: KeyFormat = "string"
    value_format: ValueFormat = "json"
    value_schema: str | None = None
    on_bad_record: OnBadRecord = "Skip"
    partitioner: PartitionerName = "auto"
    sql: str | None = None
    ttl_ms: int | None = None
    replicas: int = 1
    standby_replicas: int = 0
    read: Read = Read()
    ingest: Ingest = Ingest()
    on_data_loss: OnDataLoss = "Fail"
    high_water_percent: int = 85

    @property
    def copies(self) -> int:
        return 1 + self.standby_replicas

    @property
    def stored_format(self) -> ValueFormat:
        """The format of what is stored: a view with SQL always stores JSON."""
        return "json" if self.sql else self.value_format


def duration_ms(text: str, path: str) -> int:
    match = _DURATION.fullmatch(text)
    if match is None:
        raise SpecError(
            f"{path}: {text!r} is not a duration; write a number and a unit, like 500ms, 30s, 5m, 12h or 7d"
        )
    return int(match[1]) * _DURATION_MS[match[2]]


def parse_spec_json(text: str) -> TopicSpec:
    return parse_spec(json.loads(text))


def parse_spec(spec: Mapping[str, Any]) -> TopicSpec:
    """`spec` has passed the schema; what is left are the rules that cross fields."""
    for path, feature in _LATER.items():
        node: Any = spec
        for name in path:
            node = node.get(name) if isinstance(node, Mapping) else None
        if node:
            raise SpecError(
                f"spec.{'.'.join(path)}: {feature} is not in this version yet; leave the field out"
            )
    key, value, view = spec.get("key", {}), spec.get("value", {}), spec.get("view", {})
    kind = view.get("kind", "latest")
    if kind != "latest":
        raise SpecError(
            f"spec.view.kind: {kind!r} is not in this version yet; leave the field out for the latest value"
        )
    key_format = _one_of(key.get("format", "string"), KeyFormat, "spec.key.format")
    value_format = _one_of(value.get("format", "json"), ValueFormat, "spec.value.format")
    schema = value.get("schema")
    if schema and value_format != "json":
        raise SpecError(
            f"spec.value.schema: only JSON values have a schema, and spec.value.format is {value_format!r}"
        )
    ingest, transform = spec.get("ingest", {}), spec.get("transform", {})
    ttl = view.get("ttl")
    ttl_ms = duration_ms(ttl, "spec.view.ttl") if ttl else None
    if ttl_ms == 0:
        raise SpecError(
            "spec.view.ttl: a row that expires at once can never be read; leave the field out to keep rows"
        )
    replicas, standby = spec.get("replicas", 1), spec.get("standbyReplicas", 0)
    if standby >= replicas:
        raise SpecError(
            f"spec.standbyReplicas: {standby} standby copies need at least {standby + 1} nodes, "
            f"and spec.replicas is {replicas}"
        )
    batch_ms = duration_ms(ingest.get("batch", "5m"), "spec.ingest.batch")
    if batch_ms < 5000:
        raise SpecError(
            "spec.ingest.batch: Spark's Real-Time Mode takes no batch under 5s; 5m is the default"
        )
    return TopicSpec(
        bootstrap_servers=spec["kafka"]["bootstrapServers"],
        topic=spec["topic"],
        kafka_config={k: str(v) for k, v in spec["kafka"].get("config", {}).items()},
        key_format=cast(KeyFormat, key_format),
        value_format=cast(ValueFormat, value_format),
        value_schema=schema,
        on_bad_record=cast(
            OnBadRecord, _one_of(spec.get("onBadRecord", "Skip"), OnBadRecord, "spec.onBadRecord")
        ),
        partitioner=cast(
            PartitionerName, _one_of(spec.get("partitioner", "auto"), PartitionerName, "spec.partitioner")
        ),
        sql=transform.get("sql"),
        ttl_ms=ttl_ms,
        replicas=replicas,
        standby_replicas=standby,
        read=parse_read(spec.get("read", {})),
        ingest=Ingest(
            cast(IngestMode, _one_of(ingest.get("mode", "realtime"), IngestMode, "spec.ingest.mode")),
            batch_ms,
            duration_ms(ingest.get("trigger", "0s"), "spec.ingest.trigger"),
            ingest.get("maxOffsetsPerTrigger", 100_000),
            ingest.get("driverMemory", "512m"),
        ),
        on_data_loss=cast(OnDataLoss, _one_of(spec.get("onDataLoss", "Fail"), OnDataLoss, "spec.onDataLoss")),
        high_water_percent=spec.get("storage", {}).get("highWaterPercent", 85),
    )


def parse_read(read: Mapping[str, Any]) -> Read:
    """`spec.read`, which also comes without the rest, to a node that runs; so the schema is not relied upon."""
    consistency = _one_of(read.get("consistency", "bounded"), ConsistencyName, "spec.read.consistency")
    if consistency == "at-least":
        raise SpecError(
            "spec.read.consistency: at-least needs a position with each request and cannot be a default"
        )
    ingest, max_lag_ms = read.get("ingest", False), read.get("maxLagMs")
    if not isinstance(ingest, bool):
        raise SpecError("spec.read.ingest: write true or false")
    return Read(
        cast(ConsistencyName, consistency),
        None if max_lag_ms is None else _whole(max_lag_ms, _LAG_MS_MAX, "spec.read.maxLagMs"),
        ingest,
        _whole(read.get("maxConcurrent", 512), _CONCURRENT_MAX, "spec.read.maxConcurrent"),
    )


def _whole(value: Any, highest: int, path: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= highest:
        raise SpecError(f"{path}: write a whole number from 1 to {highest}")
    return value


def _one_of(value: Any, allowed: Any, path: str) -> str:
    if value not in get_args(allowed):
        raise SpecError(
            f"{path}: {value!r} is not in this version; use one of {', '.join(get_args(allowed))}"
        )
    return str(value)
