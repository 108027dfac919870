"""Run a real Kafka on this machine: KRaft, broker and controller in one small JVM, without Docker.

Strategy: everything is in one directory. Ports and the cluster's ID are chosen once and stored there, so that a restart, also
after kill -9, has the same address and the same records. Only if another program has taken a port is a new one chosen.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from queryable_app.platform.processes import Process, free_ports, is_free, stop

_READY: Final = b"Kafka Server started"
_STOP_SECONDS: Final = 10
_FORMAT_SECONDS: Final = 60

_JVM: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Djava.awt.headless=true")
_HEAP: Final = ("-Xms64m", "-Xmx256m", "-XX:+ExitOnOutOfMemoryError")
_LOGGING: Final = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info",  # logs the line in _READY
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)

_SETTINGS: Final = {
    "process.roles": "broker,controller",
    "node.id": "0",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "auto.create.topics.enable": "false",
    "num.network.threads": "2",
    "num.io.threads": "2",
    "background.threads": "2",
    "num.recovery.threads.per.data.dir": "1",
    "log.cleaner.threads": "1",
    "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),  # the default does not fit into the heap
    "message.max.bytes": str(16 * 1024 * 1024),
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "3000",  # after kill -9 the broker can register again after this time
}


class BrokerError(Exception):
    """The broker does not start; the message says why."""


@dataclass(frozen=True, slots=True)
class _Address:
    """Hold what must be the same at every start."""

    cluster_id: str
    port: int
    controller_port: int


class EmbeddedKafka:
    """Own the broker's process and its directory."""

    def __init__(self, directory: Path, jars: Path, java: Path, inherited: Iterable[int] = ()) -> None:
        self._directory = directory
        self._java = (str(java), "-cp", f"{jars}/*", *_JVM, *_LOGGING)
        self._inherited = tuple(inherited)
        self._process: Process | None = None
        directory.mkdir(parents=True, exist_ok=True)
        self._address = self._stored_address()
        self._log = directory / "broker.log"
        self._log_start = 0  # where the output of the current process begins

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._address.port}"

    def start(self) -> None:
        """Start the broker, and return when it answers."""
        self.launch()
        self.wait_until_ready()

    def launch(self) -> Process:
        """Start the process, and wait only for the format of a new directory."""
        settings = self._write_settings()
        self._format(settings)
        self._log_start = self._log.stat().st_size if self._log.exists() else 0
        command = [*self._java, *_HEAP, "kafka.Kafka", str(settings)]
        self._process = Process(command, self._log, inherited=self._inherited)
        return self._process

    def wait_until_ready(self, timeout_seconds: float = 60) -> None:
        """Return when the launched broker answers."""
        assert self._process is not None
        deadline = time.monotonic() + timeout_seconds
        while _READY not in (log := self._log_since(self._log_start)):
            if self._process.exit_code is not None or time.monotonic() > deadline:
                self.stop()
                raise BrokerError(
                    f"the embedded Kafka did not start; {self._log} ends with:\n{log[-2000:].decode(errors='replace')}"
                )
            time.sleep(0.02)

    def kill(self) -> None:
        """Kill the process with -9: it flushes nothing."""
        if self._process is not None:
            self._process.kill()

    def stop(self) -> None:
        if self._process is not None:
            stop([self._process], _STOP_SECONDS)

    def _stored_address(self) -> _Address:
        file = self._directory / "address.json"
        stored = _Address(**json.loads(file.read_text())) if file.exists() else None
        if stored and is_free(stored.port) and is_free(stored.controller_port):
            return stored
        # A random ID may begin with "-", which the format tool takes for an option.
        cluster_id = stored.cluster_id if stored else "Q" + secrets.token_urlsafe(16)[1:]
        address = _Address(cluster_id, *free_ports(2))
        partial = file.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(address)))
        partial.replace(file)
        return address

    def _write_settings(self) -> Path:
        port, controller_port = self._address.port, self._address.controller_port
        settings = _SETTINGS | {
            "controller.quorum.voters": f"0@127.0.0.1:{controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "log.dirs": str(self._directory / "records"),
        }
        file = self._directory / "server.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return file

    def _format(self, settings: Path) -> None:
        """Format a new directory. The marker is our own file, since Kafka's files appear before the tool has finished."""
        marker = self._directory / "formatted"
        if marker.exists():
            return
        tool = ["kafka.tools.StorageTool", "format", "--ignore-formatted"]
        options = ["-t", self._address.cluster_id, "-c", str(settings)]
        done = subprocess.run(
            [*self._java, "-Xmx128m", *tool, *options],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            pass_fds=self._inherited,
            timeout=_FORMAT_SECONDS,
            check=False,
        )
        if done.returncode:
            raise BrokerError(f"the embedded Kafka's directory cannot be formatted: {done.stderr[-2000:]}")
        marker.touch()

    def _log_since(self, start: int) -> bytes:
        with self._log.open("rb") as log:
            log.seek(start)
            return log.read()
