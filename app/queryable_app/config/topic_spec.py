"""Parse a resource's `spec` into frozen values, or raise an error that names the field.

Strategy: the schema in `crds/queryabletopic.yaml` checks single fields. This file gives them types and defaults, and checks
rules across fields. A field that this version does not implement yet is refused by name and never ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from queryable_app.config.aggregate_spec import AggregateSpec
from queryable_app.config.aggregates import RECORD_KEY, parse_view_aggregate
from queryable_app.config.auth import AuthSpec, parse_auth
from queryable_app.config.entries import EntriesSpec, parse_entries
from queryable_app.config.history import HistorySpec, parse_history
from queryable_app.config.indexes import IndexSpec, parse_indexes
from queryable_app.config.key_schema import KeySchema, parse_key_schema
from queryable_app.config.spec_fields import SpecError as SpecError
from queryable_app.config.spec_fields import duration_ms as duration_ms
from queryable_app.config.spec_fields import one_of, whole
from queryable_app.config.tls import Tls, parse_tls
from queryable_app.config.value_schema import SchemaSource, parse_schema_source, split_settings
from queryable_app.config.writes import Writes, parse_writes

KeyFormat = Literal["string", "int", "long", "double", "uuid", "bytes", "json", "avro", "protobuf"]
ValueFormat = Literal["json", "string", "int", "long", "double", "uuid", "bytes", "avro", "protobuf"]
StoredFormat = ValueFormat | Literal["aggregate"]
OnBadRecord = Literal["Skip", "Fail", "DeadLetter"]
OnDataLoss = Literal["Fail", "Rebuild"]
PartitionerName = Literal["auto", "murmur2", "crc32", "fnv1a", "scatter"]
ConsistencyName = Literal["any", "bounded", "at-least", "strong"]
ViewKind = Literal["latest", "aggregate", "history"]
IngestMode = Literal["realtime", "microbatch"]

_LAG_MS_MAX: Final = 86_400_000  # as in the schema, like the next one
_CONCURRENT_MAX: Final = 65_536
_BATCH_MS_MIN: Final = 5000


READ_FIELDS: Final = ("consistency", "ingest", "maxConcurrent")
"""The fields of `spec.read` that every resource has, because the schema has defaults for them."""


@dataclass(frozen=True, slots=True)
class Read:
    consistency: ConsistencyName = "bounded"
    max_lag_ms: int | None = None
    ingest: bool = False
    concurrent_max: int = 512
    writes: Writes = field(default_factory=Writes)


@dataclass(frozen=True, slots=True)
class Ingest:
    mode: IngestMode = "realtime"
    batch_ms: int = 300_000
    trigger_ms: int = 0
    offsets_per_trigger_max: int = 100_000
    driver_memory: str = "512m"
    executors: int = 0
    """The Spark executors of the rekey job. 0: it is one process."""


@dataclass(frozen=True, slots=True)
class TopicSpec:
    bootstrap_servers: str
    topic: str
    kafka_config: Mapping[str, str] = field(default_factory=dict, repr=False)  # it may hold a password
    key_format: KeyFormat = "string"
    key_schema: KeySchema | None = None
    """The schema of Avro keys. None: keys have another format."""
    value_format: ValueFormat = "json"
    value_schema: str | None = None
    schema_source: SchemaSource | None = None
    """Where the schema of values comes from. None: the format has none."""
    registry_config: Mapping[str, str] = field(default_factory=dict, repr=False)  # a password
    on_bad_record: OnBadRecord = "Skip"
    partitioner: PartitionerName = "auto"
    sql: str | None = None
    ttl_ms: int | None = None
    aggregate: AggregateSpec | None = None
    """What an aggregate view computes. None: the view has the latest value of each key."""
    changes: bool = False
    """Whether replicas log their changes, which clients can follow."""
    key_by: tuple[str, ...] = ()
    """Columns of the transform that are the key of a latest-value view. Empty: the record key."""
    indexes: tuple[IndexSpec, ...] = ()
    entries: EntriesSpec | None = None
    """Whose time orders the entries of a key. None: the view has one value of each key."""
    history: HistorySpec | None = None
    """Which versions of each key the view keeps. None: the newest alone."""
    source_topic: str = ""
    """The topic whose records the rekey job writes to `topic`, in the spec of a rekeyed view's nodes. Empty: the view is not
    rekeyed."""
    replicas: int = 1
    standby_replicas: int = 0
    read: Read = Read()
    workers: int | None = None
    """The workers of a pod. None: the resource does not say."""
    ingest: Ingest = Ingest()
    on_data_loss: OnDataLoss = "Fail"
    high_water_percent: int = 85
    auth: AuthSpec | None = None
    """How callers are authenticated, and what they may do. None: every client that reaches the port may do everything."""
    tls: Tls | None = None
    """How nodes speak TLS. None: they speak plain HTTP."""

    @property
    def replication_factor(self) -> int:
        """Return how many replicas a partition has, active and standby."""
        return 1 + self.standby_replicas

    @property
    def is_rekeyed(self) -> bool:
        """Return whether a rekey job writes the records under other keys than their own."""
        return bool(self.key_by) or (self.aggregate is not None and bool(self.aggregate.group_by))

    @property
    def stored_format(self) -> StoredFormat:
        """Return the format of stored values; SQL and schemas make JSON, and an aggregate view stores its states."""
        if self.aggregate is not None:
            return "aggregate"
        return "json" if self.sql or self.schema_source is not None else self.value_format


def parse_spec_json(text: str) -> TopicSpec:
    return parse_spec(json.loads(text))


def parse_spec(spec: Mapping[str, Any]) -> TopicSpec:
    """Parse a `spec` that has passed the schema, and check the rules across fields."""
    one_of(ViewKind, spec.get("view", {}).get("kind", "latest"), "spec.view.kind")
    value_format, value_schema = _value(spec.get("value", {}))
    config = {name: str(value) for name, value in spec["kafka"].get("config", {}).items()}
    kafka_config, registry_config = split_settings(config)
    sql, view = spec.get("transform", {}).get("sql"), spec.get("view", {})
    aggregate, history = parse_view_aggregate(view), parse_history(view)
    value_is_json = value_format in ("json", "avro", "protobuf") or sql is not None
    replicas, standby_replicas = _node_counts(spec)
    parsed = TopicSpec(
        bootstrap_servers=spec["kafka"]["bootstrapServers"],
        topic=spec["topic"],
        kafka_config=kafka_config,
        key_format=one_of(KeyFormat, spec.get("key", {}).get("format", "string"), "spec.key.format"),
        key_schema=parse_key_schema(spec.get("key", {})),
        value_format=value_format,
        value_schema=value_schema,
        schema_source=parse_schema_source(spec.get("value", {}), value_format),
        registry_config=registry_config,
        on_bad_record=one_of(OnBadRecord, spec.get("onBadRecord", "Skip"), "spec.onBadRecord"),
        partitioner=one_of(PartitionerName, spec.get("partitioner", "auto"), "spec.partitioner"),
        sql=sql,
        ttl_ms=_ttl_ms(view.get("ttl")),
        aggregate=aggregate,
        changes=view.get("changes", False),
        key_by=_key_by(view),
        indexes=parse_indexes(view, value_is_json, aggregate),
        entries=parse_entries(view, value_is_json),
        history=history,
        replicas=replicas,
        standby_replicas=standby_replicas,
        read=parse_read(spec.get("read", {})),
        workers=spec.get("serve", {}).get("workers"),
        ingest=_ingest(spec.get("ingest", {})),
        on_data_loss=one_of(OnDataLoss, spec.get("onDataLoss", "Fail"), "spec.onDataLoss"),
        high_water_percent=spec.get("storage", {}).get("highWaterPercent", 85),
        auth=_auth(spec, view, aggregate),
        tls=parse_tls(spec),
    )
    if parsed.aggregate is not None and parsed.aggregate.group_by:
        _check_groups(parsed, parsed.aggregate)
        _check_rekeyed(parsed, "groups by other columns")
    if parsed.read.ingest and value_format == "protobuf":
        raise SpecError(
            "spec.read.ingest: a view of protobuf values takes no writes in this version; "
            "leave the field out, and write with your producer"
        )
    if parsed.read.ingest and value_format == "json" and parsed.schema_source is not None:
        raise SpecError(
            "spec.read.ingest: a view of values with a JSON Schema takes no writes in this version, since a node checks a "
            "value only when it reads the topic; leave the field out, and write with your producer"
        )
    source = parsed.schema_source
    if parsed.read.ingest and source is not None and source.registry_url and source.schema_id is None:
        raise SpecError(
            "spec.read.ingest: a record of a registry needs the id of its schema; give spec.value.schemaFrom.schemaId beside "
            "the Avro schema, or leave the field out and write with your producer"
        )
    if parsed.key_by:
        _check_rekeyed(parsed, "has view.keyBy")
    if (
        parsed.auth is not None
        and parsed.auth.uses_certificates
        and (parsed.tls is None or parsed.tls.client_auth == "none")
    ):
        raise SpecError(
            "spec.auth.rules: a rule compares the certificate of clients, and none is asked for; "
            "set spec.tls.clientAuth to request or require"
        )
    if parsed.ingest.executors and not parsed.is_rekeyed:
        raise SpecError(
            "spec.ingest.executors: only a view with spec.view.aggregate.groupBy or spec.view.keyBy has a stage that executors "
            "run; leave the field out"
        )
    return parsed


def _auth(
    spec: Mapping[str, Any], view: Mapping[str, Any], aggregate: AggregateSpec | None
) -> AuthSpec | None:
    """Parse `spec.auth`. The keys of a rekeyed view are known when its nodes start, which check the prefixes again."""
    rekeyed = bool(view.get("keyBy")) or (aggregate is not None and bool(aggregate.group_by))
    return parse_auth(spec.get("auth"), "" if rekeyed else spec.get("key", {}).get("format", "string"))


def _key_by(view: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the columns of `spec.view.keyBy`; none if the key is that of the record."""
    columns = tuple(view.get("keyBy", ()))
    if not columns:
        return ()
    path = "spec.view.keyBy"
    if view.get("kind", "latest") == "aggregate":
        raise SpecError(f"{path}: an aggregate is keyed by its groups; write aggregate.groupBy instead")
    if len(set(columns)) < len(columns):
        raise SpecError(f"{path}: a column is there twice; name each once")
    if columns == RECORD_KEY:
        return ()
    if view.get("ttl"):
        raise SpecError(
            f"spec.view.ttl: rows of a view with {path} do not expire in this version; leave it out"
        )
    return columns


def _check_groups(spec: TopicSpec, aggregate: AggregateSpec) -> None:
    """Refuse what a view that groups by other columns than the record key does not have in this version."""
    if len(set(aggregate.group_by)) < len(aggregate.group_by):
        raise SpecError("spec.view.aggregate.groupBy: a column is there twice; name each once")


def _check_rekeyed(spec: TopicSpec, it: str) -> None:
    """Refuse what no view under another key than the record key has. `it` says what makes the view one."""
    if spec.read.ingest:
        raise SpecError(
            f"spec.read.ingest: a view that {it} takes no writes, since its keys are not record keys; "
            "leave the field out"
        )
    if spec.on_bad_record == "DeadLetter":
        raise SpecError(
            f"spec.onBadRecord: DeadLetter is not in this version for a view that {it}; use Skip or Fail"
        )


def _value(value: Mapping[str, Any]) -> tuple[ValueFormat, str | None]:
    format: ValueFormat = one_of(ValueFormat, value.get("format", "json"), "spec.value.format")
    schema = value.get("schema")
    if schema and format != "json":
        raise SpecError(
            f"spec.value.schema: only JSON values have one, and spec.value.format is {format!r}; "
            "avro and protobuf take schemaFrom"
        )
    return format, schema


def _ttl_ms(ttl: str | None) -> int | None:
    ttl_ms = duration_ms(ttl, "spec.view.ttl") if ttl else None
    if ttl_ms == 0:
        raise SpecError(
            "spec.view.ttl: a row that expires at once can never be read; leave the field out to keep rows"
        )
    return ttl_ms


def _node_counts(spec: Mapping[str, Any]) -> tuple[int, int]:
    replicas, standby = spec.get("replicas", 1), spec.get("standbyReplicas", 0)
    if standby >= replicas:
        raise SpecError(
            f"spec.standbyReplicas: {standby} standby replicas need at least {standby + 1} nodes, "
            f"and spec.replicas is {replicas}"
        )
    return replicas, standby


def _ingest(ingest: Mapping[str, Any]) -> Ingest:
    batch_ms = duration_ms(ingest.get("batch", "5m"), "spec.ingest.batch")
    if batch_ms < _BATCH_MS_MIN:
        raise SpecError(
            "spec.ingest.batch: Spark's Real-Time Mode takes no batch under 5s; 5m is the default"
        )
    return Ingest(
        one_of(IngestMode, ingest.get("mode", "realtime"), "spec.ingest.mode"),
        batch_ms,
        duration_ms(ingest.get("trigger", "0s"), "spec.ingest.trigger"),
        ingest.get("maxOffsetsPerTrigger", 100_000),
        ingest.get("driverMemory", "512m"),
        ingest.get("executors", 0),
    )


def parse_read(read: Mapping[str, Any]) -> Read:
    """Parse `spec.read`, which a running node also receives alone and without a check by the schema."""
    consistency: ConsistencyName = one_of(
        ConsistencyName, read.get("consistency", "bounded"), "spec.read.consistency"
    )
    if consistency == "at-least":
        raise SpecError(
            "spec.read.consistency: at-least needs a position with each request and cannot be a default"
        )
    ingest, max_lag_ms = read.get("ingest", False), read.get("maxLagMs")
    if not isinstance(ingest, bool):
        raise SpecError("spec.read.ingest: write true or false")
    return Read(
        consistency,
        None if max_lag_ms is None else whole(max_lag_ms, _LAG_MS_MAX, "spec.read.maxLagMs"),
        ingest,
        whole(read.get("maxConcurrent", 512), _CONCURRENT_MAX, "spec.read.maxConcurrent"),
        parse_writes(read.get("writes", {})),
    )
