"""Run a broker, a topic and nodes on this machine, from a resource file until Ctrl-C.

Strategy: one thread. It checks the resource, the machine and the options before it starts anything, starts the parts in order,
and then supervises its child processes. SIGINT and SIGTERM raise in that thread, so that one `finally` stops everything at any
point. The kernel kills what that misses together with this process (see `die_with_parent`).
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from queryable_app.config.kafka_settings import kafka_connection
from queryable_app.contract import GROUP_KEY_FORMAT_FILE
from queryable_app.local import data_directory, revision, topics
from queryable_app.local.class_training import ClassTraining
from queryable_app.local.cluster import LocalCluster
from queryable_app.local.data_directory import RESOURCE_FILE, DataDirectory
from queryable_app.local.desired_scale import DesiredScale
from queryable_app.local.embedded_kafka import EmbeddedKafka
from queryable_app.local.first_requests import FIRST_ROWS, FirstRequests
from queryable_app.local.node_tls import ca_file, check_certificate, node_client, scheme_of
from queryable_app.local.placement_controller import PLACEMENT_FILE
from queryable_app.local.pods import (
    HOST,
    NodeFailed,
    new_address,
    node_addresses,
    pod_settings,
    start_placement,
)
from queryable_app.local.progress import Progress
from queryable_app.local.rekey_job import delete_internal_topics, start_rekey_job
from queryable_app.local.resource_file import Resource
from queryable_app.local.secrets import Secrets, find_secrets
from queryable_app.local.stopping import Stopped, StopRequest
from queryable_app.platform import jars
from queryable_app.platform.descriptors import descriptor_limit, raise_descriptor_limit
from queryable_app.platform.processes import Process, SupervisedProcess, free_ports, is_free, stop
from queryable_app.policy.descriptor_plan import descriptor_shortage

_VIEW_FILE: Final = "view.json"
_POLL_SECONDS: Final = 0.1
_HYDRATING_POLL_SECONDS: Final = 0.3  # a node's status takes 3 ms of the core that reads the topic
_STOP_SECONDS: Final = 8
_EXAMPLES_SECONDS: Final = 30
_SETTLED_SECONDS: Final = 1.0
_START_CRASHES_MAX: Final = 4  # so many crashes before the first response: it will not start
_LOG_TAIL_LINES: Final = 8


class RunError(Exception):
    """The run cannot start or continue; the message says what to do."""


class SpecRefused(Exception):
    """Spark or the Kafka client refuses a field of the spec; the message is theirs."""


@dataclass(frozen=True, slots=True)
class Options:
    """Hold the options of `qtopic run`."""

    kafka: str = "embedded"
    """`embedded`, `file` (the address in the resource), or an address."""

    nodes: int | None = None
    """How many pods the run starts with. None: spec.replicas."""

    workers: int | None = None
    """How many workers a pod has. None: spec.serve.workers, or 1."""

    data: Path | None = None
    """None: a temporary directory."""

    port: int = 8080
    """The first pod's port; the others use the next ones. 0: any free ports."""

    partitions: int = 4
    """Partitions of the topic, if the embedded broker creates it."""

    topic_wait_seconds: float = 300
    """How long to wait for a topic that another broker does not have yet."""

    example_rate: int = 0
    """Example records a second to produce to the topic. 0: none."""

    secrets: Path | None = None
    """A directory with a directory for each Secret that the resource names. None: there are no Secrets."""


def run(resource: Resource, options: Options, progress: Progress) -> None:
    """Run until a signal requests the end, and return when everything has stopped."""
    raise_descriptor_limit()  # child processes inherit it
    _check_descriptors(1)  # before Spark starts to check the SQL
    with contextlib.suppress(Stopped), StopRequest.on_signals() as stop_request:
        secrets = find_secrets(resource.document, resource.spec, options.secrets, options.kafka)
        if secrets.tls:
            check_certificate(Path(secrets.tls), "spec.tls.secretRef")
        urls = _urls(options.port, options.nodes or resource.spec.replicas, scheme_of(resource.spec))
        with data_directory.opened(options.data) as data:
            running = _Run(resource, options, data, progress, stop_request, urls, secrets)
            try:
                running.start()
                running.supervise_forever()
            finally:
                running.stop()


class _Run:
    """Own everything that a run starts."""

    def __init__(
        self,
        resource: Resource,
        options: Options,
        data: DataDirectory,
        progress: Progress,
        stop_request: StopRequest,
        urls: list[str],
        secrets: Secrets,
    ) -> None:
        self._resource, self._options, self._data, self._progress = resource, options, data, progress
        self._stop_request, self._urls = stop_request, urls
        self._secrets = secrets
        self._http = node_client(data, secrets.tls)
        self._bootstrap = resource.spec.bootstrap_servers
        self._broker: EmbeddedKafka | None = None
        self._supervised: list[SupervisedProcess] = []
        self._cluster: LocalCluster | None = None
        self._training: ClassTraining | None = None
        self._described: dict[str, Any] = {}
        self._group_key_format = ""
        self._rekey_job: SupervisedProcess | None = None

    def start(self) -> None:
        cache = jars.cache_dir(os.environ.get("QT_CACHE_DIR", ""))
        java = jars.find_java()
        jars.ingest_jars(cache, self._progress.say)
        self._check_sql()
        if self._options.kafka == "embedded":
            partitions = self._start_kafka(jars.broker_jars(cache, self._progress.say), java)
        else:
            partitions = self._wait_for_topic()
        cluster = self._start_nodes(partitions)
        self._wait_for_answers(cluster)
        self._wait_until_ready(cluster)
        self._show_first_commands()
        self._training = ClassTraining(self._data.log("class-training"), [self._data.lock])

    def supervise_forever(self) -> None:
        while True:
            self._supervise()

    def stop(self) -> None:
        """Stop the nodes first, so that they leave a broker that still runs."""
        self._http.close()
        nodes = self._cluster.processes if self._cluster else []
        if self._supervised or nodes:
            self._progress.say("Stopping ...")
        training = [self._training.process] if self._training and self._training.process else []
        others = [each.process for each in self._supervised if each.name != "kafka"]
        stop([*nodes, *others, *training], _STOP_SECONDS)
        if self._cluster:
            self._cluster.close()
        if self._broker:
            self._broker.stop()

    def _check_sql(self) -> None:
        spec = self._resource.spec
        if not spec.sql and not spec.value_schema and spec.aggregate is None and not spec.is_rekeyed:
            return
        front, application_id = self._urls[0], f"local.{self._resource.name}.check"
        settings = pod_settings("check", 0, self._spec(), application_id, front, [front], self._data)
        log = self._data.log("check")
        log.unlink(missing_ok=True)
        command = [sys.executable, "-m", "queryable_app.ingest.check"]
        with (
            self._progress.waiting("Checking the view with Spark"),
            contextlib.ExitStack() as stack,
        ):
            with self._stop_request.deferred():
                check = Process(command, log, {**os.environ, **settings.to_env()}, [self._data.lock])
                stack.callback(stop, [check], _STOP_SECONDS)
            while check.exit_code is None:
                self._pause()
        if check.exit_code == 2:
            raise SpecRefused(_tail(log))
        if check.exit_code:
            raise RunError(f"the SQL could not be checked:\n{_tail(log)}")
        if spec.is_rekeyed:
            self._group_key_format = Path(settings.run_dir, GROUP_KEY_FORMAT_FILE).read_text()

    def _start_kafka(self, broker_jars: Path, java: Path) -> int:
        """Start the broker and create the topic. Return the topic's number of partitions."""
        topic = self._resource.spec.topic
        with self._progress.waiting("Starting Kafka"):
            self._broker = EmbeddedKafka(self._data.kafka, broker_jars, java, [self._data.lock])
            with self._stop_request.deferred():
                self._supervised.append(
                    SupervisedProcess("kafka", self._broker.launch, self._broker.launch())
                )
            self._broker.wait_until_ready()
            self._bootstrap = self._broker.bootstrap
            kafka = kafka_connection(self._bootstrap, {})
            self._stop_request.run(topics.create_topic(kafka, topic, self._options.partitions))
            partitions = self._stop_request.run(topics.partitions_of(kafka, topic))
        self._progress.say(f"Kafka answers at {self._bootstrap}; topic {topic!r} has {partitions} partitions")
        return partitions

    def _wait_for_topic(self) -> int:
        topic = self._resource.spec.topic
        if self._options.kafka != "file":
            self._bootstrap = self._options.kafka
        kafka = kafka_connection(self._bootstrap, self._secrets.kafka_config(self._resource.spec))
        deadline = time.monotonic() + self._options.topic_wait_seconds
        with self._progress.waiting(f"Waiting for topic {topic!r} at {self._bootstrap}") as show:
            while True:
                try:
                    if partitions := self._stop_request.run(topics.partitions_of(kafka, topic)):
                        break
                    problem = (
                        f"there is no topic {topic!r} at {self._bootstrap}: create it, or correct spec.topic"
                    )
                except topics.KafkaUnreachable as e:
                    if partitions := self._partitions_of_stored_rows():
                        self._progress.say(f"{e}: the nodes serve what they have on disk until it answers")
                        return partitions
                    problem = f"{e}: start it, or correct the address"
                show(f"Waiting: {problem}")
                if time.monotonic() > deadline:
                    raise topics.KafkaUnreachable(problem)
                self._pause()
        self._progress.say(f"Topic {topic!r} at {self._bootstrap} has {partitions} partitions")
        return partitions

    def _partitions_of_stored_rows(self) -> int:
        """Return the partitions of the same view's rows that an earlier run has left; 0 if there are none."""
        stored = self._data.read(_VIEW_FILE)
        if stored is None:
            return 0
        partitions = int(stored["view"]["partitions"])
        view = revision.view_digests(self._spec(), self._bootstrap, partitions, self._workers(partitions))
        return partitions if stored["view"] == view else 0

    def _workers(self, partitions: int) -> int:
        """Return how many workers a pod has: one without a partition would have nothing to do."""
        return min(self._options.workers or self._resource.spec.workers or 1, partitions)

    def _start_nodes(self, partitions: int) -> LocalCluster:
        kafka = "embedded" if self._broker else self._bootstrap
        workers = self._workers(partitions)
        view = revision.view_digests(self._spec(), kafka, partitions, workers)
        earlier = self._data.read(_VIEW_FILE)
        number, changed = revision.next_revision(earlier, view)
        if changed:
            self._progress.say(
                f"Changed since the last run: {', '.join(changed)}. The nodes read the topic again."
            )
            self._data.remove_pods_from(0)
        if earlier is None or changed:
            config = {} if self._broker else self._secrets.kafka_config(self._resource.spec)
            kafka_now = kafka_connection(self._bootstrap, config)
            self._stop_request.run(delete_internal_topics(kafka_now, self._resource.name, number))
        self._data.write(_VIEW_FILE, {"revision": number, "view": view})
        self._data.write(RESOURCE_FILE, self._resource.document)
        name, pods = f"{self._resource.name}-r{number}", len(self._urls)
        desired = DesiredScale(pods, min(self._resource.spec.standby_replicas, pods - 1))
        stored = self._data.read(PLACEMENT_FILE)
        # A pod of an earlier run that is too many now is stopped only once it hosts no replicas.
        pods_before = -(-len(stored["addresses"]) // workers) if stored else 0
        scheme = scheme_of(self._resource.spec)
        fronts = [
            *self._urls,
            *(new_address(self._options.port, pod, scheme) for pod in range(pods, pods_before)),
        ]
        urls = node_addresses(fronts, workers)
        application_id = f"local.{self._resource.name}.r{number}"
        placement = start_placement(stored, application_id, partitions, urls, desired, workers)
        assigned = [len(placement.assigned_to(node)) for node in range(pods * workers)]
        _check_descriptors(max(sum(assigned[pod * workers :][:workers]) for pod in range(pods)))
        with self._stop_request.deferred():
            self._cluster = LocalCluster(
                name,
                self._spec(),
                self._data,
                placement,
                desired,
                self._options.port,
                fronts,
                workers,
                self._group_key_format,
                self._secrets,
            )
        if self._group_key_format:
            with self._stop_request.deferred():
                job = start_rekey_job(
                    f"{name}-rekey", self._spec(), application_id, self._urls[0], self._data, self._secrets
                )
                self._supervised.append(job)
                self._rekey_job = job
        return self._cluster

    def _spec(self) -> dict[str, Any]:
        """Return the spec with the address of the broker in use. The embedded one takes no settings of another broker."""
        spec = self._resource.document["spec"]
        config = {} if self._options.kafka == "embedded" else spec["kafka"].get("config", {})
        return {**spec, "kafka": {"bootstrapServers": self._bootstrap, "config": config}}

    def _wait_for_answers(self, cluster: LocalCluster) -> None:
        with self._progress.waiting("Waiting for the nodes to answer") as show:
            while starting := cluster.starting:
                show(f"Waiting for {', '.join(pod.name for pod in starting)} to answer")
                self._supervise()
                for pod in starting:
                    if pod.serve.crashes >= _START_CRASHES_MAX:
                        raise RunError(f"{pod.serve.name} does not start:\n{_tail(pod.log('serve'))}")

    def _wait_until_ready(self, cluster: LocalCluster) -> None:
        if self._options.example_rate:
            self._start_examples()
        with self._progress.waiting("Hydrating") as show:
            try:
                while reasons := [why for pod in cluster.pods if (why := pod.not_ready(self._http))]:
                    show(f"Hydrating: {', '.join(reasons)}")
                    self._supervise(_HYDRATING_POLL_SECONDS)
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

        with self._stop_request.deferred():
            self._supervised.append(SupervisedProcess("example records", start, start()))

    def _show_first_commands(self) -> None:
        first = FirstRequests(self._urls, self._resource.spec, self._http, ca_file(self._secrets.tls))
        say = self._progress.say
        say(f"\nReady: {', '.join(self._urls)}. Try:\n")
        for command in first.commands(self._existing_key(first)):
            say(f"  {command}")
        say(
            f"\nIn a browser: {self._urls[0]}/     Another terminal: qtopic status     Ctrl-C stops everything.\n"
        )

    def _existing_key(self, first: FirstRequests) -> str | None:
        """Return a key that exists, or None. With example records, wait until their first rows have settled.

        The first records arrive in a burst, and a later one of them may delete a key again.
        """
        if not self._options.example_rate:
            return first.key_and_rows()[0]
        deadline = time.monotonic() + _EXAMPLES_SECONDS
        found, since = first.key_and_rows(), time.monotonic()
        while time.monotonic() < deadline:
            if found[1] >= FIRST_ROWS and time.monotonic() - since >= _SETTLED_SECONDS:
                break
            self._supervise()
            if (now := first.key_and_rows()) != found:
                found, since = now, time.monotonic()
        return found[0]

    def _supervise(self, pause: float = _POLL_SECONDS) -> None:
        """Advance every process once, report what has happened, and pause."""
        with self._stop_request.deferred():
            events = [line for each in self._supervised if (line := each.supervise())]
            if self._cluster:
                events += self._cluster.tick()
            if self._training and (line := self._training.tick()):
                events.append(line)
        for line in events:
            self._progress.say(line)
        if self._cluster:
            self._describe(self._cluster)
        self._pause(pause)

    def _describe(self, cluster: LocalCluster) -> None:
        """Write `run.json` when it changes, once every node has answered."""
        jobs = {"rekeyJob": self._rekey_job.process.pid} if self._rekey_job else {}
        ca = {"ca": str(file)} if (file := ca_file(self._secrets.tls)) else {}
        described = {"kafka": self._bootstrap, **ca, **jobs, **cluster.describe()}
        if described != self._described and (self._described or not cluster.starting):
            self._described = described
            self._data.write_run(described)

    def _pause(self, seconds: float = _POLL_SECONDS) -> None:
        self._stop_request.check()
        time.sleep(seconds)


def _urls(port: int, nodes: int, scheme: str) -> list[str]:
    """Return the addresses of the nodes. Raises RunError if a port is taken."""
    ports = list(range(port, port + nodes)) if port else free_ports(nodes)
    for each in ports:
        if not is_free(each, HOST):
            raise RunError(
                f"port {each} is taken: stop what listens there, or choose another one with --port"
            )
    return [f"{scheme}://{HOST}:{each}" for each in ports]


def _check_descriptors(partitions: int) -> None:
    """Refuse a limit of open files with which the JVM of a node would crash again and again."""
    if shortage := descriptor_shortage(descriptor_limit(), partitions):
        raise RunError(shortage)


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:])
