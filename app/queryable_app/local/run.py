"""`qtopic run`: a broker, a topic and nodes on this machine, from a resource file until Ctrl-C.

Strategy: one thread. It checks whatever can be wrong before anything is started, starts the parts in order, and then
tends its child processes. SIGINT and SIGTERM raise in that thread, so one `finally` stops everything from wherever it
was; and whatever that could miss, the kernel kills with this process (see `die_with_parent`).
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx

from queryable_app.config.kafka_settings import kafka_connection
from queryable_app.local import data_directory, revision, topics
from queryable_app.local.class_training import ClassTraining
from queryable_app.local.cluster import LocalCluster
from queryable_app.local.data_directory import DataDirectory
from queryable_app.local.desired_scale import DesiredScale
from queryable_app.local.embedded_kafka import EmbeddedKafka
from queryable_app.local.nodes import HOST, NodeFailed, new_address, node_settings, start_placement
from queryable_app.local.placement_controller import PLACEMENT_FILE
from queryable_app.local.processes import Process, SupervisedProcess, free_ports, is_free, stop
from queryable_app.local.progress import Progress
from queryable_app.local.resource_file import Resource
from queryable_app.local.stopping import Stopped, StopRequest
from queryable_app.placement.assignment import initial_placement
from queryable_app.platform import jars
from queryable_app.platform.descriptors import descriptor_limit, raise_descriptor_limit
from queryable_app.policy.descriptor_plan import descriptor_shortage

RESOURCE_FILE: Final = "resource.json"
_VIEW_FILE: Final = "view.json"
_POLL_SECONDS: Final = 0.1
_STOP_SECONDS: Final = 8
_EXAMPLES_SECONDS: Final = 30
_START_DEATHS_MAX: Final = 4  # a serve that has died so often before its first answer will not come up
_LOG_TAIL_LINES: Final = 8


class RunError(Exception):
    """The run cannot begin or go on; the message says what to do."""


class SpecRefused(Exception):
    """Spark or Kafka's client does not take a field of the spec; the message has its own words."""


@dataclass(frozen=True, slots=True)
class Options:
    kafka: str = "embedded"
    """`embedded`, `file` (the address that the resource names) or an address."""

    nodes: int | None = None
    """With how many it begins. None: as many as the resource says."""

    data: Path | None = None
    """None: a directory that is gone at the end."""

    port: int = 8080
    """The first node's; the others follow. 0: any free ones."""

    partitions: int = 4
    """Of the topic, when the embedded broker does not have it yet."""

    topic_wait_seconds: float = 300
    """How long a topic on a broker of someone else's is waited for."""

    example_rate: int = 0
    """Example records a second, produced to the topic. 0: none."""


def run(resource: Resource, options: Options, progress: Progress) -> None:
    """Returns when it was asked to stop and everything is stopped."""
    raise_descriptor_limit()  # every process that this one starts inherits it
    _check_descriptors(1)  # before Spark is asked to check the SQL
    with StopRequest.on_signals() as stopping, contextlib.suppress(Stopped):
        urls = _urls(options.port, options.nodes or resource.spec.replicas)
        with data_directory.opened(options.data) as data:
            system = _System(resource, options, data, progress, stopping, urls)
            try:
                system.start()
                system.tend_for_ever()
            finally:
                system.stop()


class _System:
    """Everything that one run has started."""

    def __init__(
        self,
        resource: Resource,
        options: Options,
        data: DataDirectory,
        progress: Progress,
        stopping: StopRequest,
        urls: list[str],
    ) -> None:
        self._resource, self._options, self._data, self._progress = resource, options, data, progress
        self._stopping, self._urls = stopping, urls
        self._http = httpx.Client(timeout=2, trust_env=False)
        self._bootstrap = resource.spec.bootstrap_servers
        self._broker: EmbeddedKafka | None = None
        self._kept: list[SupervisedProcess] = []
        self._fleet: LocalCluster | None = None
        self._training: ClassTraining | None = None
        self._described: dict[str, Any] = {}

    def start(self) -> None:
        cache = jars.cache_dir(os.environ.get("QT_CACHE_DIR", ""))
        java = jars.find_java()
        jars.connector_jars(cache, self._progress.say)
        self._check_sql()
        if self._options.kafka == "embedded":
            partitions = self._start_kafka(jars.broker_jars(cache, self._progress.say), java)
        else:
            partitions = self._wait_for_topic()
        fleet = self._start_nodes(partitions)
        self._wait_for_answers(fleet)
        self._wait_until_ready(fleet)
        self._say_what_to_try()
        self._training = ClassTraining(self._data.log("class-training"), [self._data.lock])

    def tend_for_ever(self) -> None:
        while True:
            self._tend()

    def stop(self) -> None:
        """Nodes first, so that they part from a broker that is still there."""
        self._http.close()
        nodes = self._fleet.processes if self._fleet else []
        if self._kept or nodes:
            self._progress.say("Stopping ...")
        training = [self._training.process] if self._training and self._training.process else []
        others = [kept.process for kept in self._kept if kept.name != "kafka"]
        stop([*nodes, *others, *training], _STOP_SECONDS)
        if self._fleet:
            self._fleet.close()
        if self._broker:
            self._broker.stop()

    def _check_sql(self) -> None:
        spec = self._resource.spec
        if not spec.sql and not spec.value_schema:
            return
        placement = initial_placement(f"local.{self._resource.name}.check", 1, self._urls, 1)
        settings = node_settings("check", 0, self._spec(), placement, self._data)
        log = self._data.log("check")
        log.unlink(missing_ok=True)
        command = [sys.executable, "-m", "queryable_app.ingest.check"]
        with (
            self._progress.waiting("Checking transform.sql and value.schema"),
            contextlib.ExitStack() as stack,
        ):
            with self._stopping.held():
                check = Process(command, log, {**os.environ, **settings.to_env()}, [self._data.lock])
                stack.callback(stop, [check], _STOP_SECONDS)
            while check.exit_code is None:
                self._pause()
        if check.exit_code == 2:
            raise SpecRefused(_tail(log))
        if check.exit_code:
            raise RunError(f"the SQL could not be checked:\n{_tail(log)}")

    def _start_kafka(self, broker_jars: Path, java: Path) -> int:
        """Afterwards the topic is there; returns how many partitions it has."""
        topic = self._resource.spec.topic
        with self._progress.waiting("Starting Kafka"):
            self._broker = EmbeddedKafka(self._data.kafka, broker_jars, java, [self._data.lock])
            with self._stopping.held():
                self._kept.append(SupervisedProcess("kafka", self._broker.launch, self._broker.launch()))
            self._broker.wait_until_ready()
            self._bootstrap = self._broker.bootstrap
            kafka = kafka_connection(self._bootstrap, {})
            topics.create_topic(kafka, topic, self._options.partitions)
            partitions = topics.partitions_of(kafka, topic)
        self._progress.say(f"Kafka answers at {self._bootstrap}; topic {topic!r} has {partitions} partitions")
        return partitions

    def _wait_for_topic(self) -> int:
        topic = self._resource.spec.topic
        if self._options.kafka != "file":
            self._bootstrap = self._options.kafka
        elif "secretRef" in self._resource.document["spec"]["kafka"]:
            raise RunError(
                "spec.kafka.secretRef: Secrets are in a cluster; give the settings in spec.kafka.config"
            )
        kafka = kafka_connection(self._bootstrap, self._resource.spec.kafka_config)
        deadline = time.monotonic() + self._options.topic_wait_seconds
        with self._progress.waiting(f"Waiting for topic {topic!r} at {self._bootstrap}") as show:
            while True:
                try:
                    if partitions := topics.partitions_of(kafka, topic):
                        break
                    problem = (
                        f"there is no topic {topic!r} at {self._bootstrap}: create it, or correct spec.topic"
                    )
                except topics.KafkaUnreachable as e:
                    if partitions := self._partitions_of_kept_rows():
                        self._progress.say(f"{e}: the nodes answer from their disks until it is back")
                        return partitions
                    problem = f"{e}: start it, or correct the address"
                show(f"Waiting: {problem}")
                if time.monotonic() > deadline:
                    raise topics.KafkaUnreachable(problem)
                self._pause()
        self._progress.say(f"Topic {topic!r} at {self._bootstrap} has {partitions} partitions")
        return partitions

    def _partitions_of_kept_rows(self) -> int:
        """0 unless an earlier run has left the rows of this very view."""
        kept = self._data.read(_VIEW_FILE)
        if kept is None:
            return 0
        partitions = int(kept["view"]["partitions"])
        same = kept["view"] == revision.view_digests(self._spec(), self._bootstrap, partitions)
        return partitions if same else 0

    def _start_nodes(self, partitions: int) -> LocalCluster:
        kafka = "embedded" if self._broker else self._bootstrap
        view = revision.view_digests(self._spec(), kafka, partitions)
        number, changed = revision.next_revision(self._data.read(_VIEW_FILE), view)
        if changed:
            self._progress.say(f"Changed since the last run: {', '.join(changed)}. The rows are built anew.")
            self._data.forget_nodes_from(0)
        self._data.write(_VIEW_FILE, {"revision": number, "view": view})
        self._data.write(RESOURCE_FILE, self._resource.document)
        name, nodes = f"{self._resource.name}-r{number}", len(self._urls)
        wish = DesiredScale(nodes, min(self._resource.spec.standby_replicas, nodes - 1))
        kept = self._data.read(PLACEMENT_FILE)
        # Nodes of an earlier run that are too many now give their copies away before they go.
        earlier = len(kept["addresses"]) if kept else 0
        urls = [*self._urls, *(new_address(self._options.port, node) for node in range(nodes, earlier))]
        application_id = f"local.{self._resource.name}.r{number}"
        placement = start_placement(kept, application_id, partitions, urls, wish)
        _check_descriptors(max(len(placement.assigned_to(node)) for node in range(nodes)))
        with self._stopping.held():
            self._fleet = LocalCluster(name, self._spec(), self._data, placement, wish, self._options.port)
        return self._fleet

    def _spec(self) -> dict[str, Any]:
        """The spec with the broker that is used. One of our own takes no settings that are meant for another."""
        spec = self._resource.document["spec"]
        config = {} if self._options.kafka == "embedded" else spec["kafka"].get("config", {})
        return {**spec, "kafka": {"bootstrapServers": self._bootstrap, "config": config}}

    def _wait_for_answers(self, fleet: LocalCluster) -> None:
        with self._progress.waiting("Waiting for the nodes to answer") as show:
            while silent := fleet.silent:
                show(f"Waiting for {', '.join(node.name for node in silent)} to answer")
                self._tend()
                for node in silent:
                    if node.serve.crashes >= _START_DEATHS_MAX:
                        raise RunError(f"{node.serve.name} does not start:\n{_tail(node.log('serve'))}")

    def _wait_until_ready(self, fleet: LocalCluster) -> None:
        if self._options.example_rate:
            self._start_examples()
        with self._progress.waiting("Hydrating") as show:
            try:
                while missing := [said for node in fleet.nodes if (said := node.missing(self._http))]:
                    show(f"Hydrating: {', '.join(missing)}")
                    self._tend()
            except NodeFailed as error:
                refused = SpecRefused if error.failure.caused_by_spec else RunError
                raise refused(str(error)) from error

    def _start_examples(self) -> None:
        spec, rate = self._resource.spec, str(self._options.example_rate)
        command = [
            sys.executable,
            "-m",
            "queryable_app.local.example_records",
            self._bootstrap,
            spec.topic,
            rate,
        ]

        def start() -> Process:
            return Process(command, self._data.log("examples"), inherited=[self._data.lock])

        with self._stopping.held():
            self._kept.append(SupervisedProcess("example records", start, start()))

    def _say_what_to_try(self) -> None:
        url = self._urls[0]
        say = self._progress.say
        say(f"\nReady: {', '.join(self._urls)}. Try:\n")
        key = self._some_key()
        if key is not None:
            say(f"  curl {url}/v1/keys/{quote(key, safe='')}")
        say(f"  curl '{url}/v1/scan?limit=5'")
        say(f"  curl {url}/v1/count")
        say(f"\nIn a browser: {url}/     Another terminal: qtopic status     Ctrl-C stops everything.\n")

    def _some_key(self) -> str | None:
        """A key that is there, as in a URL. Examples begin to come only now."""
        deadline = time.monotonic() + (_EXAMPLES_SECONDS if self._options.example_rate else 0)
        while True:
            for url in self._urls:
                with contextlib.suppress(httpx.HTTPError, ValueError, KeyError):
                    items = self._http.get(f"{url}/v1/scan?limit=1").json()["items"]
                    if items and "keyEncoding" not in items[0]:
                        return str(items[0]["key"])
            if time.monotonic() >= deadline:
                return None
            self._tend()

    def _tend(self) -> None:
        """One look at every process, and a short pause."""
        with self._stopping.held():
            happened = [said for kept in self._kept if (said := kept.supervise())]
            if self._fleet:
                happened += self._fleet.tick()
            if self._training and (said := self._training.tick()):
                happened.append(said)
        for said in happened:
            self._progress.say(said)
        if self._fleet:
            self._describe(self._fleet)
        self._pause()

    def _describe(self, fleet: LocalCluster) -> None:
        """From the moment at which every node has answered."""
        described = {"kafka": self._bootstrap, **fleet.describe()}
        if described != self._described and (self._described or not fleet.silent):
            self._described = described
            self._data.write_run(described)

    def _pause(self) -> None:
        self._stopping.check()
        time.sleep(_POLL_SECONDS)


def _urls(port: int, nodes: int) -> list[str]:
    """Where the nodes will listen."""
    ports = list(range(port, port + nodes)) if port else free_ports(nodes)
    for each in ports:
        if not is_free(each, HOST):
            raise RunError(
                f"port {each} is taken: stop what listens there, or choose another one with --port"
            )
    return [f"http://{HOST}:{each}" for each in ports]


def _check_descriptors(partitions: int) -> None:
    """Refuse a limit with which the JVM of a node would be started again and again."""
    if missing := descriptor_shortage(descriptor_limit(), partitions):
        raise RunError(missing)


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:])
