"""Test the operator as a process against a real API server. Its pods stay unschedulable, so that only objects matter."""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from queryable_operator.spec import names
from tests.support.cluster import Namespace, Refused, kubectl
from tests.support.counting_proxy import CountingProxy, counting_proxy
from tests.support.kafka import KafkaForTests
from tests.support.operator_process import OperatorProcess, operator_process
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(900)

KINDS = (
    "configmap",
    "networkpolicy",
    "poddisruptionbudget",
    "secret",
    "service",
    "serviceaccount",
    "statefulset",
)
REVISION = {"configmap", "poddisruptionbudget", "secret", "service", "statefulset"}
ROUNDS = 'qt_reconcile_total{result="ok"}'
MANY = int(os.environ.get("QT_TEST_RESOURCES", "200"))

# The operator, with a shorter timeout for an unreachable Kafka: a test cannot wait five minutes.
IMPATIENT = "import queryable_operator.decide.deletion as d; d._KAFKA_SECONDS = 3.0"

# The operator, reading token Secrets, which it does not watch, more often than once a minute.
VIGILANT = "import queryable_operator.act.observer as o; o._TOKEN_SECONDS = 3.0"


class Running:
    """Combine one namespace, its own operator, and requests to the API server."""

    def __init__(self, namespace: Namespace, proxy: CountingProxy, log: Path, bootstrap: str) -> None:
        self.namespace, self.proxy, self.bootstrap = namespace, proxy, bootstrap
        self._log = log
        self._starts = 0
        self._operators = ExitStack()
        self.operator: OperatorProcess

    def start(self, *options: str, prelude: str = "") -> OperatorProcess:
        options = (f"--namespaces={self.namespace.name}", "--reconcile-seconds=1", *options)
        self._starts += 1
        log = self._log.with_name(f"operator-{self._starts}.log")
        self.operator = self._operators.enter_context(
            operator_process(log, self.proxy.kubeconfig, *options, prelude=prelude)
        )
        return self.operator

    def close(self) -> None:
        self._operators.close()

    def apply(self, name: str, **spec: Any) -> None:
        nowhere = {"podTemplate": {"nodeSelector": {"queryabletopics.io/test": "nowhere"}}}
        kafka = {"kafka": {"bootstrapServers": self.bootstrap}, "topic": "operator-api"}
        storage = {"storage": {"ephemeral": True}}
        resource = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": name},
            "spec": {**kafka, **storage, **nowhere, **spec},
        }
        self.namespace.kubectl("apply", "--filename", "-", stdin=json.dumps(resource))

    def live(self, kind: str) -> dict[str, dict[str, Any]]:
        """Return the objects with our label, by name."""
        selector = f"--selector={names.VIEW_LABEL}" if kind != "qt" else "--ignore-not-found"
        text = self.namespace.kubectl("get", kind, selector, "--output", "json")
        items = json.loads(text)["items"] if text.strip() else []
        return {item["metadata"]["name"]: item for item in items}

    def missing(self, view: str) -> set[str]:
        """Return the children that a view needs and that do not exist."""
        wanted = {(kind, f"{view}-r1") for kind in REVISION}
        wanted |= {(kind, view) for kind in ("service", "networkpolicy", "serviceaccount")}
        there = {(kind, name) for kind in KINDS for name in self.live(kind)}
        return {f"{kind}/{name}" for kind, name in wanted - there}

    def settled(self, view: str) -> None:
        until(
            lambda: not self.missing(view),
            lambda: f"missing {self.missing(view)}\n{self.operator.log[-3000:]}",
        )

    def runs(self) -> bool:
        assert self.operator.popen.poll() is None, self.operator.log[-3000:]
        return True

    def versions(self) -> dict[tuple[str, str], str]:
        return {
            (kind, name): live["metadata"]["resourceVersion"]
            for kind in (*KINDS, "qt", "pod")
            for name, live in self.live(kind).items()
        }

    def rounds(self, count: int) -> None:
        """Wait until this many more reconcile passes have ended."""
        before = self.operator.metrics().get(ROUNDS, 0.0)
        until(
            lambda: self.operator.metrics().get(ROUNDS, 0.0) >= before + count,
            lambda: self.operator.log[-3000:],
        )

    def quiet(self) -> None:
        """Wait until a few reconcile passes have ended without a write."""

        def writes_nothing() -> bool:
            before = len(self.proxy.writes)
            self.rounds(4)
            return len(self.proxy.writes) == before

        until(writes_nothing, lambda: str(self.proxy.writes[-10:]))

    def events(self, reason: str) -> list[str]:
        text = self.namespace.kubectl(
            "get", "events", f"--field-selector=reason={reason}", "--output", "json"
        )
        return [item["message"] for item in json.loads(text)["items"]]


def until(condition: Callable[[], object], story: Callable[[], str], seconds: float = 60) -> None:
    eventually("the cluster is in the desired state", condition, seconds, story=story)


@pytest.fixture(scope="module")
def topic(cluster: httpx.Client, kafka: KafkaForTests) -> str:
    """Create the topic, and return the address of the broker, beside which the operator runs."""
    kafka.create_topic("operator-api", 4)
    return kafka.bootstrap


@contextmanager
def _namespace(cluster: httpx.Client) -> Iterator[Namespace]:
    name = f"qt-operator-{secrets.token_hex(4)}"
    kubectl("create", "namespace", name)
    try:
        yield Namespace(name, cluster)
    finally:
        _remove_replica(name)
        kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")


def _remove_replica(namespace: str) -> None:
    """Release resources without an operator, which would block the deletion of their namespace."""
    listed = kubectl("--namespace", namespace, "get", "qt", "--output", "name", "--ignore-not-found")
    for name in listed.split():
        patch = '{"metadata":{"finalizers":null}}'
        try:
            kubectl("--namespace", namespace, "patch", name, "--type=merge", "--patch", patch)
        except Refused:
            continue  # it was deleted meanwhile


@pytest.fixture
def running(cluster: httpx.Client, topic: str, tmp_path: Path) -> Iterator[Running]:
    with _namespace(cluster) as namespace, counting_proxy(str(cluster.base_url)) as proxy:
        running = Running(namespace, proxy, tmp_path / "log", topic)
        try:
            yield running
        finally:
            running.close()


def test_settled_resource_causes_no_writes(running: Running) -> None:
    """The operator creates every child once, and then writes nothing over many reconcile passes."""
    running.start()
    running.apply("users", replicas=2)
    running.settled("users")
    running.quiet()
    before, writes = running.versions(), len(running.proxy.writes)
    running.rounds(10)
    assert running.versions() == before
    assert running.proxy.writes[writes:] == []
    assert running.live("qt")["users"]["metadata"]["finalizers"] == [names.FINALIZER]
    assert "annotations" not in json.loads(
        running.namespace.kubectl("get", "qt", "users", "--output", "json")
    )["metadata"] or set(running.live("qt")["users"]["metadata"]["annotations"]) == {
        "kubectl.kubernetes.io/last-applied-configuration"
    }
    assert {len(running.live(kind)) for kind in ("statefulset", "configmap", "secret")} == {1}
    assert running.operator.end() == 0


def test_edited_or_deleted_child_is_repaired(running: Running) -> None:
    """The operator repairs a child of every kind after an edit and a deletion; the event names the difference."""
    running.start(prelude=VIGILANT)
    running.apply("users")
    running.settled("users")
    running.quiet()
    edits = {
        "service/users": '{"spec":{"selector":{"queryabletopics.io/revision":"r7"}}}',
        "configmap/users-r1": '{"metadata":{"labels":{"app.kubernetes.io/instance":"another"}}}',
        "statefulset/users-r1": '{"spec":{"replicas":5}}',
        "poddisruptionbudget/users-r1": '{"spec":{"maxUnavailable":5}}',
        "networkpolicy/users": '{"spec":{"ingress":[]}}',
        "serviceaccount/users": '{"automountServiceAccountToken":true}',
    }
    for number, (child, patch) in enumerate(edits.items()):
        running.namespace.kubectl("patch", child, "--type=merge", "--patch", patch)
        until(
            lambda: len(running.events("DriftCorrected")) > number,  # noqa: B023
            lambda: f"{child} was not reverted\n{running.operator.log[-2000:]}",  # noqa: B023
        )
    assert running.live("statefulset")["users-r1"]["spec"]["replicas"] == 1
    for kind in KINDS:
        for name, live in running.live(kind).items():
            running.namespace.kubectl("delete", kind, name, "--wait=false")
            until(
                lambda: running.live(kind).get(name, live)["metadata"]["uid"] != live["metadata"]["uid"],  # noqa: B023
                lambda: f"{kind} {name} was not recreated\n{running.operator.log[-2000:]}",  # noqa: B023
                300,
            )
    running.quiet()


def test_object_of_another_owner_is_unchanged(running: Running) -> None:
    """The operator leaves an existing Service of the view's name unchanged, and status reports the conflict."""
    running.namespace.kubectl("create", "service", "clusterip", "users", "--tcp=80:80")
    before = running.namespace.get("service", "users")
    running.start()
    running.apply("users")
    until(
        lambda: "NameTaken" in running.namespace.kubectl("get", "qt", "users", "--output", "json"),
        lambda: running.operator.log[-3000:],
    )
    assert running.namespace.get("service", "users") == before


def test_unsupported_spec_is_reported_and_blocks_no_other(running: Running) -> None:
    """The operator reports a spec that the schema accepts and this version does not support; other resources continue."""
    running.start()
    running.apply("wrong", view={"indexes": [{"name": "by-user", "field": "user", "type": "string"}]})
    running.apply("right")
    running.settled("right")
    text = running.namespace.kubectl("get", "qt", "wrong", "--output", "json")
    conditions = {c["type"]: c for c in json.loads(text)["status"]["conditions"]}
    assert conditions["SpecValid"]["status"] == "False"
    assert "spec.view.indexes" in conditions["SpecValid"]["message"]


def test_refused_request_causes_an_event(running: Running) -> None:
    """A quota without room causes an event with verb, kind and name; with room the operator continues."""
    running.namespace.kubectl("create", "quota", "none", "--hard=count/statefulsets.apps=0")
    running.start()
    running.apply("users")
    until(
        lambda: any("apply StatefulSet users-r1" in message for message in running.events("ReconcileFailed")),
        lambda: running.operator.log[-3000:],
    )
    running.namespace.kubectl("delete", "quota", "none")
    running.settled("users")
    assert len(running.events("ReconcileFailed")) == 1


def test_operator_killed_at_random_reaches_the_same_state(running: Running) -> None:
    """The operator reaches the same state after SIGKILL at random moments of creation, change and deletion."""
    dice = random.Random(7)
    for round_ in range(10):
        operator = running.start()
        running.apply("users", replicas=1 + round_ % 2)
        if round_ == 6:
            running.apply("gone")
            running.namespace.kubectl("delete", "qt", "gone", "--wait=false")
        time.sleep(dice.uniform(0.5, 3.0))  # a random moment, not a wait for a condition
        operator.end(signal.SIGKILL)
    running.start()
    running.apply("users", replicas=2)
    running.settled("users")
    until(lambda: "gone" not in running.live("qt"), lambda: running.operator.log[-3000:])
    running.quiet()
    assert {kind: len(running.live(kind)) for kind in KINDS} == {
        **dict.fromkeys(KINDS, 1),
        "service": 2,
    }
    assert running.live("statefulset")["users-r1"]["spec"]["replicas"] == 2


def test_operator_waits_for_an_unreachable_api_server(running: Running) -> None:
    """The operator waits for an unreachable API server, and then repairs what has changed."""
    running.start()
    running.apply("users")
    running.settled("users")
    running.proxy.cut()
    running.operator.wait_for_log("does not answer")
    running.namespace.kubectl("delete", "statefulset", "users-r1")
    running.namespace.kubectl("delete", "networkpolicy", "users")
    running.proxy.is_cut = False
    running.settled("users")
    running.quiet()
    assert running.operator.get("/healthz").text == "ok\n"


def test_deleted_resource_leaves_no_objects(running: Running) -> None:
    """A deleted resource leaves nothing in Kubernetes; the tests of topics cover Kafka."""
    running.start()
    running.apply("users", storage={"ephemeral": False, "size": "1Gi"})
    running.settled("users")
    until(lambda: running.live("pvc"), lambda: "a volume claim")
    running.namespace.kubectl("delete", "qt", "users", "--timeout=120s", timeout=150)

    def left() -> dict[str, list[str]]:
        return {kind: sorted(live) for kind in (*KINDS, "pod", "pvc") if (live := running.live(kind))}

    until(lambda: not left(), lambda: str(left()))


def test_deletion_waits_for_kafka_until_its_timeout(running: Running) -> None:
    """If Kafka is unreachable beyond the timeout, an event names what may remain, and the resource is released."""
    running.start(prelude=IMPATIENT)
    running.apply("users")
    running.settled("users")
    kafka = {"bootstrapServers": "127.0.0.1:1"}
    running.namespace.kubectl(
        "patch", "qt", "users", "--type=merge", "--patch", json.dumps({"spec": {"kafka": kafka}})
    )
    running.namespace.kubectl("delete", "qt", "users", "--timeout=120s", timeout=150)
    (message,) = running.events("CleanupFailed")
    assert f"{running.namespace.name}.users.r" in message


def test_deletion_without_an_operator_is_completed_later(running: Running) -> None:
    """The next operator completes a deletion that began while no operator ran."""
    running.start()
    running.apply("users")
    running.settled("users")
    assert running.operator.end() == 0
    running.namespace.kubectl("delete", "qt", "users", "--wait=false")
    assert "users" in running.live("qt")
    running.start()
    until(lambda: "users" not in running.live("qt"), lambda: running.operator.log[-3000:])


def test_deleted_namespace_ends(running: Running) -> None:
    """A deleted namespace ends with all of its resources, although it accepts no new objects and Kafka is unreachable."""
    running.start(prelude=IMPATIENT)
    running.apply("users", kafka={"bootstrapServers": "127.0.0.1:1"})
    running.apply("others")
    running.settled("others")
    kubectl("delete", "namespace", running.namespace.name, "--timeout=240s", timeout=300)


def test_standby_takes_over_from_a_killed_operator(running: Running) -> None:
    """A standby operator takes over a real Lease from a killed one."""
    election = ("--leader-election", f"--lease-namespace={running.namespace.name}")
    first = running.start(*election)
    first.wait_for_log("This operator acts now")
    second = running.start(*election)
    second.wait_for_log("Standing by")
    first.end(signal.SIGKILL)
    running.apply("users")
    running.settled("users")
    lease = running.namespace.get("lease", names.FIELD_MANAGER)
    assert lease["spec"]["leaseTransitions"] == 1
    assert second.end() == 0


@pytest.mark.timeout(1800)
def test_many_resources_converge(running: Running) -> None:
    """Many resources converge, two hundred by default (QT_TEST_RESOURCES); the test prints duration, cost and memory."""
    for first in range(0, MANY, 50):
        resources = [
            {
                "apiVersion": names.API_VERSION,
                "kind": names.KIND,
                "metadata": {"name": f"many-{number}"},
                "spec": {
                    "kafka": {"bootstrapServers": running.bootstrap},
                    "topic": "operator-api",
                    "storage": {"ephemeral": True},
                    "podTemplate": {"nodeSelector": {"queryabletopics.io/test": "nowhere"}},
                },
            }
            for number in range(first, min(MANY, first + 50))
        ]
        many = json.dumps({"apiVersion": "v1", "kind": "List", "items": resources})
        running.namespace.kubectl("apply", "--filename", "-", stdin=many, timeout=300)
    running.start("--reconcile-seconds=10")
    os.sched_setaffinity(running.operator.popen.pid, {min(os.sched_getaffinity(0))})
    began = time.monotonic()
    until(
        lambda: (
            {len(running.live(kind)) for kind in ("statefulset", "configmap", "secret", "networkpolicy")}
            == {MANY}
        ),
        lambda: running.operator.log[-3000:],
        900,
    )
    took, cpu = time.monotonic() - began, running.operator.cpu_seconds()
    idle, per_second = _cost_of_settled_resources(running)
    print(
        f"\n{MANY} resources on one core: {took:.0f} s, {cpu:.1f} s of CPU; "
        f"settled: {100 * idle:.0f} % of a core, {per_second:.0f} requests/s, {running.operator.rss_mib():.0f} MiB"
    )
    assert len(running.live("statefulset")) == MANY
    assert running.operator.end() == 0


def _cost_of_settled_resources(running: Running, window_seconds: float = 20) -> tuple[float, float]:
    """Return the share of a core and the requests per second in the first window without a write."""
    deadline = time.monotonic() + 600
    while True:
        writes, requests = len(running.proxy.writes), len(running.proxy.requests)
        cpu_seconds = running.operator.cpu_seconds()
        time.sleep(window_seconds)  # the measured time, two reconcile intervals
        if len(running.proxy.writes) == writes:
            break
        assert time.monotonic() < deadline, str(running.proxy.writes[-10:])
    idle = (running.operator.cpu_seconds() - cpu_seconds) / window_seconds
    return idle, (len(running.proxy.requests) - requests) / window_seconds
