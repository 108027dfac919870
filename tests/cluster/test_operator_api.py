"""Test the operator as a process against a real API server. Its pods stay unschedulable, so that only objects matter."""

from __future__ import annotations

import json
import random
import signal
import time

import pytest

from queryable_operator.spec import names
from tests.support.cluster import kubectl
from tests.support.operator_in_namespace import KINDS, Running, until

pytestmark = pytest.mark.timeout(900)

# The operator, with a shorter timeout for an unreachable Kafka: a test cannot wait five minutes.
IMPATIENT = "import queryable_operator.decide.deletion as d; d._KAFKA_SECONDS = 3.0"

# The operator, reading token Secrets, which it does not watch, more often than once a minute.
VIGILANT = "import queryable_operator.act.observer as o; o._TOKEN_SECONDS = 3.0"


def test_settled_resource_causes_no_writes(running: Running) -> None:
    """The operator creates every child once, and then writes nothing over many reconcile passes."""
    running.start()
    running.apply("users", replicas=2)
    running.settled("users")
    running.quiet()
    before, writes = running.contents(), len(running.proxy.writes)
    running.passes(10)
    assert running.contents() == before
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
        lambda: "NameTaken" in json.dumps(running.live("qt")["users"]),
        lambda: running.operator.log[-3000:],
    )
    assert running.namespace.get("service", "users") == before


def test_unsupported_spec_is_reported_and_blocks_no_other(running: Running) -> None:
    """The operator reports a spec that the schema accepts and this version does not support; other resources continue."""
    running.start()
    record = {"type": "record", "name": "Key", "fields": []}
    running.apply("wrong", key={"format": "avro", "schemaFrom": {"inline": json.dumps(record)}})
    running.apply("right")
    running.settled("right")
    text = running.namespace.kubectl("get", "qt", "wrong", "--output", "json")
    conditions = {c["type"]: c for c in json.loads(text)["status"]["conditions"]}
    assert conditions["SpecValid"]["status"] == "False"
    assert "spec.key.schemaFrom" in conditions["SpecValid"]["message"]


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
    for number in range(10):
        operator = running.start()
        running.apply("users", replicas=1 + number % 2)
        if number == 6:
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
