"""Define the contract between a pod and what starts it, which is the operator or `qtopic run`.

Environment variables configure a pod: one for each field of NodeSettings, named `QT_` and the field's name in capitals. Both
processes of a pod, serve and ingest, get the same variables. A pod is one node, or several workers, each of which is a node:
`worker_settings` gives the settings of each.

No variable holds a secret, because other processes can read a process's environment. The spec, whose `kafka.config` may hold a
password, the Kafka settings of `kafka.secretRef` and the token between nodes are in files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Final
from urllib.parse import urlsplit

DEFAULT_PORT: Final = 8080
ENV_PREFIX: Final = "QT_"
REKEY_PORT: Final = 7078  # of the rekey job, for its executors
REKEY_BLOCKS_PORT: Final = 7079  # of the rekey job and of each executor, for what Spark sends between them

# Sockets inside NodeSettings.run_dir.
ROW_SOCKET: Final = "rows.sock"  # JVM writer tasks → serve: slices of rows
CONTROL_SOCKET: Final = "control.sock"  # ingest ↔ serve: assignment, positions, state; JSON lines
CONTROL_PROTOCOL: Final = 1

# Requests to a node from the placement controller and from other nodes.
NODE_HEADER: Final = "qt-node"  # its value is the revision's token
PLACEMENT_PATH: Final = (
    "/internal/v1/placement"  # PUT: Placement.to_json → {"epoch": the newest that the node has}
)
REKEY_PATH: Final = (
    "/internal/v1/rekey"  # PUT: the state of the rekey job → the source positions of the replicas here
)
READ_PATH: Final = "/internal/v1/read"  # PUT: spec.read → the settings that the node applies

# Files inside NodeSettings.data_dir.
GENERATION_FILE: Final = "generation"
PLACEMENT_FILE: Final = "placement.json"
PARTITIONER_MISMATCHES_FILE: Final = "contradicted-partitioners.json"  # below the application's directory
GROUP_KEY_FORMAT_FILE: Final = "group-key-format"  # inside NodeSettings.run_dir: what the check found
CHECKPOINTS_DIRECTORY: Final = "checkpoints"  # below the application's directory

WORKERS_MAX: Final = 64

SERVE_ENV: Final[Mapping[str, str]] = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""More variables of serve: glibc asks for pages of 2 MB, so that a read of a large cache waits less often for an address to be
translated. A kernel or a C library without them ignores it."""

_WHOLE_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_PORTS: Final = re.compile(r"[0-9]{1,5}(,[0-9]{1,5})*")
_PORT_MAX: Final = 65_535

# What a worker has at least of the memory that its pod shares out.
_CACHE_MB_MIN: Final = 8
_CONNECTIONS_MIN: Final = 16
_ANSWERS_BYTES_MIN: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ObservedTopic:
    """Describe the topic as ingest reports it to serve."""

    id: str
    partitions: int
    earliest: Mapping[int, int]
    latest: Mapping[int, int]
    """End offsets for readers of committed records."""
    compacted: bool = True
    """Whether the topic is compacted, or may be. It is looked up for views with history."""


class SettingsError(Exception):
    """Report a missing or wrong variable; the message names it and says what it should be."""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Configure a node. Each field is an environment variable."""

    name: str
    """The node's own name, e.g. `users-r1-0`."""

    ordinal: int
    """The node's place in the placement."""

    application_id: str
    """`<namespace>.<name>.r<N>-<ID>`: the owner of the data, and the Kafka group that commits positions."""

    spec_path: str
    """A file with the resource's validated `spec` as JSON."""

    bootstrap_servers: str
    """Kafka's addresses, in place of the ones in the spec."""

    advertised_url: str
    """`http://host:port`, or `https://` with TLS, at which other nodes reach this one."""

    data_dir: str
    """The directory of the stores. It survives a restart."""

    run_dir: str
    """The directory of the sockets. At most 80 characters, because the path of a Unix socket is bounded."""

    placement_path: str
    """A file with the first placement. The node prefers a newer one on its disk."""

    http_host: str = "::"
    """The address to listen on. `::` is every address of IPv6 and IPv4, or of IPv4 on a host without IPv6. `qtopic run` sets
    127.0.0.1."""

    http_port: int = DEFAULT_PORT
    """The port to listen on."""

    worker_ports: str = ""
    """The own ports of the pod's workers, like `8081,8082`; they share `http_port`. Empty: the pod is one node."""

    front_port: int = 0
    """The port that a worker shares with the others of its pod, beside its own. 0: none."""

    pod: str = ""
    """The name of the worker's pod. Empty: the node is its own pod."""

    pod_workers: int = 1
    """The number of workers in the node's pod. Their ordinals follow each other, and the first is a multiple of it."""

    kafka_secret_dir: str = ""
    """A directory with one file for each setting of Kafka's clients, under the setting's Java name. They override the spec's
    `kafka.config`. Empty: no such settings."""

    auth_secret_dir: str = ""
    """The directory of the Secret of `spec.auth.jwt.secretRef`, with a file for each of its keys. A change needs no restart."""

    internal_token_path: str = ""
    """A file with the revision's token for /internal. Empty: nodes do not call each other."""

    tls_dir: str = ""
    """A directory with `tls.crt`, `tls.key` and `ca.crt`: nodes speak TLS. Empty: they speak plain HTTP."""

    node_tls_dir: str = ""
    """A directory with such files that nodes show each other. Empty: those of `tls_dir`, for the host of an address."""

    node_tls_name: str = ""
    """The name in the certificate of `node_tls_dir`, by which nodes call each other."""

    group_key_format: str = ""
    """The format of group keys, where the view groups by other columns than the record key: `string`, `long` or `json`. Spark's
    types decide it, so what starts the nodes must have asked Spark. Empty: the view has no such groups."""

    pod_address: str = ""
    """The address of the pod of a rekey job, or of one of its executors, which the others connect to. Empty: the job starts its
    executors itself, if it has any."""

    rekey_host: str = ""
    """The host of the rekey job that an executor connects to."""

    cache_dir: str = ""
    """The cache of jars and class archives. Empty: `$XDG_CACHE_HOME/queryable-topics`."""

    jvm_options: str = ""
    """More options of ingest's JVM, and of the rekey job's, separated by spaces. The last of two that contradict each other
    counts. With `-XX:TieredStopAtLevel=1`, for one that lives for seconds, ingest also rehearses no batch boundary."""

    block_cache_mb: int = 256
    """RocksDB's block cache, shared by all stores of the node. A million rows of 110 bytes take 150 MiB
    of it. Where it is too small, reads decompress blocks, also if the operating system has the files in memory."""

    write_buffer_mb: int = 64
    """RocksDB's memtables, shared by all stores of the node."""

    connections_max: int = 1024
    """Open client connections, if the process may open as many. One more replaces an idle connection or gets 429."""

    concurrent_max: int = 512
    """Requests in progress. One more gets 429."""

    head_bytes_max: int = 65_536
    """Bytes of a request line and its headers together."""

    head_seconds_max: int = 10
    """Seconds from the first byte of a request to the end of its head."""

    body_bytes_max: int = 2 * 1024 * 1024
    """Bytes of one request's body. Requests between nodes may have twice as many. A body is parsed at once: each MiB takes 6
    to 20 ms of the event loop, and 3 to 16 MiB of memory for that moment."""

    bodies_bytes_max: int = 64 * 1024 * 1024
    """Bytes of all request bodies in progress, small ones excepted. A request beyond them gets 429 after its head."""

    untaken_bytes_max: int = 128 * 1024 * 1024
    """Unsent response bytes of large answers together, and the rows collected for them. Above this, requests get 429. The
    operator adds as much to the container's memory."""

    body_seconds_max: int = 30
    """Seconds from the end of a request's head to the end of its body."""

    idle_seconds_max: int = 75
    """Seconds that a kept-alive connection may be idle."""

    drain_seconds: int = 0
    """Seconds that a node drains before it stops: it answers, and sends clients and nodes to other nodes. It must be longer than
    a load balancer takes to stop using the node: some seconds behind a Service, none on one machine."""

    peer_copy_mb_per_second_max: int = 150
    """The rate at which the node sends checkpoints, to all peers together. The default takes a quarter of a core and is five
    times the rate of ingest. A link of 1 Gb/s carries 110, so set less there."""

    read_deadline_ms: int = 2000
    """Milliseconds that a read may take if it names no deadline: 1 to 60 000, as for a deadline that it names."""

    page_rows_max: int = 10_000
    """The largest `limit` of a scan."""

    multi_get_keys_max: int = 10_000
    """Keys in one multi-get."""

    log_end_interval_ms: int = 500
    """The interval of requests for end offsets. It is also the resolution of `Qt-Lag-Ms`."""

    topic_wait_seconds: int = 300
    """Seconds to wait for a missing topic before the node fails."""

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
                    raise SettingsError(f"{variable} is not set; it sets the node's {field.name}")
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

    @property
    def pod_name(self) -> str:
        return self.pod or self.name

    @property
    def pod_ordinals(self) -> range:
        """Return the ordinals of the nodes in this node's pod."""
        first = self.ordinal - self.ordinal % self.pod_workers
        return range(first, first + self.pod_workers)


def worker_settings(pod: NodeSettings) -> tuple[NodeSettings, ...]:
    """Return the settings of a pod's nodes: of its workers, or the pod's own if it is one node. Raises SettingsError."""
    if not pod.worker_ports:
        return (pod,)
    ports = _worker_ports(pod)
    workers = len(ports)
    return tuple(
        replace(
            pod,
            name=f"{pod.name}.{worker}",
            ordinal=pod.ordinal * workers + worker,
            advertised_url=_with_port(pod.advertised_url, port),
            data_dir=f"{pod.data_dir}/worker-{worker}",
            run_dir=f"{pod.run_dir}/w{worker}",
            http_port=port,
            worker_ports="",
            front_port=pod.http_port,
            pod=pod.name,
            pod_workers=workers,
            block_cache_mb=_share(pod.block_cache_mb, workers, _CACHE_MB_MIN),
            write_buffer_mb=_share(pod.write_buffer_mb, workers, _CACHE_MB_MIN),
            connections_max=_share(pod.connections_max, workers, _CONNECTIONS_MIN),
            # A request between nodes may have a body of twice that size.
            bodies_bytes_max=_share(pod.bodies_bytes_max, workers, 2 * pod.body_bytes_max),
            untaken_bytes_max=_share(pod.untaken_bytes_max, workers, _ANSWERS_BYTES_MIN),
            peer_copy_mb_per_second_max=_share(pod.peer_copy_mb_per_second_max, workers, 1),
        )
        for worker, port in enumerate(ports)
    )


def _worker_ports(pod: NodeSettings) -> list[int]:
    wrong = SettingsError(
        f"{ENV_PREFIX}WORKER_PORTS must be at most {WORKERS_MAX} different ports like 8081,8082, "
        f"without {ENV_PREFIX}HTTP_PORT, not {pod.worker_ports!r}"
    )
    if _PORTS.fullmatch(pod.worker_ports) is None:
        raise wrong
    ports = [int(port) for port in pod.worker_ports.split(",")]
    different = len({pod.http_port, *ports}) == len(ports) + 1
    if not different or len(ports) > WORKERS_MAX or not all(1 <= port <= _PORT_MAX for port in ports):
        raise wrong
    return ports


def _with_port(url: str, port: int) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=f"{re.sub(r':[0-9]*$', '', parts.netloc)}:{port}").geturl()


def _share(total: int, workers: int, least: int) -> int:
    """Return a worker's share of what its pod has: at least `least`, and never more than all of it."""
    return min(total, max(least, total // workers))
