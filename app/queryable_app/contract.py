"""What the one who starts a node (the operator, `qtopic run`) and the node agree on.

A node is configured through environment variables alone, one per field of NodeSettings, `QT_` and the field's
name in capitals. Both processes of a node, serve and ingest, get the same ones.

No secret is in a variable, since many can see a process' environment: the spec, whose `kafka.config` may hold a password,
the Kafka settings of `kafka.secretRef` and the token between nodes are in files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Final

DEFAULT_PORT: Final = 8080
ENV_PREFIX: Final = "QT_"

# Sockets inside NodeSettings.run_dir.
ROW_SOCKET: Final = "rows.sock"  # JVM writer tasks → serve: slices of rows
CONTROL_SOCKET: Final = "control.sock"  # ingest ↔ serve: assignment, positions, state; JSON lines
CONTROL_PROTOCOL: Final = 1

# What the placer and the nodes say to a node over HTTP.
NODE_HEADER: Final = "qt-node"  # with the revision's token
PLACEMENT_PATH: Final = "/internal/v1/placement"  # PUT: Placement.to_json → {"epoch": what the node has now}
READ_PATH: Final = "/internal/v1/read"  # PUT: spec.read → what the node follows now

# Files inside NodeSettings.data_dir.
GENERATION_FILE: Final = "generation"
PLACEMENT_FILE: Final = "placement.json"
PARTITIONER_MISMATCHES_FILE: Final = "contradicted-partitioners.json"  # below the application's directory
CHECKPOINTS_DIRECTORY: Final = "checkpoints"  # below the application's own

_WHOLE_NUMBER: Final = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class ObservedTopic:
    """The topic as ingest found it and serve hears of it."""

    id: str
    partitions: int
    earliest: Mapping[int, int]
    latest: Mapping[int, int]
    """Where readers of committed records have reached the end."""


class SettingsError(Exception):
    """A variable is missing or wrong; the message names it and what it should be."""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    name: str
    """The node's own name, e.g. `users-r1-0`."""

    ordinal: int
    """The node's place in the placement."""

    application_id: str
    """`<namespace>.<name>.r<N>-<ID>`: whose data this is, and the Kafka group that positions are committed under."""

    spec_path: str
    """A file with the resource's `spec` as JSON, already validated."""

    bootstrap_servers: str
    """Kafka's addresses. They win over the ones in the spec."""

    advertised_url: str
    """`http://host:port` under which the other nodes reach this one."""

    data_dir: str
    """Where the stores are. Kept between starts."""

    run_dir: str
    """Where the sockets are. At most 80 characters, since a Unix socket's path is bounded."""

    placement_path: str
    """A file with the first placement. A newer one on the node's disk wins."""

    http_host: str = "::"
    """The address to listen on. `::` is every address of both families; IPv4's where there is no IPv6. `qtopic run` says
    127.0.0.1."""

    http_port: int = DEFAULT_PORT
    """The port to listen on."""

    kafka_secret_dir: str = ""
    """Files with one setting of Kafka's clients each, named as Java clients name it. They win over the spec's
    `kafka.config`. Empty: there are none."""

    internal_token_path: str = ""
    """A file with the revision's token for /internal. Empty: nodes do not talk to each other."""

    cache_dir: str = ""
    """Where jars and class archives are cached. Empty: `$XDG_CACHE_HOME/queryable-topics`."""

    block_cache_mb: int = 128
    """RocksDB's block cache, shared by all stores of the node."""

    write_buffer_mb: int = 64
    """RocksDB's memtables, shared by all stores of the node."""

    connections_max: int = 1024
    """Open client connections, where the process may open as many. One more takes the place of an idle one, or is told to
    come back later."""

    concurrent_max: int = 512
    """Requests being answered at once. One more gets 429."""

    head_bytes_max: int = 65_536
    """Request line and headers together."""

    head_seconds_max: int = 10
    """From the first byte of a request to the end of its head."""

    body_bytes_max: int = 16 * 1024 * 1024
    """A request's body, unpacked."""

    bodies_bytes_max: int = 64 * 1024 * 1024
    """The bodies of the requests under way, together. One more gets 429 at its head. Small ones do not count."""

    untaken_bytes_max: int = 128 * 1024 * 1024
    """What large answers take together: what was gathered for them, and what clients have not taken yet. While it is
    more, requests get 429. The operator gives the container as much memory for it."""

    body_seconds_max: int = 30
    """From the end of a request's head to the end of its body."""

    idle_seconds_max: int = 75
    """How long a kept-alive connection may be silent."""

    drain_seconds: int = 0
    """How long a node that was asked to end still answers, and tells clients and nodes to go elsewhere. Longer than
    it takes until nobody is sent to it any more: some seconds behind a Service, none on one machine."""

    peer_copy_mb_per_second_max: int = 150
    """What the node sends of its copies to nodes that build theirs, together: a quarter of a core, and five times what
    the topic would give. A link of 1 Gb/s carries 110 and should be told less."""

    page_rows_max: int = 10_000
    """The largest `limit` of a scan."""

    multi_get_keys_max: int = 10_000
    """Keys in one multi-get."""

    log_end_interval_ms: int = 500
    """How often Kafka is asked for the log's end. It is also the resolution of `Qt-Lag-Ms`."""

    topic_wait_seconds: int = 300
    """How long a missing topic is waited for before the node says that it has failed."""

    def to_env(self) -> dict[str, str]:
        return {ENV_PREFIX + f.name.upper(): str(getattr(self, f.name)) for f in fields(self)}

    @staticmethod
    def from_env(environ: Mapping[str, str] = os.environ) -> NodeSettings:
        values: dict[str, str | int] = {}
        for field in fields(NodeSettings):
            variable = ENV_PREFIX + field.name.upper()
            text = environ.get(variable)
            if text is None:
                if field.default is MISSING:
                    raise SettingsError(f"{variable} is not set; it is the node's {field.name}")
                continue
            if field.type == "int":
                if _WHOLE_NUMBER.fullmatch(text) is None:
                    raise SettingsError(
                        f"{variable} must be a whole number of at most 9 digits, not {text!r}"
                    )
                values[field.name] = int(text)
            else:
                values[field.name] = text
        return NodeSettings(**values)  # type: ignore[arg-type]
