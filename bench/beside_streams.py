"""Measure a node beside an application of Kafka Streams, in turns on one machine: point reads, lone reads beside ingest, and how
soon a record is readable.

Both read the same topic of the same broker. A node is what `qtopic run` starts, with Spark idle beside it; the peer is
`bench/streams/StreamsTable.java`: Kafka Streams with RocksDB behind Vert.x. For point reads each has core 0, and the load
core 1. For the rest both have the machine, 1 000 records/s, and the settings of Kafka Streams that showed a record soonest.
Lone reads come from one connection, which pauses after each of them, while the other system is stopped. Freshness is measured of
each system alone, with the other one stopped, and then with both at the same time. A ratio above 1 is in favour of the node. It
needs a JDK.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import psutil

from bench.freshness import Load, probe, require_no_bad_records
from bench.harness import Result, document, median, quantiles
from bench.open_loop import open_loop_latency
from bench.point_read import WRK_SCRIPT, closed_loop, random_keys
from bench.server import key_of, value_of
from queryable_app.platform.jars import Jar, JarSet, cache_dir, find_java, resolved
from queryable_app.platform.processes import free_ports
from tests.integration import topics
from tests.integration.system import running
from tests.support.kafka import embedded_kafka
from tests.support.processes import suspended
from tests.support.waiting import eventually

STREAMS: Final = JarSet(
    "streams-4.3.1",
    "Kafka Streams and Vert.x (100 MB)",
    (
        Jar("org.apache.kafka", "kafka-streams", "4.3.1"),
        Jar("io.vertx", "vertx-core", "5.0.4"),
        Jar("org.slf4j", "slf4j-nop", "2.0.17"),
    ),
    transitive=True,
)
STREAMS_DIGESTS: Final = Path(__file__).with_name("streams") / "jars.sha256"

PARTITIONS = 8
LONE_READ_PAUSES_MS = (3, 0.3)
# The source topic is the changelog, and no cache holds a record back: what its documentation advises, and what was fastest.
TUNED = {"topology.optimization": "all", "statestore.cache.max.bytes": "0"}
SOONEST = {**TUNED, "poll.ms": "5", "commit.interval.ms": "1000"}


@contextmanager
def streams_table(
    directory: Path, bootstrap: str, topic: str, settings: Mapping[str, str], core: int | None
) -> Iterator[str]:
    """Run the peer, and yield its address once it has every record."""
    jars = resolved(STREAMS, cache_dir(os.environ.get("QT_CACHE_DIR", "")), print, STREAMS_DIGESTS)
    (port,) = free_ports(1)
    command = [str(find_java()), "-Xmx768m", "-XX:+UseSerialGC", "-cp", f"{jars}/*"]
    command += [str(STREAMS_DIGESTS.with_name("StreamsTable.java"))]
    ours = {"topic": topic, "partitions": str(PARTITIONS), "port": str(port)}
    theirs = {
        "bootstrap.servers": bootstrap,
        "application.id": f"{topic}-{os.getpid()}-{core}",
        "state.dir": str(directory / f"streams-{topic}"),
    }
    command += [f"{name}={value}" for name, value in {**ours, **theirs, **settings}.items()]
    process = subprocess.Popen(pinned(core) + command)
    url = f"http://127.0.0.1:{port}"
    try:
        eventually("Kafka Streams runs", lambda: status(f"{url}/") == 200, 300)
        yield url
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def node(directory: Path, bootstrap: str, topic: str, core: int | None) -> Iterator[str]:
    """Run a node as `qtopic run` does, and yield its address once it is ready. Fail at the end if it counted a bad record."""
    with running(document(topic, bootstrap), directory / f"node-{topic}", prefix=pinned(core)) as system:
        yield system.url()
        require_no_bad_records(system)


def pinned(core: int | None) -> list[str]:
    return [] if core is None else ["taskset", "-c", str(core)]


def status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def has_all(url: str, keys: int) -> bool:
    sample = random.Random(1).sample(range(keys), 500)
    return all(status(f"{url}/v1/keys/{key_of(number).decode()}") == 200 for number in sample)


def measure(directory: Path, quick: bool) -> Iterator[Result]:
    if shutil.which("wrk") is None or shutil.which("javac") is None or not hasattr(os, "sched_setaffinity"):
        print(
            "beside_streams needs Linux, wrk and a JDK (Debian: apt-get install wrk openjdk-17-jdk-headless)"
        )
        return
    keys, seconds, rounds = (50_000, 3, 2) if quick else (1_000_000, 8, 5)
    warm_up = 6 if quick else 45  # seconds: the compilers of a JVM on a slow machine are busy for so long
    with embedded_kafka(directory / "broker") as kafka:
        yield from point_reads(directory, kafka.bootstrap, keys, seconds, rounds)
        yield from freshness(directory, kafka.bootstrap, seconds, rounds, warm_up)


def point_reads(directory: Path, bootstrap: str, keys: int, seconds: int, rounds: int) -> Iterator[Result]:
    topics.create(bootstrap, "point", PARTITIONS)
    records = ((key_of(number), value_of(number)) for number in range(keys))
    topics.produce(bootstrap, "point", records, **{"linger.ms": 50, "compression.type": "lz4"})
    script = directory / "wrk.lua"
    script.write_text(WRK_SCRIPT.replace("KEYS", str(keys)))
    with (
        streams_table(directory, bootstrap, "point", TUNED, 0) as peer,
        node(directory, bootstrap, "point", 0) as ours,
    ):
        ports = {"node": port_of(ours), "Kafka Streams": port_of(peer)}
        for name, url in (("node", ours), ("Kafka Streams", peer)):
            eventually(f"{name} has every key", lambda url=url: has_all(url, keys), 300)  # type: ignore[misc]
            closed_loop(ports[name], script, 2 * seconds)  # warms the JVM
        rates: dict[str, list[float]] = {name: [] for name in ports}
        for _ in range(rounds):
            for name, port in ports.items():
                rates[name].append(closed_loop(port, script, seconds))
        for name, measured in rates.items():
            yield Result(
                "beside_streams",
                f"point reads, {name}",
                {"requests/s": median(measured), "rounds": listed(measured, 0)},
            )
        ratio = median(rates["node"]) / median(rates["Kafka Streams"])
        yield Result("beside_streams", "point reads, ratio", {"x Kafka Streams": round(ratio, 2)}, ">= 1.3")
        half = min(median(measured) for measured in rates.values()) / 2
        p99: dict[str, list[float]] = {name: [] for name in ports}
        sent = random_keys(keys)
        for _ in range(rounds):
            for name, port in ports.items():
                p99[name].append(open_loop_latency(port, sent, half, seconds)["p99"])
        yield Result(
            "beside_streams",
            f"point reads, p99 at {half:,.0f}/s",
            figures_of(p99),
            "not above Kafka Streams",
        )


def freshness(directory: Path, bootstrap: str, seconds: int, rounds: int, warm_up: int) -> Iterator[Result]:
    topics.create(bootstrap, "fresh", PARTITIONS)
    with (
        streams_table(directory, bootstrap, "fresh", SOONEST, None) as peer,
        node(directory, bootstrap, "fresh", None) as ours,
        Load(bootstrap, "fresh", 1000),
    ):
        urls = {"node": ours, "Kafka Streams": peer}
        for url in urls.values():
            list(probe(url, bootstrap, "fresh", warm_up))
        for pause_ms in LONE_READ_PAUSES_MS:
            read = partial(lone_reads, seconds=seconds / 2, pause_ms=pause_ms)
            for name, measured in in_turns(urls, bootstrap, 2 * rounds, read).items():
                yield Result("beside_streams", f"a read every {pause_ms} ms, {name}", figures_of(measured))
        see = partial(probe, bootstrap=bootstrap, topic="fresh", seconds=seconds)
        for setting in ("alone", "both"):
            for name, measured in in_turns(urls, bootstrap, rounds, see, alone=setting == "alone").items():
                case = f"freshness, {setting}, {name}"
                yield Result("beside_streams", case, figures_of(measured), "not above Kafka Streams")


def in_turns(
    urls: Mapping[str, str],
    bootstrap: str,
    rounds: int,
    samples_of: Callable[[str], Iterator[float]],
    alone: bool = True,
) -> dict[str, dict[str, list[float]]]:
    """Return p50 and p99 of each system in each round. `alone`: the others are stopped meanwhile."""
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in urls}
    for _ in range(rounds):
        for name, url in urls.items():
            with stopped([other for other in urls.values() if alone and other != url]):
                list(probe(url, bootstrap, "fresh", 1))  # it catches up
                taken[name].append(quantiles(list(samples_of(url))))
    return {
        name: {quantile: [one[quantile] for one in rows] for quantile in ("p50", "p99")}
        for name, rows in taken.items()
    }


def lone_reads(url: str, seconds: float, pause_ms: float) -> Iterator[float]:
    """Yield the milliseconds of each read of one connection, which pauses after it. The keys are those of the first probes."""
    with socket.create_connection(("127.0.0.1", port_of(url))) as connection:
        end, number = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            number += 1
            request = b"GET /v1/keys/probe-%d HTTP/1.1\r\nhost: bench\r\n\r\n" % (1 + number % 16)
            begun = time.perf_counter()
            connection.sendall(request)
            answer = connection.recv(65536)
            yield (time.perf_counter() - begun) * 1000
            assert answer.startswith(b"HTTP/1.1 200 "), answer
            time.sleep(pause_ms / 1000)


def figures_of(measured: Mapping[str, Sequence[float]]) -> dict[str, float | int | str]:
    """Return the median of each quantity, with all rounds."""
    return {name: f"{median(rounds):.2f} (rounds {listed(rounds, 2)})" for name, rounds in measured.items()}


def listed(rounds: Sequence[float], digits: int) -> str:
    """Return the figures of all rounds, in their order."""
    return " ".join(f"{figure:.{digits}f}" for figure in rounds)


@contextmanager
def stopped(urls: Sequence[str]) -> Iterator[None]:
    """Stop the systems behind these addresses with SIGSTOP until the end of the block: all children that serve one of them."""
    family = [process for url in urls for process in family_of(port_of(url))]
    with suspended(family):
        yield


def family_of(port: int) -> list[psutil.Process]:
    """Return the child of this process that listens at `port`, or whose descendant does, with all its descendants."""
    for child in psutil.Process().children():
        family = [child, *child.children(recursive=True)]
        if any(has_port(process, port) for process in family):
            return family
    raise AssertionError(f"no child listens at {port}")


def has_port(process: psutil.Process, port: int) -> bool:
    listening = (c for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN)
    return any(connection.laddr.port == port for connection in listening)


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])
